"""The size of the control in the course of training."""

from __future__ import annotations

from pidformer.report.panels import Panel
from pidformer.report.published.draw import lines_panel
from pidformer.report.published.publishing import CONTROL
from pidformer.report.published.section import Section
from pidformer.report.published.studies import Study, Variant

_LINES, _PANELS = 6, 6
"""Lines in a panel while there are few, and panels in the picture, at most."""
_WORDS = (
    "The size of the control (root mean square) over that of the attention's output, mean over the "
    "layers in which it acts and over seeds, from before the first step to the last, on a few "
    "validation images, always the same."
)


def control_section(study: Study) -> list[Section]:
    """One picture for all variants whose runs were looked at as they trained; nothing if none."""
    found = [(v.name, points) for v in study.variants if (points := control_curve(v))]
    size = max(_LINES, -(-len(found) // _PANELS))
    panels: list[tuple[Panel, str]] = []
    for start in range(0, len(found), size):
        lines = dict(found[start : start + size])
        plain = [False] * len(lines)
        panel = lines_panel(lines, "control / attention's output", "epoch", "ratio", plain)
        begin = "" if panels else "Control over attention's output by epoch: "
        panels.append((panel, begin + ", ".join(lines)))
    title = "Control during training"
    return [Section(title=title, body=[_WORDS], panels=panels)] if panels else []


def control_curve(variant: Variant) -> list[tuple[float, float]]:
    """The mean over the runs that have the curve, at the epochs that all of these have."""
    curves = [dict(c) for run in variant.runs if (c := run.header.details.get(CONTROL))]
    shared = sorted(set.intersection(*map(set, curves))) if curves else []
    return [(x, sum(curve[x] for curve in curves) / len(curves)) for x in shared]
