"""The figures: panels for the page, the same panels side by side as PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator

from pidformer.analysis import Trajectory
from pidformer.demo.summary import CHANCE, MODELS, ModelSummary, Spread
from pidformer.report.panels import Panel
from pidformer.report.style import INK, PID, SOFTMAX


def similarity_panels(found: Mapping[str, ModelSummary]) -> list[Panel]:
    """Token similarity by layer, with and without the residual."""
    return [
        Panel(partial(_draw_similarity, models=[found[name] for name in pair])) for pair in _pairs()
    ]


def attack_panels(found: Mapping[str, ModelSummary]) -> list[Panel]:
    """Accuracy by budget, FGSM and PGD."""
    models = list(found.values())
    return [
        Panel(partial(_draw_attack, models=models, attack=attack)) for attack in ("FGSM", "PGD")
    ]


def token_panels(paths: Mapping[str, Trajectory]) -> list[Panel]:
    """The tokens of one image at several depths, one strip a model."""
    return [
        Panel(partial(_draw_tokens, name=name, path=path), width=6.4, height=1.75)
        for name, path in paths.items()
    ]


def _pairs() -> list[tuple[str, str]]:
    return [("softmax", "pid"), ("softmax_no_residual", "pid_no_residual")]


def _look(name: str) -> dict[str, Any]:
    """Colour by controller, dashes without the residual."""
    return {
        "color": PID if name.startswith("pid") else SOFTMAX,
        "linestyle": (0, (3, 1.6)) if name.endswith("no_residual") else "-",
    }


def _draw_similarity(figure: Figure | SubFigure, models: Sequence[ModelSummary]) -> None:
    axes: Axes = figure.subplots()
    for model in models:
        look = _look(model.name) | {"linestyle": "-"}
        depths = range(1, len(model.similarity[0]) + 1)
        for layers in model.similarity:
            axes.plot(depths, layers, **look, linewidth=0.9, alpha=0.55)
        means = [Spread.of(layer).mean for layer in zip(*model.similarity, strict=True)]
        label = model.label.split(",")[0]
        axes.plot(depths, means, **look, linewidth=2.6, marker="o", markersize=4.5, label=label)
    title = "without" if models[0].name.endswith("no_residual") else "with"
    axes.set(
        title=f"{title} the residual around attention",
        xlabel="layer",
        ylabel="token similarity",
        ylim=(min(0, axes.get_ylim()[0]), 1.05),
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="best")


def _draw_attack(figure: Figure | SubFigure, models: Sequence[ModelSummary], attack: str) -> None:
    axes: Axes = figure.subplots()
    for model in models:
        budgets = sorted(eps for name, eps in model.attacks if name == attack)
        seeds = [[score.percent for score in model.attacks[attack, eps]] for eps in budgets]
        for values in zip(*seeds, strict=True):
            axes.plot(budgets, values, **_look(model.name), linewidth=0.8, alpha=0.5)
        means = [Spread.of(values).mean for values in seeds]
        axes.plot(
            budgets,
            means,
            **_look(model.name),
            linewidth=2.4,
            marker="o",
            markersize=4.5,
            label=model.label,
        )
    axes.axhline(CHANCE, color=INK, linewidth=0.8, linestyle=":")
    axes.text(
        0.01, CHANCE - 1.5, "chance", transform=axes.get_yaxis_transform(), fontsize=9.5, va="top"
    )
    axes.set(
        title=attack, xlabel="eps (pixels in [0, 1])", ylabel="accuracy, per cent", ylim=(-2, 102)
    )
    axes.legend(fontsize=9.5, loc="upper right", handlelength=3.2)


def _draw_tokens(figure: Figure | SubFigure, name: str, path: Trajectory) -> None:
    points = path.points
    depth = len(points) - 1
    shown = sorted({0, 1, 2, depth // 2, 3 * depth // 4, depth})
    places: Any = figure.subplots(1, len(shown), sharex=True, sharey=True)
    reach = 1.12 * float(points.abs().max())
    look = _look(name)
    for axes, layer in zip(places, shown, strict=True):
        spots = points[layer]
        axes.scatter(spots[1:, 0], spots[1:, 1], s=22, color=look["color"], alpha=0.6, linewidths=0)
        axes.scatter(spots[:1, 0], spots[:1, 1], s=34, color=INK, marker="x", linewidths=1.4)
        title = "input" if layer == 0 else f"layer {layer}"
        axes.set_title(title, fontsize=10)
        axes.set(xlim=(-reach, reach), ylim=(-reach, reach), xticks=[], yticks=[], aspect="equal")
        for spine in axes.spines.values():
            spine.set_visible(True)
    figure.suptitle(f"{MODELS[name]} (plane shows {path.explained:.0%})", fontsize=11.5, color=INK)
