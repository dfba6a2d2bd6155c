"""What was found in one model, from its records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pidformer.analysis.certificate import Certificate
from pidformer.results import Record

COLLAPSED = 0.95
"""Mean cosine of the tokens from which on they count as one."""
RISE = 0.1
"""What the mean cosine rises by, first layer to last, where tokens grow alike."""


def smoothing_verdict(similarity: Sequence[float], effective_rank: Sequence[float]) -> str:
    """Whether a network oversmooths, from the mean cosine and effective rank of its layers."""
    first, last = similarity[0], similarity[-1]
    ranks = f"effective rank {effective_rank[0]:.3g} to {effective_rank[-1]:.3g}"
    facts = f"mean cosine {first:.2f} to {last:.2f}, {ranks}, over {len(similarity)} layers"
    layers = zip(similarity, effective_rank, strict=True)
    collapsed = [k for k, (s, r) in enumerate(layers, 1) if s >= COLLAPSED or r < 2]
    if len(similarity) in collapsed:
        return f"collapsed: the last layer's tokens are one direction ({facts})"
    if collapsed:
        return (
            f"collapsed in between: layer {collapsed[-1]}'s tokens are one direction, the last "
            f"layer's are not ({facts})"
        )
    if last - first > RISE:
        return f"oversmoothing: tokens grow alike with depth ({facts})"
    return f"no oversmoothing: tokens stay apart with depth ({facts})"


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """The records of an analysis, and what no record holds."""

    label: str
    name: str
    records: Mapping[str, Record]
    """By what was measured: token_similarity, and where the model has them control_scale,
    attention, spectrum and certificate."""
    certificate: Certificate | str
    """With the eigenvalues themselves where they were asked for; else in words, or why there is
    none."""
    model: nn.Module
    example: Tensor | None = None
    """One of the inputs, where it was asked for."""

    @property
    def tokens(self) -> Mapping[str, Any]:
        """`similarity` by layer of each tensor, and the measures of rank by layer."""
        return self.records["token_similarity"].details

    @property
    def layers(self) -> dict[str, Sequence[float]]:
        """All that was measured by layer: similarity of the blocks' outputs, ranks, attention."""
        attention = self.records["attention"].details if "attention" in self.records else {}
        blocks = {"similarity": self.tokens["similarity"]["blocks"]}
        return {**self.tokens, **attention, **blocks}

    @property
    def verdict(self) -> str:
        """One sentence on oversmoothing."""
        return smoothing_verdict(self.layers["similarity"], self.layers["effective_rank"])

    @property
    def is_controlled(self) -> bool:
        found = self.certificate
        if isinstance(found, Certificate):
            return found.is_controlled
        return "control_scale" in self.records

    def in_words(self) -> str:
        found = self.certificate
        return found if isinstance(found, str) else found.describe()

    def to_dict(self) -> dict[str, Any]:
        record = self.records.get("certificate")
        return {
            "label": self.label,
            "model": self.name,
            "oversmoothing": self.verdict,
            "images": int(self.records["token_similarity"].metrics["images"]),
            "similarity": self.tokens["similarity"],
            "ranks": {name: line for name, line in self.tokens.items() if name != "similarity"},
            "certificate": self.in_words() if record is None else record.details,
        }
