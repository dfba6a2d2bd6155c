"""Curves as panels with their words: over layers, over epochs, over the budget of an attack."""

import csv
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator

from pidformer.files import atomic_path
from pidformer.report.collect import Run, trained
from pidformer.report.details import layers
from pidformer.report.panels import BAD, GOOD, GREY, INK, Panel, add_tips, run_colors, save_panels
from pidformer.report.table1 import TITLES, difference_texts
from pidformer.report.table_view import minus
from pidformer.robustness.compare import Group
from pidformer.robustness.threat import as_budget
from pidformer.statistics import Crossed

HEADLINES = {"top1": "top-1, per cent", "miou": "mIoU, per cent", "ppl": "perplexity"}
Drawn = tuple[Panel, str]
"""A panel and what it shows, in words."""
_MOST_TIPS = 40
"""Points of a curve that answer to hovering."""
Points = Sequence[tuple[float, float]]
"""A line, as its points (x, y)."""


class Curves(NamedTuple):
    """Lines of one model: one for each run."""

    label: str
    is_controlled: bool
    runs: Sequence[Points]
    is_dashed: bool = False
    band: Points = ()
    """The ends of the intervals, of a single run."""


def by_layer(values: Sequence[float]) -> Points:
    """The first value at layer 1."""
    return [*enumerate(values, 1)]


def _drawable(found: Iterable[tuple[Group, Sequence[Points]]]) -> list[Curves]:
    """Models with their lines, without the models that have none."""
    return [Curves(group.label, group.is_controlled, runs) for group, runs in found if runs]


def similarity_curves(groups: Sequence[Group]) -> list[Curves]:
    what = "token_similarity"
    return _drawable(
        (group, [by_layer(layers(run[what])) for run in group.runs if what in run])
        for group in groups
    )


def similarity_panel(curves: Sequence[Curves], title: str = "") -> Drawn:
    y, where = ("token similarity", f", {title}") if title else ("mean cosine", "")
    title = title or "token similarity (1: all alike)"
    panel = curve_panel(curves, title, "layer", y, top=1.05, bottom=0.0)
    return panel, f"Token similarity by layer{where}. In the last layer: {_ends(curves, '.3f')}."


def curve_panel(
    curves: Sequence[Curves], title: str, x: str, y: str, size: Sequence[float] = (), **look: Any
) -> Panel:
    return Panel(partial(draw_curves, curves=curves, title=title, x=x, y=y, **look), *size)


def _ends(curves: Sequence[Curves], shape: str, unit: str = "") -> str:
    """Where each model's mean ends."""
    return "; ".join(f"{one.label} {mean_points(one.runs)[-1][1]:{shape}}{unit}" for one in curves)


def training_panels(runs: Sequence[Run], task: str) -> list[Drawn]:
    """Training loss and validation score over epochs, from the logs of a task's runs."""

    def drawn(name: str) -> list[Curves]:
        return _drawable(
            (group, [points for run in members if (points := run.curve(name))])
            for group, members in groups
        )

    groups = trained(runs, task)
    losses = drawn("loss")
    headline, scores = next(((n, own) for n in HEADLINES if (own := drawn(n))), ("", []))
    found = []
    if losses:
        words = f"Training loss by epoch, at the end: {_ends(losses, '.3f')}."
        found.append((curve_panel(losses, "training loss", "epoch", "loss", log=True), words))
    if losses and scores:
        name = HEADLINES[headline]
        words = f"Validation {name} by epoch, at the end: {_ends(scores, '.2f')}."
        found.append((curve_panel(scores, "validation", "epoch", name), words))
    return found


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
        curves = [one for group in groups if (one := _attack_curves(group, attack)).runs]
        largest = max(one.runs[0][-1][0] for one in curves)
        title, axes = TITLES.get(attack, attack), ("budget, in 1/255", "top-1, per cent")
        words = (
            f"Accuracy by budget under {title}; at {largest:g}/255: {_ends(curves, '.1f', ' %')}."
        )
        found.append((curve_panel(curves, title, *axes, top=102, bottom=0.0), words))
    return found


def differences_panel(
    found: Sequence[Crossed],
    title: str,
    labels: Sequence[str],
    words: Sequence[str],
    width: float = 4.6,
    x: str = "",
) -> Panel:
    """Differences with 95 % intervals, a line each: "better" is green, "worse" red."""
    colors = {"better": GOOD, "worse": BAD}
    lines = [*zip(found, labels, words, strict=True)]

    def draw(figure: Figure | SubFigure) -> None:
        axes: Axes = figure.subplots()
        for place, (one, label, word) in enumerate(reversed(lines)):
            color = colors.get(word, GREY)
            axes.plot([one.low, one.high], [place, place], color=color, linewidth=2.4)
            axes.plot(one.mean, place, "o", color=color, markersize=6)
            text = f"{label}: {minus(difference_texts(one)[0])}, {word}"
            add_tips(axes, [(end, place) for end in (one.low, one.mean, one.high)], [text] * 3)
        axes.axvline(0, color=INK, linewidth=0.9)
        axes.set_yticks(range(len(found)), [*reversed(labels)])
        axes.set_ylim(-0.7, len(found) - 0.3)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set(title=title, xlabel=x)

    return Panel(draw, width, 1.3 + 0.32 * len(found) + 0.3 * bool(x))


def _attack_curves(group: Group, attack: str) -> Curves:
    points = sorted(curve_points([group], attack), key=lambda point: point["eps255"])
    by_run: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        by_run.setdefault(point["run"], []).append((point["eps255"], point["top1"]))
    band = [(point["top1_low"], point["top1_high"]) for point in points if len(by_run) == 1]
    return Curves(group.label, group.is_controlled, [*by_run.values()], band=band)


def mean_points(curves: Sequence[Points]) -> list[tuple[float, float]]:
    """(x, mean of y) over several curves, at the places that all have."""
    tables = [dict(points) for points in curves]
    shared = sorted(set.intersection(*map(set, tables))) if tables else []
    return [(x, sum(table[x] for table in tables) / len(tables)) for x in shared]


def draw_curves(
    figure: Figure | SubFigure,
    curves: Sequence[Curves],
    title: str,
    x: str,
    y: str,
    *,
    top: float | None = None,
    bottom: float | None = None,
    log: bool = False,
    level: tuple[float, str] | None = None,
) -> None:
    """For each model a thick line, the mean, and thin lines, its runs; `level` is marked."""
    axes: Axes = figure.subplots()
    # dashed lines have the colours of the solid ones, in their order
    unused = {
        dashed: run_colors([one.is_controlled for one in curves if one.is_dashed == dashed])
        for dashed in (False, True)
    }
    for one in curves:
        color = unused[one.is_dashed].pop(0)
        if one.band:
            lows, highs = zip(*one.band, strict=True)
            budgets = [budget for budget, _ in one.runs[0]]
            axes.fill_between(budgets, lows, highs, color=color, alpha=0.15, linewidth=0)
        line: dict[str, Any] = {
            "color": color,
            "linestyle": (0, (3, 1.6)) if one.is_dashed else "-",
        }
        if len(one.runs) > 1:
            for run in one.runs:
                axes.plot(*zip(*run, strict=True), **line, linewidth=0.9, alpha=0.55)
        look = line | {"linewidth": 2.4, "label": one.label}
        mean = mean_points(one.runs)
        axes.plot(*zip(*mean, strict=True), **look, marker="o", markersize=4 * (len(mean) < 25))
        few = mean[:: max(1, -(-len(mean) // _MOST_TIPS))]
        add_tips(axes, few, [f"{one.label}, {x} {a:g}: {b:.4g}" for a, b in few])
    if level is not None:
        place, name = level
        axes.axhline(place, color=INK, linewidth=0.8, linestyle=":")
        left = axes.get_yaxis_transform()
        axes.text(0.01, place - 1.5, name, transform=left, fontsize=9.5, va="top")
    axes.set(title=title, xlabel=x, ylabel=y)
    if x == "layer":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if log:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        if high < 10 * low:  # within a decade: 4.2, not 4.2 x 10^0
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("{x:g}")
    if top is not None:
        axes.set_ylim(top=max(top, axes.dataLim.ymax))
    if bottom is not None:
        axes.set_ylim(bottom=min(bottom, axes.dataLim.ymin))
    wide = {"handlelength": 3.2} if any(one.is_dashed for one in curves) else {}
    axes.legend(**legend_look(len(curves)), loc="best", **wide)


def legend_look(count: int) -> dict[str, Any]:
    """Names of many models are small and in columns, so that they leave room for the axes."""
    return {"fontsize": 10} if count <= 12 else {"fontsize": 4.5, "ncols": -(-count // 20)}
