"""Published robustness sets, read as their archives unpack."""

from pidformer.data.benchmarks.corrupted import missing_corruptions, open_corrupted
from pidformer.data.benchmarks.names import SETS, find_set
from pidformer.data.benchmarks.shifted import open_shift

__all__ = ["SETS", "find_set", "missing_corruptions", "open_corrupted", "open_shift"]
