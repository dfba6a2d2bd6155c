"""The size of the control in the course of training."""

from collections.abc import Mapping, Sequence

from pidformer.report.figures import mean_points
from pidformer.report.panels import Panel
from pidformer.report.publish import CONTROL
from study.pictures import lines_panel
from study.records import Study, Variant
from study.section import Section

_LINES, _PANELS = 6, 6
"""Without groups: lines in a panel while there are few, and panels in the picture, at most."""
_WHAT = "control / attention's output"
_WORDS = (
    "The size of the control (root mean square) over that of the attention's output, mean over the "
    "layers in which it acts and over seeds, from before the first step to the last, on a few "
    "validation images, always the same. Of rows that were not looked at in between the tables "
    "have both ends."
)


def control_section(
    study: Study, groups: Mapping[str | None, Sequence[str]] | None = None
) -> list[Section]:
    """One picture of the variants whose runs were looked at as they trained; nothing if none.

    `groups` (names of variants) have a panel each.
    """
    curves = {variant.name: mean_curve(variant, CONTROL) for variant in study.variants}
    found = {name: points for name, points in curves.items() if len(points) > 2}
    panels: list[tuple[Panel, str]] = []
    for title, names in _parts([*found]) if groups is None else groups.items():
        lines = {name: found[name] for name in names if name in found}
        if lines:
            where = f"{_WHAT}, {title}" if title and len(groups or ()) > 1 else _WHAT
            panel = lines_panel(lines, where, "epoch", "ratio", [False] * len(lines))
            begin = "" if panels else "Control over attention's output by epoch: "
            panels.append((panel, begin + ", ".join(lines)))
    title = "Control during training"
    return [Section(title=title, body=[_WORDS], panels=panels)] if panels else []


def _parts(names: Sequence[str]) -> list[tuple[str | None, Sequence[str]]]:
    size = max(_LINES, -(-len(names) // _PANELS))
    return [(None, names[start : start + size]) for start in range(0, len(names), size)]


def mean_curve(variant: Variant, name: str) -> list[tuple[float, float]]:
    """The mean over the runs that have the curve, at the epochs that all of these have."""
    curves = [run.header.details.get(name, []) for run in variant.runs]
    return mean_points([curve for curve in curves if curve])
