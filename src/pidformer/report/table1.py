"""The paper's Table 1 from records: a line for each row and metric, a column for each model."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from pidformer.display import plain_table
from pidformer.report.metrics import Metric, compare_accuracy, compare_error, merged_corruptions
from pidformer.report.table_view import NONE, number_text
from pidformer.report.templates import TEXTS
from pidformer.results import Record
from pidformer.robustness.compare import Group, Rows, has_outcomes
from pidformer.robustness.corruptions import CORRUPTIONS, SEVERITIES, mce
from pidformer.statistics import Crossed, Mean

TITLES: Mapping[str, str] = TEXTS["titles"]
_METRICS = {
    "top1": ("top-1", False),
    "top5": ("top-5", False),
    "aupr": ("AUPR", False),
    "auroc": ("AUROC", False),
    "fpr95": ("FPR95", True),
}


class Table1Line(NamedTuple):
    """One line of the table; `differences` are to the first column, or to each model's twin.

    The interval of a cell is over images for one run, over seeds for several.
    """

    row: str
    title: str
    metric: str
    lower_is_better: bool
    threat: str
    cells: tuple[Mean | None, ...]
    differences: tuple[Crossed | None, ...]

    def verdict(self, place: int) -> int:
        """Whether a model is clearly better (1) or worse (-1) than what it is compared with."""
        found = self.differences[place]
        return 0 if found is None else -found.verdict if self.lower_is_better else found.verdict


def table1(groups: Sequence[Group], twins: Sequence[Group] | None = None) -> list[Table1Line]:
    """Lines in the order of the records; `twins`: which of the groups each is compared with."""
    names = [group.label for group in groups]
    places = [0 if twins is None else names.index(twins[k].label) for k in range(len(groups))]
    groups = _with_merged_corruptions(groups)
    rows = dict.fromkeys(row for group in groups for run in group.runs for row in run)
    lines = []
    for row in rows:
        first = next(run[row] for group in groups for run in group.runs if row in run)
        for metric in _metrics(groups, row, first):
            cells = tuple(_cell(metric, group) for group in groups)
            differences = tuple(
                metric.difference(groups[place], group) if groups[place] is not group else None
                for place, group in zip(places, groups, strict=True)
            )
            threat = first.measurement.threat or ""
            if "survived" in first.details:
                threat = f"{first.metrics['rows']:.0f} of {len(CORRUPTIONS)} x {len(SEVERITIES)}"
            about = (row, _title(row), metric.title, metric.better < 0, threat)
            lines.append(Table1Line(*about, cells, differences))
    return lines


def _with_merged_corruptions(groups: Sequence[Group]) -> list[Group]:
    """All corruptions of a set as one record, of the runs that have them all."""
    rows = dict.fromkeys(row for group in groups for run in group.runs for row in run)
    wanted: dict[str, list[str]] = {}
    for row in rows:
        parts = row.split("/")  # "imagenet-c/fog/3"
        if len(parts) == 3 and parts[2].isdigit():
            wanted.setdefault(parts[0], []).append(row)
    merged = {row for own in wanted.values() for row in own}

    def with_merged(run: Rows) -> Rows:
        kept = {row: record for row, record in run.items() if row not in merged}
        for name, own in wanted.items():
            if all(row in run for row in own):
                kept[name] = merged_corruptions([run[row] for row in own])
        return kept

    return [Group(group.label, tuple(map(with_merged, group.runs))) for group in groups]


def _metrics(groups: Sequence[Group], row: str, first: Record) -> Iterable[Metric]:
    """What the records of a row tell: of corruptions one number, mCE or the mean error."""
    find = partial(_row_of, row=row)
    records = [record for group in groups for run in group.runs if (record := find(run))]
    has_items = all(map(has_outcomes, records))
    if "survived" in first.details:
        whole = len(CORRUPTIONS) * len(SEVERITIES)
        if row == "imagenet-c" and first.metrics["rows"] == whole:
            yield Metric(title="mCE", find=find, read=_mce, better=-1)
        else:
            yield Metric(
                title="mean error",
                find=find,
                read=lambda record: 100 - record.metrics["top1"],
                compare=compare_error if has_items else None,
                better=-1,
            )
        return
    for name, (title, is_lower) in _METRICS.items():
        if not any(name in r.metrics for r in records) or ("@" in row and name != "top1"):
            continue
        yield Metric(
            title=title,
            find=partial(_row_of, row=row, name=name),
            read=partial(_read, name=name),
            compare=compare_accuracy if name == "top1" and has_items else None,
            better=-1 if is_lower else 1,
        )


def _row_of(run: Rows, row: str, name: str = "top1") -> Record | None:
    record = run.get(row)
    return record if record is not None and name in record.metrics else None


def _read(record: Record, name: str) -> float:
    return record.metrics[name]


def _mce(record: Record) -> float:
    return mce(
        {
            name: [1 - record.metrics[f"top1/{name}/{severity}"] / 100 for severity in SEVERITIES]
            for name in CORRUPTIONS
        }
    )


def _cell(metric: Metric, group: Group) -> Mean | None:
    found = metric.mean(group)
    if found is None:
        return None
    if found.seeds > 1:
        low, high = found.low, found.high
        if metric.title != "mCE":  # Student's t knows nothing of 0 and 100 %
            low, high = max(low, 0.0), min(high, 100.0)
        return found._replace(low=low, high=high)
    (record,) = metric.records(group)
    name = next((n for n, (title, _) in _METRICS.items() if title == metric.title), None)
    low, high = (record.metrics.get(f"{name}_{end}", math.nan) for end in ("low", "high"))
    return found._replace(low=low, high=high)


def _title(row: str) -> str:
    name, at, budget = row.partition("@")
    return TITLES.get(name, name) + (f" {budget}" if at else "")


def rich_table(
    lines: Sequence[Table1Line], groups: Sequence[Group], width: int | None = None
) -> Table:
    """For a terminal. Differences are to the first column; ↓ marks what is better when lower.

    Where `width` columns are too few for it, intervals go below their numbers.
    """
    table = _rich_table(lines, groups, " ")
    if width is None or Console(width=10_000).measure(table).maximum <= width:
        return table
    return _rich_table(lines, groups, "\n")


def _rich_table(lines: Sequence[Table1Line], groups: Sequence[Group], gap: str) -> Table:
    table = plain_table("", "", caption=_caption(groups), padding=(0, 1, 0, 0))
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
            cells.append(NONE if cell is None else number_text(cell, interval_digits=1))
            if place:
                cells += difference_texts(difference)
        table.add_row(*(cell.replace(" [", f"{gap}[").replace("[", r"\[") for cell in cells))
        previous = line.title
    return table


def difference_texts(difference: Crossed | None) -> tuple[str, str]:
    """ "+1.20 [+0.4, +2.0]" and its p-value; a number without images and seeds has neither."""
    if difference is None:
        return "", ""
    text = number_text(difference, interval_digits=1, sign="+")
    return text, "" if math.isnan(difference.p) else f"{difference.p:.2g}"


def _caption(groups: Sequence[Group]) -> str:
    first = next(iter(groups[0].runs[0].values()))
    images = f"{first.metrics['images']:.0f} images"
    records = [r for group in groups for run in group.runs for r in run.values()]
    domains = {r.settings["domain"] for r in records if r.settings.get("domain") is not None}
    notes = [f"per cent; {images}; domain {', '.join(sorted(map(str, domains))) or 'pixel'}"]
    if any(len(group.runs) > 1 for group in groups):
        notes.append("95 % intervals over seeds (t); of differences over seeds and images (t)")
    else:
        notes.append("95 % intervals over images (Wilson; of differences paired t)")
    firsts = [next(iter(run.values())) for group in groups for run in group.runs]
    recipes = {record.settings.get("recipe") for record in firsts}
    if len(groups) > 1 and len(recipes) > 1:
        notes.append("the models are no twins: their recipes differ in more than gains and seed")
    return "; ".join(notes)


def as_data(lines: Sequence[Table1Line], groups: Sequence[Group]) -> list[dict[str, Any]]:
    """For machines: one object per line."""
    labels = [group.label for group in groups]
    return [
        {
            "row": line.title,
            "metric": line.metric,
            "threat": line.threat,
            "models": {
                label: None if cell is None else _plain(cell, "value")
                for label, cell in zip(labels, line.cells, strict=True)
            },
            "differences": {
                label: _plain(difference, "points")
                for label, difference in zip(labels, line.differences, strict=True)
                if difference is not None
            },
        }
        for line in lines
    ]


def _plain(found: Mean | Crossed, name: str) -> dict[str, Any]:
    """By name, the mean as `name`; JSON has no NaN."""
    numbers = {name if key == "mean" else key: value for key, value in found._asdict().items()}
    return {key: None if math.isnan(value) else value for key, value in numbers.items()}
