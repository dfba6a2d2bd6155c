"""The findings in sentences, each chosen by the numbers it states."""

from collections.abc import Sequence

from pidformer.report.figures import Curves
from pidformer.report.table1 import Table1Line
from pidformer.report.table1_view import Robustness
from pidformer.report.table_view import minus
from pidformer.robustness.compare import twins_of

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
            if place != base:
                said += _against(lines, names, place, base)
        if len(names) == 1:
            said += _alone(lines, names[0])
    if similarity:
        ends = [
            (c.label, sum(run[1][-1] for run in c.runs) / len(c.runs)) for c in similarity if c.runs
        ]
        parts = ", ".join(f"{label} {value:.3f}" for label, value in ends)
        said.append(f"Token similarity in the last layer: {parts} (1: all tokens alike).")
    return said


def _alone(lines: Sequence[Table1Line], name: str) -> list[str]:
    clean = next((line for line in lines if line.title == "Clean" and line.cells[0]), None)
    if clean is None or clean.cells[0] is None:
        return []
    return [f"{name}: clean accuracy {clean.cells[0].mean:.1f} %. Nothing to compare it with yet."]


def _against(lines: Sequence[Table1Line], names: Sequence[str], place: int, base: int) -> list[str]:
    clean = [line for line in lines if line.title == "Clean" and line.differences[place]]
    said = [f"Clean accuracy: {twin_sentence(line, names, place, base)}" for line in clean]
    threats = threats_sentence(lines, names, place, base)
    return [*said, f"Under {threats}"] if threats else said


def twin_sentence(line: Table1Line, names: Sequence[str], place: int, base: int = 0) -> str:
    """A line's two numbers and their difference, with its interval."""
    found, own, other = line.differences[place], line.cells[place], line.cells[base]
    assert found is not None and own is not None and other is not None
    ending = "" if found.verdict else ", not a clear one"
    return (
        f"{names[place]} {own.mean:.1f} %, {names[base]} {other.mean:.1f} %, a "
        + minus(f"difference of {found.mean:+.1f} points [{found.low:+.1f}, {found.high:+.1f}]")
        + f"{ending}."
    )


def threats_sentence(
    lines: Sequence[Table1Line], names: Sequence[str], place: int, base: int = 0
) -> str:
    """Where a model is ahead of another and where behind; nothing without threats."""
    threats = [line for line in lines if line.title != "Clean" and line.differences[place]]
    if not threats:
        return ""
    ahead = behind = 0
    for line in threats:
        found = line.differences[place]
        if found is not None and found.verdict:
            is_better = (found.mean < 0) == line.lower_is_better
            ahead, behind = ahead + is_better, behind + (not is_better)
    level = len(threats) - ahead - behind
    return (
        f"{len(threats)} threat{'s' if len(threats) > 1 else ''}, {names[place]} is ahead of "
        f"{names[base]} in {ahead}, behind in {behind}, and level in {level} (by 95 % intervals of "
        "the difference)."
    )
