"""What was found in one model, from its records."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pidformer.analysis.certificate import Certificate
from pidformer.results import Record


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """The records of an analysis, and what no record holds."""

    label: str
    name: str
    records: Mapping[str, Record]
    """By what was measured: token_similarity, and where the model has them control_scale, spectrum
    and certificate."""
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
    def is_controlled(self) -> bool:
        found = self.certificate
        if isinstance(found, Certificate):
            return found.is_controlled
        return "control_scale" in self.records

    def in_words(self) -> str:
        found = self.certificate
        return found if isinstance(found, str) else found.describe()

    def to_dict(self) -> dict[str, Any]:
        """For machines."""
        record = self.records.get("certificate")
        return {
            "label": self.label,
            "model": self.name,
            "images": int(self.records["token_similarity"].metrics["images"]),
            "similarity": self.tokens["similarity"],
            "ranks": {name: line for name, line in self.tokens.items() if name != "similarity"},
            "certificate": self.in_words() if record is None else record.details,
        }
