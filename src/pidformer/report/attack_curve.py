"""Accuracy over the budget of an attack: the escalating-attack figure and its data."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from pidformer.files import atomic_path
from pidformer.robustness.compare import Group
from pidformer.robustness.threat import as_budget

_COLOURS = ("#d9622b", "#2f81c7", "#1b7f5c", "#8e5bb5", "#8a6d1f", "#5b6770")


def curve_points(groups: Sequence[Group], attack: str) -> list[dict[str, float | str]]:
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


def curve_figure(groups: Sequence[Group], attacks: Sequence[str], path: str | Path) -> None:
    """Write the figure (PNG, SVG or PDF by its ending) and, beside it, the points as CSV.

    A line is the mean over a model's runs; the band is the 95 % interval over images for one run,
    the range over seeds for several.
    """
    path = Path(path)
    points = {attack: curve_points(groups, attack) for attack in attacks}
    matplotlib.use("Agg", force=False)
    figure = Figure(figsize=(4.8 * len(attacks) + 0.4, 3.8), layout="constrained")
    panels = figure.subplots(1, len(attacks), sharey=True, squeeze=False)[0]
    for axes, attack in zip(panels, attacks, strict=True):
        for colour, group in zip(_COLOURS * len(groups), groups, strict=False):
            _draw(axes, [p for p in points[attack] if p["model"] == group.label], group, colour)
        axes.set_title(attack.upper(), loc="left", fontsize=11)
        axes.set_xlabel("budget, of 255")
        axes.set_ylim(0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e3e6ea", linewidth=0.8)
        axes.set_axisbelow(True)
    panels[0].set_ylabel("top-1 accuracy, %")
    panels[-1].legend(frameon=False, fontsize=9)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=160, format=path.suffix.lstrip(".") or "png")
    with atomic_path(path.with_suffix(".csv")) as temporary, open(temporary, "w") as file:
        rows = [point for found in points.values() for point in found]
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _draw(axes, points, group: Group, colour: str) -> None:  # type: ignore[no-untyped-def]
    budgets = sorted({p["eps255"] for p in points})
    at = [[p for p in points if p["eps255"] == budget] for budget in budgets]
    mean = [sum(p["top1"] for p in here) / len(here) for here in at]
    is_one = len(group.runs) == 1
    low = [min(p["top1_low" if is_one else "top1"] for p in here) for here in at]
    high = [max(p["top1_high" if is_one else "top1"] for p in here) for here in at]
    axes.fill_between(budgets, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.plot(budgets, mean, color=colour, marker="o", markersize=3.5, label=group.label)
