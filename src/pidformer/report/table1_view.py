"""The paper's Table 1 from collected runs, and the findings in sentences."""

import shlex
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from pidformer.data.imagenet import SUBSETS, imagenet_classes
from pidformer.report.collect import Run, folders_text
from pidformer.report.figures import Curves, Drawn, differences_panel
from pidformer.report.table1 import TITLES, Table1Line, difference_texts, table1
from pidformer.report.table_view import (
    NOT_MEASURED,
    CellView,
    Column,
    LineView,
    Note,
    Sources,
    TableView,
    about_text,
    difference_cell,
    mean_cell,
    minus,
    number_text,
)
from pidformer.report.templates import TEXTS
from pidformer.results import Record
from pidformer.robustness.compare import Group, Rows, group_runs, named_apart, twins_of
from pidformer.robustness.threat import pixel_text
from pidformer.runs.folder import read_model_info

TABLE1: Mapping[tuple[str, str], Sequence[float]] = {
    (row, metric): pair
    for row, metrics in TEXTS["paper"]["table1"].items()
    for metric, pair in metrics.items()
}
"""The paper's numbers, (softmax, PID), by row and metric."""
PAPER_ROWS = tuple(TEXTS["paper"]["table1"])
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
    lines: list[Table1Line]
    curves: list[Group]
    """The same models with their rows over budgets."""


def robustness(runs: Sequence[Run]) -> list[Robustness]:
    """A table for each condition that was measured, that of most models first."""

    def order(line: Table1Line) -> int:
        return PAPER_ROWS.index(line.row) if line.row in PAPER_ROWS else len(PAPER_ROWS)

    by_condition: dict[Condition, list[Rows]] = {}
    for run in runs:
        for condition, rows in _rows_of(run):
            by_condition.setdefault(condition, []).append(rows)
    found = []
    for condition, all_rows in by_condition.items():
        plain = [{n: r for n, r in rows.items() if "@" not in n} for rows in all_rows]
        curves = [{n: r for n, r in rows.items() if "@" in n} for rows in all_rows]
        groups = named_apart(group_runs(plain))
        lines = sorted(table1(groups, twins_of(groups)), key=order) if groups else []
        found.append(Robustness(condition, groups, lines, named_apart(group_runs(curves))))
    return sorted(found, key=lambda r: (-len(r.groups), r.condition.domain != "pixel"))


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


def robustness_views(
    tables: Sequence[Robustness], runs: Sequence[Run], sources: Sources
) -> list[TableView]:
    """All Tables 1; the first lists the rows that none of them has."""
    measured = {line.row for table in tables for line in table.lines}
    listed = [measured, *[set(PAPER_ROWS)] * len(tables)]
    shown = [table for table in tables if table.groups]
    return [_view(one, runs, sources, known) for one, known in zip(shown, listed, strict=False)]


def _view(
    found: Robustness, runs: Sequence[Run], sources: Sources, measured: set[str]
) -> TableView:
    """Table 1, with the paper's numbers beside ours and the rows that were not `measured`."""
    groups, condition = found.groups, found.condition
    columns, empty = [Column("Row")], []
    pairs = zip(groups, twins_of(groups), strict=True)
    twins = {place: twin for place, (group, twin) in enumerate(pairs) if twin is not group}
    for place, group in enumerate(groups):
        columns.append(Column(group.label, about_text(group)))
        empty.append(NOT_MEASURED)
        if place in twins:
            columns.append(Column("Difference", f"to {twins[place].label}"))
            empty.append(CellView(""))
    columns.append(Column("The paper", "ImageNet, softmax / PID", is_paper=True))
    lines = []
    for line in found.lines:
        row, cells = line.row, []
        for place, group in enumerate(groups):
            source = _source(group, row, found, sources)
            cells.append(mean_cell(line.cells[place], source, interval_digits=1))
            if place in twins:
                cells.append(difference_cell(line.differences[place]))
        cells.append(_paper(TABLE1.get((row, line.metric))))
        metric = line.metric + _budget(groups, row)
        metric += ", lower is better" if line.lower_is_better else ""
        lines.append(LineView(line.title, metric, tuple(cells)))
    missing = [key for key in TABLE1 if key[0] not in measured]
    for row, metric in missing:
        if metric != "top-5":
            cells = [*empty, _paper(TABLE1[row, metric])]
            lines.append(LineView(TITLES.get(row, row), metric, tuple(cells)))
    first = next(iter(groups[0].runs[0].values()))
    return TableView(
        title="Table 1: accuracy, clean and under threats",
        caption=_caption(first, condition, groups),
        columns=tuple(columns),
        lines=tuple(lines),
        notes=tuple(_missing_notes({row for row, _ in missing}, runs, first)),
    )


def difference_panels(found: Robustness, most: int = 6) -> list[Drawn]:
    """For each model its differences to its twin, line by line of Table 1 (without top-5)."""
    panels: list[Drawn] = []
    for place, (group, twin) in enumerate(zip(found.groups, twins_of(found.groups), strict=True)):
        differences, words, labels = [], [], []
        for line in found.lines:
            one = line.differences[place]
            if one is None or line.metric == "top-5":
                continue
            differences.append(one)
            words.append({1: "better", -1: "worse", 0: "not clear"}[line.verdict(place)])
            labels.append(line.title + ("" if line.metric == "top-1" else f", {line.metric}"))
        if not differences or len(panels) == most:
            continue
        title = f"{group.label} minus {twin.label}, points"
        said = "; ".join(
            f"{label} {minus(difference_texts(one)[0])}, {word}"
            for label, one, word in zip(labels, differences, words, strict=True)
        )
        panel = differences_panel(differences, title, labels, words, width=6.0)
        panels.append((panel, f"Differences with 95 % intervals, {title}: {said}."))
    return panels


def _budget(groups: Sequence[Group], row: str) -> str:
    """The budget of a row's attack, as ", eps 0.05"."""
    found = (run[row].settings.get("eps") for group in groups for run in group.runs if row in run)
    eps = next((value for value in found if value is not None), None)
    return "" if eps is None else f", eps {pixel_text(eps)}"


def _caption(first: Record, condition: Condition, groups: Sequence[Group]) -> str:
    limit = "" if condition.limit is None else f" (a sample, seed {condition.seed})"
    many = any(len(group.runs) > 1 for group in groups)
    over = "over training seeds (Student's t)" if many else "over images (Wilson)"
    return str(TEXTS["tables"]["robustness"]).format(
        images=first.metrics["images"],
        data=first.settings.get("data"),
        limit=limit,
        domain=condition.domain,
        over=over,
        seeds=" and seeds" if many else "",
    )


def _missing_notes(rows: set[str], runs: Sequence[Run], first: Record) -> list[Note]:
    folders = folders_text(runs)
    data = first.settings.get("data")
    place = "" if data == "digits" else f" --data {shlex.quote(data or 'DIR')}"
    sets = [TITLES.get(row, row) for row in PAPER_ROWS if row in rows and row in _OF_IMAGENET]
    attacks = [TITLES.get(row, row) for row in PAPER_ROWS if row in rows - set(_OF_IMAGENET)]
    notes = []
    if attacks:
        command = f"pidformer evaluate {folders} --suite paper{place}"
        notes.append(Note(f"Not measured: {', '.join(attacks)}. To measure them:", command))
    if sets and all(_knows_imagenet(run) for run in runs if run.recipe is not None):
        command = f"pidformer evaluate {folders} --suite paper --data DIR"
        text = f"Not measured: {', '.join(sets)}. To measure them, with the sets in DIR:"
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
    records = [
        r for run in group.runs for name, r in run.items() if f"{name}/".startswith(f"{row}/")
    ]
    section = f"Table 1, {group.label}, {found.condition.domain} domain"
    return sources.add(section, row, records)


def _paper(pair: Sequence[float] | None) -> CellView:
    return CellView("" if pair is None else f"{pair[0]:.2f} / {pair[1]:.2f}", is_paper=True)


HEADLINES = ("top-1", "mean error")
"""What the sentences are about; the table has the other metrics too."""


def findings(table: Robustness | None, similarity: Sequence[Curves]) -> list[str]:
    """What the first table and the similarity say of each model against its twin."""
    said: list[str] = []
    if table is not None and table.groups:
        names = [group.label for group in table.groups]
        lines = [line for line in table.lines if line.metric in HEADLINES]
        for place, twin in enumerate(twins_of(table.groups)):
            base = names.index(twin.label)
            clean = [line for line in lines if line.title == "Clean" and line.differences[place]]
            said += [f"Clean accuracy: {twin_sentence(line, names, place, base)}" for line in clean]
            if threats := threats_sentence(lines, names, place, base):
                said.append(f"Under {threats}")
        clean = [line for line in lines if line.title == "Clean"]
        if len(names) == 1 and clean and (own := clean[0].cells[0]) is not None:
            said.append(
                f"{names[0]}: clean accuracy {own.mean:.1f} %. Nothing to compare it with yet."
            )
    if similarity:
        parts = ", ".join(
            f"{one.label} {fmean(points[-1][1] for points in one.runs):.3f}" for one in similarity
        )
        said.append(f"Token similarity in the last layer: {parts} (1: all tokens alike).")
    return said


def twin_sentence(line: Table1Line, names: Sequence[str], place: int, base: int = 0) -> str:
    """A line's two numbers and their difference, with its interval."""
    found, own, other = line.differences[place], line.cells[place], line.cells[base]
    assert found is not None and own is not None and other is not None
    ending = "" if found.verdict else ", not a clear one"
    points = minus(number_text(found, 1, sign="+")).replace(" [", " points [")
    points += "" if "[" in points else " points"
    return (
        f"{names[place]} {own.mean:.1f} %, {names[base]} {other.mean:.1f} %, a "
        f"difference of {points}{ending}."
    )


def threats_sentence(
    lines: Sequence[Table1Line], names: Sequence[str], place: int, base: int = 0
) -> str:
    """Where a model is ahead of another and where behind; nothing without threats."""
    threats = [line for line in lines if line.title != "Clean" and line.differences[place]]
    if not threats:
        return ""
    verdicts = [line.verdict(place) for line in threats]
    ahead, behind, level = (verdicts.count(sign) for sign in (1, -1, 0))
    return (
        f"{len(threats)} threat{'s' if len(threats) > 1 else ''}, {names[place]} is ahead of "
        f"{names[base]} in {ahead}, behind in {behind}, and level in {level} (by 95 % intervals of "
        "the difference)."
    )
