"""What the controller costs: ratios against the softmax twin, timm and flash attention."""

from pidformer.bench.run import SECTIONS, Bench, bench
from pidformer.bench.timing import Case, Timing

__all__ = ["SECTIONS", "Bench", "Case", "Timing", "bench"]
