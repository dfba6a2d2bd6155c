"""The tables behind the main ones: inside the trained models, and what they cost."""

from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import Any

from pidformer.report.run import PublishedRun, Run, trained
from pidformer.report.table_view import (
    NOTHING,
    CellView,
    Column,
    LineView,
    Sources,
    TableView,
    about_text,
    minus,
)
from pidformer.results import Record
from pidformer.robustness.compare import Group, Rows, group_runs, named_apart


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
    if not lines:
        return None
    return TableView(
        title="Inside the trained models",
        caption="Token similarity (1: all tokens alike) and effective rank (1: all on one line, "
        "whatever their signs) in the last layer; the smallest real part and largest imaginary "
        "part of the attention matrices' eigenvalues kappa; the largest radius of the closed loop "
        "with the run's gains, and the share of modes outside the unit circle, per cent. Small: "
        "the range over training seeds.",
        columns=(Column("Model"), *(column for *_, column in _INSIDE)),
        lines=tuple(lines),
    )


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
    if not lines:
        return None
    return TableView(
        title="What it cost",
        caption="Mean over runs. Training speed is the median over the log; training time is "
        "computed from it and leaves out evaluation and start. Measuring is the sum over the "
        "run's rows.",
        columns=(
            Column("Model"),
            Column("Training", "images or tokens per second"),
            Column("Training time", "per run"),
            Column("Measuring", "per run"),
        ),
        lines=tuple(lines),
    )


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
    """Images or tokens per second."""
    return record.metrics.get("images_per_second", record.metrics.get("tokens_per_second"))


def _machines(runs: Sequence[Run]) -> str:
    names = dict.fromkeys(
        str(machine.get("gpu") or f"{machine.get('cores')} cores")
        for run in runs
        for r in run.records
        if isinstance(machine := r.settings.get("machine"), dict)
    )
    return ", ".join(names)
