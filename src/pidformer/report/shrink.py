"""Records made small enough for a repository, losing nothing that the page needs."""
# N images or blocks

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pidformer.results import Record
from pidformer.robustness.compare import pack_survived

MILLI = "block_millinats"
_INSIDE = ("similarity", "effective_rank", "verdict", "ratio", "initial_ratio", "output")
"""What is kept of an analysis, layer by layer."""


def newest(records: Sequence[Record]) -> list[Record]:
    """Of measurements made more than once, the last."""
    return list({record.measurement.question: record for record in records}.values())


def shrink(records: Sequence[Record]) -> list[Record]:
    """The same measurements with small details; the corruptions of a set become one record."""
    corrupted: dict[tuple[Any, ...], list[Record]] = {}
    kept: list[Record] = []
    for record in records:
        m = record.measurement
        parts = str(m.row).split("/")
        if record.kind == "robustness" and len(parts) == 3 and "right" in record.details:
            group = (parts[0], m.data_hash, m.limit, m.seed, m.domain)
            corrupted.setdefault(group, []).append(record)
        else:
            kept.append(_small(record))
    return kept + [merged_corruptions(group) for group in corrupted.values()]


def block_losses(record: Record) -> np.ndarray:
    """Loss of each block of text, in nats, (N,)."""
    if MILLI in record.details:
        return np.asarray(record.details[MILLI], dtype=float) / 1000
    return np.asarray(record.details.get("block_nll", []), dtype=float)


def merged_corruptions(records: Sequence[Record]) -> Record:
    """One record of many corruptions: the mean, each one's accuracy, and what each image did."""
    first = records[0]
    name = str(first.settings["row"]).split("/")[0]
    by_row = {
        "top1/" + str(r.settings["row"]).removeprefix(f"{name}/"): r.metrics["top1"]
        for r in records
    }
    metrics = {
        "top1": sum(by_row.values()) / len(records),
        "rows": float(len(records)),
        "images": first.metrics["images"],
        "seconds": sum(record.metrics.get("seconds", 0.0) for record in records),
    }
    names = {row.split("/")[1] for row in by_row}
    threat = f"{len(names)} corruptions, {len(records)} rows"
    settings = dict(first.settings) | {"row": name, "threat": threat, "eps": None}
    details = {"survived": pack_survived(records)}
    return replace(first, metrics=metrics | by_row, settings=settings, details=details)


def _small(record: Record) -> Record:
    details: Mapping[str, Any] = record.details
    if record.kind == "robustness":
        is_curve = "@" in str(record.settings.get("row"))
        details = {} if is_curve else _only(details, "right")
    elif record.kind == "segmentation":
        is_clean = record.settings.get("row") in (None, "clean")
        details = _only(details, "areas", "confusion") if is_clean else _only(details, "areas")
        details |= {"num_classes": len(record.details["confusion"])}
    elif record.kind == "language":
        losses = np.asarray(details.get("block_nll", []))
        details = _only(details, "block") | {MILLI: np.round(1000 * losses).astype(int).tolist()}
    elif record.kind == "analysis":
        details = _rounded(_only(details, *_INSIDE))
    return replace(record, details=details)


def _only(details: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: details[name] for name in names if name in details}


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _rounded(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(entry) for entry in value]
    return round(value, 5) if isinstance(value, float) else value
