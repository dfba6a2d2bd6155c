"""Tables after the first: inside the trained models, their cost, segmentation and language."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from pidformer.report.collect import PublishedRun, Run, trained
from pidformer.report.metrics import MILLI, Metric, compare_loss, compare_miou
from pidformer.report.table_view import (
    NOTHING,
    CellView,
    Column,
    LineView,
    Sources,
    TableView,
    about_text,
    difference_cell,
    mean_cell,
    minus,
)
from pidformer.report.templates import TEXTS
from pidformer.results import Measurement, Record
from pidformer.robustness.compare import Group, Pairs, Rows, group_runs, named_apart, twins_of
from pidformer.statistics import Crossed


def analysed(runs: Sequence[Run]) -> list[Group]:
    """Models with "analysis" records, rows named by what was looked at; the newest of each."""
    models: list[Rows] = []
    for run in runs:
        by_variant: dict[Any, dict[str, Record]] = {}
        for record in run.of("analysis"):
            rows = by_variant.setdefault(record.settings.get("gains"), {})
            rows[str(record.settings.get("what"))] = record
        models += by_variant.values()
    return named_apart(group_runs(models))


def layers(record: Record) -> tuple[float, ...]:
    """similarity_layer_1, similarity_layer_2, ... of a record."""
    values: list[float] = []
    while (name := f"similarity_layer_{len(values) + 1}") in record.metrics:
        values.append(record.metrics[name])
    return tuple(values)


def certificate_view(groups: Sequence[Group], sources: Sources) -> TableView | None:
    """Where the eigenvalues of attention lie, and what the gains make of them."""
    lines = []
    for group in groups:
        cells = []
        for what, metric, digits, scale, _ in _INSIDE:
            records = [run[what] for run in group.runs if what in run]
            source = sources.add(f"Analysis, {group.label}", what, records)
            cells.append(_cell(records, metric, digits, source, scale))
        lines.append(LineView(group.label, about_text(group), tuple(cells)))
    columns = [column for *_, column in _INSIDE]
    return _by_model("Inside the trained models", TEXTS["tables"]["inside"], columns, lines)


def _by_model(
    title: str, caption: str, columns: Sequence[Column], lines: Sequence[LineView]
) -> TableView | None:
    """A table with a line for each model; None without any."""
    return TableView(title, caption, (Column("Model"), *columns), tuple(lines)) if lines else None


def certificate_verdicts(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """What `certify` said of each run: (run, verdict)."""
    return [
        (str(run["certificate"].settings.get("label")), str(run["certificate"].details["verdict"]))
        for group in groups
        for run in group.runs
        if "certificate" in run and "verdict" in run["certificate"].details
    ]


def _last_layer(record: Record) -> float | None:
    found = layers(record)
    return found[-1] if found else None


_INSIDE: Sequence[tuple[str, Any, int, float, Column]] = (
    ("token_similarity", _last_layer, 3, 1, Column("Similarity", "last layer")),
    ("token_similarity", "effective_rank_last", 1, 1, Column("Effective rank", "last layer")),
    ("spectrum", "min_real", 3, 1, Column("min Re kappa")),
    ("spectrum", "max_imag", 3, 1, Column("max |Im kappa|")),
    ("certificate", "worst_radius", 3, 1, Column("Worst radius")),
    ("certificate", "share_outside", 1, 100, Column("Outside", "per cent")),
)
"""Part of an analysis, its metric (or what reads it), digits, factor, and the column it fills."""


def _cell(
    records: Sequence[Record], metric: Any, digits: int, source: str | None, scale: float
) -> CellView:
    read = metric if callable(metric) else lambda record: record.metrics.get(metric)
    values = [scale * value for record in records if (value := read(record)) is not None]
    if not values:
        return NOTHING
    mean = f"{sum(values) / len(values):.{digits}f}"
    spread = f"{min(values):.{digits}f} to {max(values):.{digits}f}" if len(values) > 1 else ""
    return CellView(minus(mean), minus(spread), source)


def cost_view(runs: Sequence[Run], sources: Sources) -> TableView | None:
    """What training and measuring took."""
    lines = []
    for group, members in trained(runs):
        lasts = [row["train"] for row in group.runs]
        source = sources.add(f"Training, {group.label}", "train", lasts)
        measuring = [
            sum(r.metrics.get("seconds", 0.0) for r in run.records if r.kind != "train")
            for run in members
        ]
        cells = (
            _mean(map(_speed, members), "{:,.0f}", source),
            _mean(map(training_seconds, members), "{:,.0f} s", source),
            _mean(measuring, "{:,.0f} s", None) if any(measuring) else NOTHING,
        )
        lines.append(LineView(group.label, _machines(members), cells))
    columns = (
        Column("Training", "images or tokens per second"),
        Column("Training time", "per run"),
        Column("Measuring", "per run"),
    )
    return _by_model("What it cost", TEXTS["tables"]["cost"], columns, lines)


def _mean(values: Iterable[float | None], shape: str, source: str | None) -> CellView:
    found = [value for value in values if value is not None]
    return CellView(shape.format(fmean(found)), "", source) if found else NOTHING


def _speed(run: Run) -> float | None:
    found = [speed for record in run.of("train") if (speed := _logged_speed(record)) is not None]
    return median(found) if found else None


def training_seconds(run: Run) -> float | None:
    """Time in training steps, from the speeds that the log holds; evaluation aside."""
    if isinstance(run, PublishedRun):
        return run.header.metrics.get("train_seconds")
    recipe = run.recipe or {}
    size, last, total = recipe.get("data", {}).get("batch_size"), 0, 0.0
    for record in run.of("train"):
        speed = _logged_speed(record)
        is_text = "images_per_second" not in record.metrics
        length = (recipe.get("text") or {}).get("length", 1) if is_text else 1
        if not size or not speed or record.step is None:
            return None
        total += (record.step - last) * size * length / speed
        last = record.step
    return total or None


def _logged_speed(record: Record) -> float | None:
    return record.metrics.get("images_per_second", record.metrics.get("tokens_per_second"))


def _machines(runs: Sequence[Run]) -> str:
    names = dict.fromkeys(
        str(machine.get("gpu") or f"{machine.get('cores')} cores")
        for run in runs
        for r in run.records
        if isinstance(machine := r.settings.get("machine"), dict)
    )
    return ", ".join(names)


def other_table(runs: Sequence[Run], sources: Sources, *, kind: str) -> TableView | None:
    """Table 2 (segmentation) or 3 (language): a line for each model; None without any record."""
    about = _OTHERS[kind]
    plain = [_plain_records(run, kind) for run in runs]
    chosen = {}
    for place in about.paper:
        own = [[r for r in found if _place(r, about) == place] for found in plain]
        if any(own):
            chosen[place] = _most_measured(own)
    models: list[Rows] = [
        {place: r for r in found if r.measurement.anywhere == chosen.get(place := _place(r, about))}
        for found in plain
    ]
    groups = named_apart(group_runs(models))
    if not groups:
        return None
    metrics = [_other_metric(about, groups, place) for place in about.paper]
    columns = []
    for place in about.paper:
        columns += [Column(_PLACES[place]), Column("Difference", about.difference)]
    lines = []
    for group, twin in zip(groups, twins_of(groups), strict=True):
        cells = []
        for metric in metrics:
            records = metric.records(group)
            source = sources.add(f"Table {about.number}, {group.label}", metric.title, records)
            cells.append(mean_cell(metric.mean(group), source))
            data = {r.measurement.data_hash for g in (twin, group) for r in metric.records(g)}
            is_pair = twin is not group and len(data) == 1  # measured on the same data
            found = metric.difference(twin, group) if is_pair else None
            cells.append(difference_cell(found, metric.difference_digits))
        lines.append(LineView(group.label, about_text(group), tuple(cells)))
    for which, label in enumerate(("softmax", "PID")):
        cells = []
        for pair in about.paper.values():
            cells += [CellView(f"{pair[which]:.2f}", is_paper=True), CellView("")]
        lines.append(LineView(f"the paper, {label}", "the paper's own, not measured", tuple(cells)))
    protocol = groups[0].about.get("protocol")
    how = f" ({protocol} windows)" if protocol else ""
    facts = {"data": groups[0].about.get("data"), "how": how, **about._asdict()}
    caption = TEXTS["tables"]["other"].format(**facts)
    return _by_model(f"Table {about.number}: {kind}", caption, columns, lines)


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


def _plain_records(run: Run, kind: str) -> list[Record]:
    """Records of undisturbed data; for language, of the run's own text if there are any."""
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


def _most_measured(found: Sequence[Sequence[Record]]) -> Measurement:
    """What most runs have; of several the nearest to the paper's: sliding, whole, small strides."""
    counts = Counter(asked for own in found for asked in {r.measurement.anywhere for r in own})

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
    """The setting whose values are the columns."""
    metric: str
    unit: str
    paper_set: str
    compare: Callable[[Pairs], Crossed]
    items: str
    difference: str
    digits: int = 2
    contrast: Callable[[Record], float] | None = None

    @property
    def paper(self) -> Mapping[str, Sequence[float]]:
        return TEXTS["paper"][f"table{self.number}"]


_OTHERS: Mapping[str, _Other] = {
    "segmentation": _Other(2, "views", "miou", "mIoU, per cent,", "ADE20K", compare_miou,
                           "images (jackknife)", "points"),
    "language": _Other(3, "split", "ppl", "Perplexity", "WikiText-103", compare_loss,
                       "blocks of text", "of the loss, nats per token", digits=4,
                       contrast=lambda record: math.log(record.metrics["ppl"])),
}  # fmt: skip
_PLACES = {"single": "single scale", "multi": "multi scale", "valid": "valid", "test": "test"}
