"""One run as a report reads it: its records, with what its recipe says filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pidformer.control import PIDGains
from pidformer.control.feedback import as_feedback
from pidformer.report.rerun import train_command
from pidformer.results import Record
from pidformer.runs.folder import trained_on

MEASURED = ("robustness", "analysis", "segmentation", "language")
"""Records that a report shows, beside those of training."""
MAIN_TASK = "classification"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One folder, or one published file."""

    folder: Path
    records: tuple[Record, ...]
    recipe: Mapping[str, Any] | None
    left_out: int = 0
    """Records of weights that the folder no longer holds."""

    @property
    def label(self) -> str:
        return self.folder.resolve().name

    @property
    def task(self) -> str:
        if self.recipe is not None:
            return str(self.recipe.get("task", MAIN_TASK))
        kinds = {record.kind for record in self.records}
        return next((kind for kind in ("segmentation", "language") if kind in kinds), MAIN_TASK)

    @property
    def gains(self) -> tuple[PIDGains, ...]:
        """The different gains of its layers; none for softmax, or when there is no recipe."""
        given = (self.recipe or {}).get("model", {}).get("gains")
        if given is None:
            return ()
        layers = given if isinstance(given, list) else [given]
        return tuple(dict.fromkeys(as_feedback(layer) for layer in layers))

    @property
    def command(self) -> str:
        """What trains it again."""
        return train_command(self.recipe or {}, "NEW_FOLDER", trained_on(self.folder))

    def of(self, kind: str, **settings: Any) -> list[Record]:
        """Its records of one kind whose settings have these values."""
        return [
            r
            for r in self.records
            if r.kind == kind and all(r.settings.get(k) == v for k, v in settings.items())
        ]

    def one(self, kind: str, **settings: Any) -> Record | None:
        """The first of them."""
        return next(iter(self.of(kind, **settings)), None)
