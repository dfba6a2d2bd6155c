"""Results: one record type, JSON lines on disk. What the report and the lab read."""

import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Self

from pidformer.errors import InputError, cut
from pidformer.fields import parse_json
from pidformer.files import check_inside, locked, write_whole

FILE_NAME = "results.jsonl"


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What was measured of which model; equal wherever, whenever and in whatever batches."""

    kind: str
    row: str | None = None
    what: str | None = None
    metric: str | None = None
    """What a search for gains looks for."""
    threat: str | None = None
    """Its `repr`; None for undisturbed data."""
    domain: str = "pixel"
    data_hash: str | None = None
    limit: int | None = None
    spectrum_limit: int | None = None
    seed: int | None = None
    split: str | None = None
    protocol: str | None = None
    window: int | None = None
    stride: int | None = None
    noise: str | None = None
    views: str | None = None
    precision: str | None = None
    attention: str | None = None
    """"tf32" where PIDFORMER_TF32 has its products rounded like those around it."""
    weights: str | None = None
    gains: str | None = None

    @classmethod
    def of(cls, kind: str, settings: Mapping[str, Any]) -> Self:
        """The measurement that a record's settings describe."""
        given = ((name, settings.get(name)) for name in _MEASUREMENT)
        known: dict[str, Any] = {
            name: value if isinstance(value, str | int) else repr(value)
            for name, value in given
            if value not in (None, "None")  # what is not there was once written as text
        }
        return cls(kind=kind, **known)

    @cached_property
    def question(self) -> Self:
        """The same measurement of any model."""
        return replace(self, weights=None, gains=None)

    @cached_property
    def anywhere(self) -> Self:
        """The same of any model on any data."""
        return replace(self.question, data_hash=None, seed=None)


_TEXTS = ("row", "what", "label", "model", "data", "split", "domain", "command")
_MEASUREMENT = tuple(f.name for f in fields(Measurement) if f.name != "kind")
_COMPARED = (*_MEASUREMENT, "eps", "train_seed", "suite", "ema", "batch_size")
"""Settings that are one value each."""
_YEAR_10000 = 253_402_300_800


@dataclass(frozen=True, kw_only=True)
class Record:
    """One measurement: what was measured, and everything needed to measure it again."""

    kind: str
    """What made it: "train", "evaluate", "analyze", ..."""
    metrics: Mapping[str, float]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Run, data, seed, threat, command: enough to rerun it."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What was found for each image or layer, small: pairs are compared from records alone."""
    step: int | None = None
    time: float = field(default_factory=time.time)

    @property
    def made(self) -> str:
        """The minute in which it was made, in UTC."""
        return datetime.fromtimestamp(self.time, UTC).strftime("%Y-%m-%d %H:%M")

    @cached_property
    def measurement(self) -> Measurement:
        return Measurement.of(self.kind, self.settings)

    def to_json(self) -> str:
        fields = asdict(self)
        # JSON has no NaN; a missing number is null, and readers see it as NaN again.
        fields["metrics"] = {
            name: value if math.isfinite(value) else None for name, value in self.metrics.items()
        }
        return json.dumps(fields)

    @classmethod
    def from_json(cls, line: str | bytes) -> Self:
        fields = parse_json(line)
        for name in ("metrics", "settings", "details"):
            if not isinstance(fields.get(name, {}), dict):
                raise TypeError(f"{name} must be an object")
        metrics = fields["metrics"].items()
        fields["metrics"] = {k: math.nan if v is None else v for k, v in metrics}
        made = cls(**fields)
        if not isinstance(made.kind, str) or type(made.step) not in (int, type(None)):
            raise TypeError("kind must be text, step a whole number")
        if not all(type(value) in (int, float) for value in (made.time, *made.metrics.values())):
            raise TypeError("metrics and time must be numbers")
        if not 0 <= made.time < _YEAR_10000:
            raise ValueError("time must be in seconds since 1970, and before the year 10000")
        for name, value in made.settings.items():
            if name in _TEXTS and not isinstance(value, str | None):
                raise TypeError(f"{name} must be text")
            if name in _COMPARED and not isinstance(value, str | int | float | None):
                raise TypeError(f"{name} must be one value")
        return made


def check_pair(a: Record, b: Record) -> None:
    """Refuse two records that are not the same measurement of two models."""
    first, second = a.measurement.question, b.measurement.question
    for name in ("kind", *_MEASUREMENT):
        one, other = getattr(first, name), getattr(second, name)
        if one != other:
            raise InputError(
                f"row {first.row or first.what!r} cannot be paired: {name} is {one} for "
                f"{a.settings['label']} and {other} for {b.settings['label']}; measure both alike"
            )


def as_text(value: object | None) -> str | None:
    """How a record says a threat, a noise or gains; None where there is none."""
    return None if value is None else str(value)


def append(folder: str | Path, record: Record) -> None:
    """Add one line to the folder's results; of several processes, one after the other."""
    path = Path(folder) / FILE_NAME
    line = (record.to_json() + "\n").encode()
    check_inside(path, path.parent)
    with locked(path) as file:
        _end_last_line(file)
        file.write(line)


def _end_last_line(file: BinaryIO) -> None:
    """A killed writer may leave half a line; drop it, so that the next one starts clean."""
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        return
    file.seek(size - 1)
    if file.read(1) == b"\n":
        return
    file.seek(0)
    file.truncate(file.read().rfind(b"\n") + 1)


def read(folder: str | Path) -> list[Record]:
    """All records of a folder; a half-written last line is left out."""
    path = Path(folder) / FILE_NAME
    if not path.exists():
        return []
    check_inside(path, path.parent)
    try:
        lines = path.read_bytes().decode().split("\n")[:-1]
        return [Record.from_json(line) for line in lines if line]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({cut(error)}); move it away to start anew") from None


def rewrite(folder: str | Path, records: Iterable[Record]) -> None:
    text = "".join(record.to_json() + "\n" for record in records)
    write_whole(Path(folder) / FILE_NAME, text)


def keep(folder: str | Path, wanted: Callable[[Record], bool]) -> None:
    """Drop the records that are not wanted; those that others add meanwhile come after them."""
    path = Path(folder) / FILE_NAME
    if not path.exists():
        return
    check_inside(path, path.parent)
    with locked(path):
        held = read(folder)
        kept = [record for record in held if wanted(record)]
        if len(kept) < len(held):
            rewrite(folder, kept)


def machine() -> dict[str, Any]:
    """The machine a number was measured on, in a few words."""
    import torch

    found: dict[str, Any] = {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found
