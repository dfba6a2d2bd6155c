"""The paper's Table 1 from records: a line for each row and metric, a column for each model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pidformer.results import Record
from pidformer.robustness.compare import Group, compare, compare_mean
from pidformer.robustness.corruptions import CORRUPTIONS, SEVERITIES, mce
from pidformer.statistics import Difference, mean_over_seeds

TITLES = {
    "clean": "Clean",
    "fgsm": "FGSM",
    "pgd": "PGD",
    "spsa": "SPSA",
    "sld": "SLD",
    "noise": "Noise",
    "autoattack": "AutoAttack",
    "imagenet-a": "ImageNet-A",
    "imagenet-r": "ImageNet-R",
    "imagenet-o": "ImageNet-O",
    "ood": "Out of distribution",
    "corruption": "Corruptions",
    "imagenet-c": "ImageNet-C",
    "tiny-imagenet-c": "Tiny-ImageNet-C",
    "cifar-10-c": "CIFAR-10-C",
    "cifar-100-c": "CIFAR-100-C",
}
_METRICS = {
    "top1": ("top-1", False),
    "top5": ("top-5", False),
    "aupr": ("AUPR", False),
    "auroc": ("AUROC", False),
    "fpr95": ("FPR95", True),
}


@dataclass(frozen=True)
class Cell:
    """A number, and its 95 % interval: over images for one run, over seeds for several."""

    value: float
    low: float
    high: float
    seeds: int

    def __str__(self) -> str:
        if math.isnan(self.low):
            return f"{self.value:.2f}"
        return f"{self.value:.2f} [{self.low:.1f}, {self.high:.1f}]"


@dataclass(frozen=True)
class Line:
    """One line of the table; `differences` are to the first column."""

    title: str
    metric: str
    lower_is_better: bool
    threat: str
    cells: tuple[Cell | None, ...]
    differences: tuple[Difference | None, ...]


def table1(groups: Sequence[Group]) -> list[Line]:
    """Lines in the order of the records."""
    rows = list(dict.fromkeys(row for group in groups for run in group.runs for row in run))
    lines: list[Line] = []
    stems = list(dict.fromkeys(_stem(row) for row in rows))
    for stem in stems:
        if stem in rows:
            lines += _plain_lines(groups, stem)
        else:
            lines.append(_corruption_line(groups, stem, [r for r in rows if _stem(r) == stem]))
    return lines


def _plain_lines(groups: Sequence[Group], row: str) -> Iterable[Line]:
    for metric, (title, lower) in _METRICS.items():
        cells = tuple(_cell(group, row, metric) for group in groups)
        if not any(cells) or ("@" in row and metric != "top1"):
            continue
        differences: tuple[Difference | None, ...] = tuple(
            compare(groups[0], group, row) if metric == "top1" and place else None
            for place, group in enumerate(groups)
        )
        yield Line(_title(row), title, lower, _threat_of(groups, row), cells, differences)


def _corruption_line(groups: Sequence[Group], stem: str, rows: Sequence[str]) -> Line:
    """All corruptions of a set as one number: mCE for ImageNet-C, else the mean error."""
    is_mce = stem == "imagenet-c" and len(rows) == len(CORRUPTIONS) * len(SEVERITIES)
    score: Callable[[Mapping[str, Record]], float] = _mce if is_mce else _mean_error
    cells: list[Cell | None] = []
    for group in groups:
        whole = [run for run in group.runs if all(row in run for row in rows)]
        values = [score({row: run[row] for row in rows}) for run in whole]
        cells.append(_over_seeds(values) if values else None)
    differences = tuple(
        _error_difference(compare_mean(groups[0], group, rows)) if place and not is_mce else None
        for place, group in enumerate(groups)
    )
    count = f"{len(rows)} of {len(CORRUPTIONS)} x {len(SEVERITIES)}"
    metric = "mCE" if is_mce else "mean error"
    return Line(TITLES.get(stem, stem), metric, True, count, tuple(cells), differences)


def _error_difference(gain: Difference | None) -> Difference | None:
    """A gain in accuracy is a loss in error."""
    if gain is None:
        return None
    return gain._replace(points=-gain.points, low=-gain.high, high=-gain.low)


def _mce(rows: Mapping[str, Record]) -> float:
    errors: dict[str, list[float]] = {name: [] for name in CORRUPTIONS}
    for name in CORRUPTIONS:
        for severity in SEVERITIES:
            top1 = rows[f"imagenet-c/{name}/{severity}"].metrics["top1"]
            errors[name].append(1 - top1 / 100)
    return mce(errors)


def _mean_error(rows: Mapping[str, Record]) -> float:
    return sum(100 - record.metrics["top1"] for record in rows.values()) / len(rows)


def _cell(group: Group, row: str, metric: str) -> Cell | None:
    values = group.values(row, metric)
    if not values:
        return None
    if len(values) > 1:
        cell = _over_seeds(values)  # Student's t knows nothing of 0 and 100 %
        return replace(cell, low=max(cell.low, 0.0), high=min(cell.high, 100.0))
    (low,), (high,) = (
        group.values(row, f"{metric}_{end}") or [math.nan] for end in ("low", "high")
    )
    return Cell(values[0], low, high, 1)


def _over_seeds(values: Sequence[float]) -> Cell:
    found = mean_over_seeds(values)
    return Cell(found.mean, found.low, found.high, found.seeds)


def _threat_of(groups: Sequence[Group], row: str) -> str:
    for group in groups:
        for run in group.runs:
            if row in run:
                return run[row].measurement.threat or ""
    return ""


def _stem(row: str) -> str:
    """The set of a corrupted row ("imagenet-c/fog/3"), else the row itself."""
    parts = row.split("/")
    return parts[0] if len(parts) == 3 and parts[2].isdigit() else row


def _title(row: str) -> str:
    name, at, budget = row.partition("@")
    return TITLES.get(name, name) + (f" {budget}" if at else "")


def rich_table(lines: Sequence[Line], groups: Sequence[Group], width: int | None = None) -> Table:
    """For a terminal. Differences are to the first column; ↓ marks what is better when lower.

    Where `width` columns are too few for it, intervals go below their numbers.
    """
    table = _rich_table(lines, groups, " ")
    if width is None or Console(width=10_000).measure(table).maximum <= width:
        return table
    return _rich_table(lines, groups, "\n")


def _rich_table(lines: Sequence[Line], groups: Sequence[Group], gap: str) -> Table:
    table = Table(
        box=SIMPLE_HEAD,
        caption=_caption(groups),
        caption_justify="left",
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("")
    table.add_column("")
    for place, group in enumerate(groups):
        seeds = f"{gap}({len(group.runs)} seeds)" if len(group.runs) > 1 else ""
        table.add_column(group.label + seeds, justify="right")
        if place:
            table.add_column("difference", justify="right")
            table.add_column("p", justify="right")
    previous = None
    for line in lines:
        metric = line.metric + (" ↓" if line.lower_is_better else "")
        cells = [line.title if line.title != previous else "", metric]
        for place, (cell, difference) in enumerate(zip(line.cells, line.differences, strict=True)):
            cells.append("-" if cell is None else str(cell))
            if place:
                cells += difference_texts(difference)
        table.add_row(*(cell.replace(" [", f"{gap}[").replace("[", r"\[") for cell in cells))
        previous = line.title
    return table


def difference_texts(difference: Difference | None) -> tuple[str, str]:
    """ "+1.20 [+0.4, +2.0]" and its p-value: McNemar's for one pair, the t-test's over seeds."""
    if difference is None:
        return "", ""
    text = f"{difference.points:+.2f} [{difference.low:+.1f}, {difference.high:+.1f}]"
    p_value = difference.mcnemar[0] if len(difference.mcnemar) == 1 else difference.seeds_p
    return text, "" if math.isnan(p_value) else f"{p_value:.2g}"


def _caption(groups: Sequence[Group]) -> str:
    first = next(iter(groups[0].runs[0].values()))
    images = f"{first.metrics['images']:.0f} images"
    domains = {r.settings.get("domain") for g in groups for run in g.runs for r in run.values()} - {
        None
    }
    notes = [f"per cent; {images}; domain {', '.join(sorted(map(str, domains))) or 'pixel'}"]
    if any(len(group.runs) > 1 for group in groups):
        notes.append("95 % intervals over seeds (t); differences: bootstrap over images and seeds")
    else:
        notes.append("95 % intervals over images (Wilson); differences: bootstrap, McNemar's p")
    recipes = {run_record.settings.get("recipe") for g in groups for run_record in _firsts(g)}
    if len(groups) > 1 and len(recipes) > 1:
        notes.append("the models are no twins: their recipes differ in more than gains and seed")
    return "; ".join(notes)


def _firsts(group: Group) -> list[Record]:
    return [next(iter(run.values())) for run in group.runs]


def as_data(lines: Sequence[Line], groups: Sequence[Group]) -> list[dict[str, Any]]:
    """For machines: one object a line."""
    labels = [group.label for group in groups]
    found = []
    for line in lines:
        cells = {
            label: None
            if cell is None
            else {"value": cell.value, "low": _number(cell.low), "high": _number(cell.high)}
            | {"seeds": cell.seeds}
            for label, cell in zip(labels, line.cells, strict=True)
        }
        differences = {
            label: {
                "points": d.points,
                "low": d.low,
                "high": d.high,
                "mcnemar": list(d.mcnemar),
                "seeds_p": _number(d.seeds_p),
            }
            for label, d in zip(labels, line.differences, strict=True)
            if d is not None
        }
        found.append(
            {"row": line.title, "metric": line.metric, "threat": line.threat}
            | {"models": cells, "differences": differences}
        )
    return found


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
