"""The paper's Tables 2 and 3, segmentation and language, from collected runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pidformer.report.metrics import MILLI, Metric, compare_loss, compare_miou
from pidformer.report.paper import TABLE2, TABLE3, Pair
from pidformer.report.run import Run
from pidformer.report.table_view import (
    CellView,
    Column,
    LineView,
    Sources,
    TableView,
    about_text,
    difference_cell,
    mean_cell,
)
from pidformer.results import Measurement, Record
from pidformer.robustness.compare import Group, Pairs, Rows, group_runs, named_apart, twins_of
from pidformer.statistics import Crossed


def other_table(runs: Sequence[Run], sources: Sources, *, kind: str) -> TableView | None:
    """Table 2 (segmentation) or 3 (language): a line for each model; None without any record."""
    about = _OTHERS[kind]
    plain = {id(run): _plain_records(run, kind) for run in runs}
    chosen = {}
    for place in about.paper:
        own = [[r for r in found if _place(r, about) == place] for found in plain.values()]
        if any(own):
            chosen[place] = _most_measured(own)
    models: list[Rows] = [
        {place: r for r in found for place in [_place(r, about)] if _asked(r) == chosen.get(place)}
        for found in plain.values()
    ]
    groups = named_apart(group_runs(models))
    if not groups:
        return None
    metrics = [_other_metric(about, groups, place) for place in about.paper]
    lines = []
    for group, twin in zip(groups, twins_of(groups), strict=True):
        cells = []
        for metric in metrics:
            records = metric.records(group)
            source = sources.add(f"Table {about.number}, {group.label}", metric.title, records)
            cells.append(mean_cell(metric.mean(group), source))
            found = _other_difference(metric, twin, group)
            cells.append(difference_cell(found, metric.difference_digits))
        lines.append(LineView(group.label, about_text(group), tuple(cells)))
    for which, label in enumerate(("softmax", "PID")):
        cells = []
        for pair in about.paper.values():
            cells += [CellView(f"{pair[which]:.2f}", is_paper=True), CellView("")]
        lines.append(LineView(f"the paper, {label}", "the paper's own, not measured", tuple(cells)))
    first = next(iter(groups[0].runs[0].values()))
    protocol = first.settings.get("protocol")
    how = f" ({protocol} windows)" if protocol else ""
    columns = [Column("Model")]
    for place in about.paper:
        columns += [Column(_PLACES[place]), Column("Difference", about.difference)]
    return TableView(
        title=f"Table {about.number}: {kind}",
        caption=f"{about.unit} on {first.settings.get('data')}{how}; small: 95 % intervals over "
        "training seeds where there are several, those of differences (to the softmax twin) over "
        f"seeds and {about.items}. Bold: the interval leaves out zero and p is below 0.05. The "
        f"paper's lines are for {about.paper_set}.",
        columns=tuple(columns),
        lines=tuple(lines),
    )


def _other_metric(about: _Other, groups: Sequence[Group], place: str) -> Metric:
    records = [run[place] for group in groups for run in group.runs if place in run]
    return Metric(
        title=place,
        find=lambda run: run.get(place),
        read=lambda record: record.metrics[about.metric],
        compare=about.compare if all(_ITEMS & {*r.details} for r in records) else None,
        contrast=about.contrast,
        difference_digits=about.digits,
    )


def _other_difference(metric: Metric, twin: Group, group: Group) -> Crossed | None:
    """To the twin, where both were measured on the same data."""
    data = {r.measurement.data_hash for g in (twin, group) for r in metric.records(g)}
    return metric.difference(twin, group) if twin is not group and len(data) == 1 else None


def _plain_records(run: Run, kind: str) -> list[Record]:
    """Those of the undisturbed set; of language on the text it was trained on, if there are any."""
    found = [
        r
        for r in run.of(kind)
        if r.measurement.noise is None
        and "/window/" not in str(r.settings.get("row"))
        and (kind != "segmentation" or r.settings.get("row") in (None, "clean"))
    ]
    home = (run.recipe or {}).get("data", {}).get("name")
    return [r for r in found if Path(str(r.settings.get("data"))).name == home] or found


def _place(record: Record, about: _Other) -> str:
    place = str(record.settings.get(about.setting))
    return place if about.metric in record.metrics and place in about.paper else ""


def _asked(record: Record) -> Measurement:
    """What was measured, of whatever model and data."""
    return replace(record.measurement.question, data_hash=None, seed=None)


def _most_measured(found: Sequence[Sequence[Record]]) -> Measurement:
    """What most runs have; of several the nearest to the paper's: sliding, whole, small strides."""
    counts = Counter(asked for own in found for asked in {_asked(r) for r in own})

    def order(asked: Measurement) -> tuple[int, int, bool, int]:
        known = asked.protocol in PROTOCOLS
        protocol = PROTOCOLS.index(str(asked.protocol)) if known else len(PROTOCOLS)
        return (-counts[asked], protocol, asked.limit is not None, asked.stride or 0)

    return min(counts, key=order)


PROTOCOLS = ("sliding", "strided", "segments", "documents")


_ITEMS = {"areas", "block_nll", MILLI}
"""Details that hold what each image or block of text did."""


class _Other(NamedTuple):
    """Table 2 or 3: its records, how models are compared, and the paper's numbers."""

    number: int
    setting: str
    """Which of its values are the columns."""
    metric: str
    unit: str
    paper: Mapping[str, Pair]
    paper_set: str
    compare: Callable[[Pairs], Crossed]
    items: str
    difference: str
    digits: int = 2
    contrast: Callable[[Record], float] | None = None


_OTHERS: Mapping[str, _Other] = {
    "segmentation": _Other(2, "views", "miou", "mIoU, per cent,", TABLE2, "ADE20K", compare_miou,
                           "images (jackknife)", "points"),
    "language": _Other(3, "split", "ppl", "Perplexity", TABLE3, "WikiText-103", compare_loss,
                       "blocks of text", "of the loss, nats per token", digits=4,
                       contrast=lambda record: math.log(record.metrics["ppl"])),
}  # fmt: skip
_PLACES = {"single": "single scale", "multi": "multi scale", "valid": "valid", "test": "test"}
