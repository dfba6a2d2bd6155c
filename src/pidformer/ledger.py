"""A folder's records as a ledger: what is there already is not measured again."""

import os
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pidformer import ranks, results
from pidformer.results import Measurement, Record

Found = tuple[dict[str, float], dict[str, Any]]
"""Metrics and details of a record."""


@dataclass
class Ledger:
    """Records of one kind and model, written as they are measured: a killed run resumes there."""

    kind: str
    folder: str | Path | None
    """None writes nothing."""
    settings: Mapping[str, Any]
    """What all its records say."""
    found: dict[Measurement, Record] = field(default_factory=dict)
    reads_images: bool = False
    """`data_hash` knows images by their labels and names, not by what is in them."""

    def __post_init__(self) -> None:
        if self.folder is not None:
            Path(self.folder).mkdir(parents=True, exist_ok=True)
            for record in results.read(self.folder):
                if record.kind == self.kind:
                    self.found.setdefault(record.measurement, record)
            self.found = ranks.from_main(self.found)  # all go by the same

    def finished(self, about: Mapping[str, Any]) -> Record | None:
        """The record of the same measurement, if there is one."""
        asked = self._said(about)
        record = self.found.get(Measurement.of(self.kind, asked))
        if record is not None and self.reads_images and ranks.is_main():
            _tell_of_another_place(record.settings.get("data"), asked.get("data"), self.folder)
        return record

    def _said(self, about: Mapping[str, Any]) -> dict[str, Any]:
        said = {**self.settings, **about}
        is_asked = os.environ.get("PIDFORMER_TF32") == "1" and torch.cuda.is_available()
        if is_asked and "tf32" in f"{said.get('precision')} {said.get('threat')}":
            said["attention"] = "tf32"  # where `ops.dispatch.is_rounded`
        return said

    def measure(self, about: Mapping[str, Any], work: Callable[[], Found]) -> Record:
        """The finished record, or a new one; `about` is what this one says beside `settings`."""
        return self.finished(about) or self.add(about, work)

    def add(self, about: Mapping[str, Any], work: Callable[[], Found]) -> Record:
        """A new record of what `work` finds, with its time as `seconds`."""
        begun = time.perf_counter()
        metrics, details = work()
        metrics["seconds"] = time.perf_counter() - begun
        return self.write(about, metrics, details)

    def write(
        self, about: Mapping[str, Any], metrics: Mapping[str, float], details: Mapping[str, Any]
    ) -> Record:
        settings = self._said(about) | {"machine": results.machine()}
        record = Record(kind=self.kind, metrics=metrics, settings=settings, details=details)
        if self.folder is not None and ranks.is_main():
            results.append(self.folder, record)
        self.found[record.measurement] = record
        return record


def _tell_of_another_place(old: str | None, new: str | None, folder: str | Path | None) -> None:
    """Warn of a record that was made with the files of another folder."""
    if old is None or new is None or not (Path(old).exists() and Path(new).exists()):
        return
    if not Path(old).samefile(new):
        warnings.warn(
            f"what {folder} holds was measured on {old}, and counts for {new} too: labels and "
            "names are the same; if the images are not, evaluate a copy of the run",
            stacklevel=4,
        )
