"""What analysis found in the trained models: similarity by layer, spectra and certificates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pidformer.report.run import Run
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
from pidformer.report.training_curves import Curves
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


def similarity_curves(groups: Sequence[Group]) -> list[Curves]:
    """Token similarity by layer."""
    found = []
    for group in groups:
        lines = [layers(run["token_similarity"]) for run in group.runs if "token_similarity" in run]
        if lines:
            runs = tuple((tuple(range(1, len(line) + 1)), line) for line in lines)
            found.append(Curves(group.label, group.is_controlled, runs))
    return found


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
