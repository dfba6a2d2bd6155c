"""A folder's records as a ledger: what is there already is not measured again."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pidformer import ranks, results
from pidformer.results import Measurement, Record

Found = tuple[dict[str, float], dict[str, Any]]
"""Metrics and details of a record."""


@dataclass
class Ledger:
    """Records of one kind and model. Each is written as soon as it is measured, so that a killed
    evaluation goes on at the next one."""

    kind: str
    folder: str | Path | None
    """None: nothing is written."""
    settings: Mapping[str, Any]
    """What all its records say."""
    found: dict[Measurement, Record] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.folder is not None:
            Path(self.folder).mkdir(parents=True, exist_ok=True)
            for record in results.read(self.folder):
                if record.kind == self.kind:
                    self.found.setdefault(record.measurement, record)
            self.found = ranks.from_main(self.found)  # all go by the same

    def finished(self, about: Mapping[str, Any]) -> Record | None:
        """The record of the same measurement, if there is one."""
        return self.found.get(Measurement.of(self.kind, {**self.settings, **about}))

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
        """A new record."""
        settings = {**self.settings, **about, "machine": results.machine()}
        record = Record(kind=self.kind, metrics=metrics, settings=settings, details=details)
        if self.folder is not None and ranks.is_main():
            results.append(self.folder, record)
        self.found[record.measurement] = record
        return record
