"""The paper's tables from collected runs, each number tied to its records."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pidformer.data.imagenet import SUBSETS, imagenet_classes
from pidformer.report.paper import TABLE1, TABLE2, TABLE3, Pair
from pidformer.report.run import Run
from pidformer.report.table1 import TITLES, Cell, Line, difference_texts, table1
from pidformer.report.views import (
    NOT_MEASURED,
    CellView,
    Column,
    LineView,
    Note,
    Sources,
    TableView,
)
from pidformer.results import Record
from pidformer.robustness.compare import Group, Rows, group_runs
from pidformer.robustness.threat import pixel_text
from pidformer.runs.folder import read_model_info
from pidformer.statistics import Difference, mean_over_seeds

PAPER_ROWS = tuple(dict.fromkeys(row for row, _ in TABLE1))
_OF_IMAGENET = (*SUBSETS, "imagenet-c")


class Condition(NamedTuple):
    """What the rows of one Table 1 share."""

    data_hash: str
    seed: int
    limit: int | None
    domain: str


class Robustness(NamedTuple):
    """Models side by side under one condition."""

    condition: Condition
    groups: list[Group]
    lines: list[Line]
    curves: list[Group]
    """The same models with their rows over budgets."""


def robustness(runs: Sequence[Run]) -> list[Robustness]:
    """A table for each condition that was measured, that of most models first."""
    by_condition: dict[Condition, list[Rows]] = {}
    for run in runs:
        for condition, rows in _rows_of(run):
            by_condition.setdefault(condition, []).append(rows)
    found = []
    for condition, all_rows in by_condition.items():
        plain = [{n: r for n, r in rows.items() if "@" not in n} for rows in all_rows]
        curves = [{n: r for n, r in rows.items() if "@" in n} for rows in all_rows]
        groups = named_apart(group_runs(plain))
        lines = sorted(table1(groups), key=_order) if groups else []
        found.append(Robustness(condition, groups, lines, named_apart(group_runs(curves))))
    return sorted(found, key=lambda r: (-len(r.groups), r.condition.domain != "pixel"))


def named_apart(groups: Sequence[Group]) -> list[Group]:
    """Models of the same name get their gains, or a number, behind it."""
    found: list[Group] = []
    labels = [group.label for group in groups]
    for place, group in enumerate(groups):
        label = group.label
        if labels.count(label) > 1:
            about = group_about(group)
            extra = about.get("gains") or "softmax"
            label = f"{label} ({extra})"
            if label in [other.label for other in found]:
                label = f"{group.label} ({place + 1})"
        found.append(Group(label, group.runs))
    return found


def _rows_of(run: Run) -> list[tuple[Condition, Rows]]:
    """Rows by condition and by variant (other gains, averaged weights)."""
    found: dict[tuple[Any, ...], dict[str, Record]] = {}
    for record in run.of("robustness"):
        m = record.measurement
        condition = Condition(str(m.data_hash), m.seed or 0, m.limit, m.domain)
        rows = found.setdefault((condition, m.gains, record.settings.get("ema", False)), {})
        name = str(m.row)
        if name in rows and rows[name].measurement.threat != m.threat:
            name = f"{name}, {m.threat}"
        rows[name] = record
    return [(key[0], rows) for key, rows in found.items()]


def _order(line: Line) -> tuple[int, str]:
    names = [TITLES.get(row, row) for row in PAPER_ROWS]
    return (names.index(line.title), "") if line.title in names else (len(names), "")


def robustness_view(found: Robustness, runs: Sequence[Run], sources: Sources) -> TableView:
    """Table 1, with the paper's numbers beside ours and the rows that are missing."""
    groups, condition = found.groups, found.condition
    columns = [Column("Row")]
    for place, group in enumerate(groups):
        columns.append(Column(group.label, about_text(group)))
        if place:
            columns.append(Column("Difference", f"to {groups[0].label}"))
    columns.append(Column("The paper", "ImageNet, softmax / PID", is_paper=True))
    shown: set[tuple[str, str]] = set()
    lines = []
    for line in found.lines:
        row = row_of(line)
        shown.add((row, line.metric))
        cells = []
        for place, group in enumerate(groups):
            cells.append(_cell(line.cells[place], _source(group, row, found, sources)))
            if place:
                cells.append(_difference(line.differences[place]))
        cells.append(_paper(TABLE1.get((row, line.metric))))
        metric = line.metric + _budget(groups, row)
        metric += ", lower is better" if line.lower_is_better else ""
        lines.append(LineView(line.title, metric, tuple(cells), line.threat))
    missing = [key for key in TABLE1 if key[0] not in {row for row, _ in shown}]
    for row, metric in missing:
        if metric == "top-5":
            continue
        blank = [NOT_MEASURED, *[cell for _ in groups[1:] for cell in (NOT_MEASURED, CellView(""))]]
        title = TITLES.get(row, row)
        lines.append(LineView(title, metric, (*blank, _paper(TABLE1[row, metric]))))
    first = next(iter(groups[0].runs[0].values()))
    return TableView(
        title="Table 1: accuracy, clean and under threats",
        caption=_caption(first, condition, groups),
        columns=tuple(columns),
        lines=tuple(lines),
        notes=tuple(_missing_notes({row for row, _ in missing}, runs, first)),
    )


def _budget(groups: Sequence[Group], row: str) -> str:
    """The budget of a row's attack, as ", eps 0.05"."""
    found = (run[row].settings.get("eps") for group in groups for run in group.runs if row in run)
    eps = next((value for value in found if value is not None), None)
    return "" if eps is None else f", eps {pixel_text(eps)}"


def row_of(line: Line) -> str:
    """The row that a line of Table 1 is of."""
    names = {title: row for row, title in TITLES.items()}
    return names.get(line.title, line.title)


def _caption(first: Record, condition: Condition, groups: Sequence[Group]) -> str:
    limit = "" if condition.limit is None else f" (a sample, seed {condition.seed})"
    many = any(len(group.runs) > 1 for group in groups)
    over = "over training seeds (Student's t)" if many else "over images (Wilson)"
    return (
        f"Per cent on {first.metrics['images']:.0f} images of {first.settings.get('data')}{limit}; "
        f"attacks in the {condition.domain} domain. Small: 95 % intervals {over}; differences by "
        "bootstrap over images" + (" and seeds" if many else "") + ", p from "
        + ("a t-test over seeds" if many else "McNemar's test")
        + ". Bold differences: the interval leaves out zero. The last column is the paper's own "
        "(DeiT-tiny on ImageNet, its budgets), not measured here."
    )  # fmt: skip


def _missing_notes(rows: set[str], runs: Sequence[Run], first: Record) -> list[Note]:
    if not rows:
        return []
    folders = shlex.join(str(run.folder) for run in runs if run.task == "classification")
    data = first.settings.get("data")
    place = "" if data == "digits" else f" --data {shlex.quote(data or 'DIR')}"
    known = all(_knows_imagenet(run) for run in runs if run.recipe is not None)
    sets = [TITLES.get(row, row) for row in PAPER_ROWS if row in rows and row in _OF_IMAGENET]
    attacks = [TITLES.get(row, row) for row in PAPER_ROWS if row in rows - set(_OF_IMAGENET)]
    notes = []
    if attacks:
        command = f"pidformer evaluate {folders} --suite paper{place}"
        notes.append(Note(f"Not measured: {', '.join(attacks)}. This would:", command))
    if sets and known:
        command = f"pidformer evaluate {folders} --suite paper --data DIR"
        text = f"Not measured: {', '.join(sets)}. With the sets in DIR, this would:"
        notes.append(Note(text, command))
    elif sets:
        notes.append(
            Note(f"Not to be measured here: {', '.join(sets)} need a model of ImageNet's classes.")
        )
    return notes


def _knows_imagenet(run: Run) -> bool:
    path = run.folder / "model.json"
    if run.recipe is None or not path.exists():
        return False
    classes = read_model_info(run.folder).get("classes", ())
    return len(set(classes) & set(imagenet_classes())) > 200


def _source(group: Group, row: str, found: Robustness, sources: Sources) -> str | None:
    records = [r for run in group.runs for name, r in run.items() if _belongs(name, row)]
    section = f"Table 1, {group.label}, {found.condition.domain} domain"
    return sources.add(section, row, records)


def _belongs(name: str, row: str) -> bool:
    return name == row or name.startswith(f"{row}/")


def _cell(cell: Cell | None, source: str | None) -> CellView:
    if cell is None:
        return NOT_MEASURED
    small = "" if math.isnan(cell.low) else f"{cell.low:.1f} to {cell.high:.1f}"
    return CellView(f"{cell.value:.2f}", small, source)


def _difference(found: Difference | None) -> CellView:
    if found is None:
        return CellView("")
    _, p_value = difference_texts(found)
    small = f"{found.low:+.1f} to {found.high:+.1f}" + (f", p {p_value}" if p_value else "")
    return CellView(minus(f"{found.points:+.2f}"), minus(small), is_clear=is_clear(found))


def is_clear(found: Difference) -> bool:
    """Whether the 95 % interval leaves out zero."""
    return found.low > 0 or found.high < 0


def minus(text: str) -> str:
    """With a proper minus sign."""
    return text.replace("-", "\u2212")


def _paper(pair: Pair | None) -> CellView:
    return CellView("" if pair is None else f"{pair[0]:.2f} / {pair[1]:.2f}", is_paper=True)


def group_about(group: Group) -> Mapping[str, Any]:
    return next(iter(group.runs[0].values())).settings


def is_controlled(group: Group) -> bool:
    gains = group_about(group).get("gains")
    return bool(gains) and "PIDGains(p=0.0, i=0.0, d=0.0" not in str(gains)


def about_text(group: Group) -> str:
    """What a model is, for the head of its column."""
    gains = group_about(group).get("gains")
    kind = short_gains(str(gains)) if gains else "no controller"
    seeds = len(group.runs)
    return f"{kind}; {seeds} seed{'s' if seeds > 1 else ''}"


def short_gains(text: str) -> str:
    """ "PIDGains(p=0.6, i=0.1, d=0.05, beta=1.0)" -> "p 0.6, i 0.1, d 0.05, beta 1.0"."""
    if text.count("PIDGains") > 1:
        return "gains by layer"
    return text.removeprefix("PIDGains(").removesuffix(")").replace("=", " ")


def other_table(runs: Sequence[Run], sources: Sources, *, kind: str) -> TableView | None:
    """Table 2 (segmentation) or 3 (language): a line for each model; None without any record."""
    number, name, metric, places, paper, unit = _OTHERS[kind]
    models: list[Rows] = []
    for run in runs:
        rows: dict[str, Record] = {}
        for record in _plain_records(run, kind):
            if metric in record.metrics and record.settings.get(name) in places:
                rows[str(record.settings[name])] = record
        models.append(rows)
    groups = named_apart(group_runs(models))
    if not groups:
        return None
    lines = []
    for group in groups:
        cells = []
        for place in places:
            records = [run[place] for run in group.runs if place in run]
            source = sources.add(f"Table {number}, {group.label}", place, records)
            cells.append(mean_cell([r.metrics[metric] for r in records], source))
        lines.append(LineView(group.label, about_text(group), tuple(cells)))
    for which, label in enumerate(("softmax", "PID")):
        cells = [CellView(f"{paper[place][which]:.2f}", is_paper=True) for place in places]
        lines.append(LineView(f"the paper, {label}", "the paper's own, not measured", tuple(cells)))
    first = next(iter(groups[0].runs[0].values()))
    protocol = first.settings.get("protocol")
    how = f" ({protocol} windows)" if protocol else ""
    return TableView(
        title=f"Table {number}: {kind}",
        caption=f"{unit} on {first.settings.get('data')}{how}; small: 95 % intervals over training "
        f"seeds where there are several. The paper's lines are for {_PAPER_SETS[kind]}.",
        columns=(Column("Model"), *(Column(_PLACES[place]) for place in places)),
        lines=tuple(lines),
    )


def _plain_records(run: Run, kind: str) -> list[Record]:
    """Those of the undisturbed set; of language only the protocol nearest to the paper's."""
    found = [
        r
        for r in run.of(kind)
        if r.measurement.noise is None
        and (kind != "segmentation" or r.settings.get("row") in (None, "clean"))
    ]
    used = {r.settings.get("protocol") for r in found}
    best = next((name for name in PROTOCOLS if name in used), None)
    return [r for r in found if r.settings.get("protocol") == best]


PROTOCOLS = ("sliding", "strided", "segments", "documents")
_OTHERS: Mapping[str, tuple[int, str, str, tuple[str, ...], Mapping[str, Pair], str]] = {
    "segmentation": (2, "views", "miou", ("single", "multi"), TABLE2, "mIoU, per cent,"),
    "language": (3, "split", "ppl", ("valid", "test"), TABLE3, "Perplexity"),
}
"""Number of the table, setting and metric of its records, columns, the paper's numbers, unit."""
_PLACES = {"single": "single scale", "multi": "multi scale", "valid": "valid", "test": "test"}
_PAPER_SETS = {"segmentation": "ADE20K", "language": "WikiText-103"}


def mean_cell(values: Sequence[float], source: str | None, digits: int = 2) -> CellView:
    """Mean over seeds with its 95 % interval."""
    if not values:
        return NOT_MEASURED
    found = mean_over_seeds(values)
    small = "" if math.isnan(found.low) else f"{found.low:.{digits}f} to {found.high:.{digits}f}"
    return CellView(f"{found.mean:.{digits}f}", small, source)
