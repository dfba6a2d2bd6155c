"""Accuracy over the budget of an attack: the escalating-attack figure and its data."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pidformer.files import atomic_path
from pidformer.report.figures import Drawn, draw_curves, mean_curve
from pidformer.report.panels import Panel, save_panels
from pidformer.report.table1 import TITLES
from pidformer.report.training_curves import Curves
from pidformer.robustness.compare import Group
from pidformer.robustness.threat import as_budget


def curve_points(groups: Sequence[Group], attack: str) -> list[dict[str, Any]]:
    """For each model, run and budget: budget (of 255), top-1 and its interval."""
    return [
        {
            "attack": attack,
            "model": group.label,
            "run": str(record.settings["model"]),
            "eps255": 255 * as_budget(row.partition("@")[2]),
            "threat": str(record.settings["threat"]),
            **{name: record.metrics[name] for name in ("top1", "top1_low", "top1_high", "images")},
        }
        for group in groups
        for run in group.runs
        for row, record in run.items()
        if row.startswith(f"{attack}@")
    ]


def curve_figure(groups: Sequence[Group], path: str | Path) -> None:
    """Write the figure (PNG, SVG or PDF by its ending) and, beside it, the points as CSV."""
    path = Path(path)
    drawn = attack_panels(groups)
    save_panels([panel for panel, _ in drawn], path, columns=len(drawn))
    rows = [point for attack in _attacks(groups) for point in curve_points(groups, attack)]
    with atomic_path(path.with_suffix(".csv")) as temporary, open(temporary, "w") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _attacks(groups: Sequence[Group]) -> list[str]:
    rows = (row for group in groups for run in group.runs for row in run if "@" in row)
    return list(dict.fromkeys(row.partition("@")[0] for row in rows))


def attack_panels(groups: Sequence[Group]) -> list[Drawn]:
    """Accuracy over the budget, a panel for each attack that has rows "attack@budget".

    A line is the mean over a model's runs; thin lines are its runs, and of a single run the band is
    the 95 % interval over images.
    """
    found = []
    for attack in _attacks(groups):
        curves = [one for group in groups if (one := _curves(group, attack)) is not None]
        ends = "; ".join(f"{c.label} {mean_curve(c)[1][-1]:.1f} %" for c in curves)
        largest = max(c.runs[0][0][-1] for c in curves)
        title = TITLES.get(attack, attack)
        axes: dict[str, Any] = {"x": "budget, of 255", "y": "top-1, per cent"}
        draw = partial(draw_curves, curves=curves, title=title, top=102, bottom=0.0, **axes)
        words = f"Accuracy by budget under {title}; at {largest:g}/255: {ends}."
        found.append((Panel(draw), words))
    return found


def _curves(group: Group, attack: str) -> Curves | None:
    points: dict[str, list[dict[str, Any]]] = {}
    for point in sorted(curve_points([group], attack), key=lambda point: point["eps255"]):
        points.setdefault(point["run"], []).append(point)
    lines = {
        name: [tuple(point[name] for point in own) for own in points.values()]
        for name in ("eps255", "top1", "top1_low", "top1_high")
    }
    if not points:
        return None
    runs = tuple(zip(lines["eps255"], lines["top1"], strict=True))
    band = (lines["top1_low"][0], lines["top1_high"][0]) if len(runs) == 1 else None
    return Curves(group.label, group.is_controlled, runs, band=band)
