"""The figures of the demonstration: panels, each with what it shows in words."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from matplotlib.figure import Figure, SubFigure

from pidformer.analysis import Trajectory
from pidformer.report.demo.models import CHANCE, MODELS, SHOWN, DemoModel
from pidformer.report.figures import Curves, Drawn, as_line, draw_curves, similarity_panel
from pidformer.report.panels import INK, PID, SOFTMAX, Panel


def all_figures(
    models: Mapping[str, DemoModel], paths: Mapping[str, Trajectory]
) -> dict[str, list[Drawn]]:
    """By name; `paths` are the tokens of one image in each model."""
    pairs = {"with": ("softmax", "pid"), "without": ("softmax_no_residual", "pid_no_residual")}
    return {
        "similarity": [
            similarity_panel(
                [_similarity(models[name]) for name in names],
                title=f"{which} the residual around attention",
            )
            for which, names in pairs.items()
        ],
        "attacks": [_attack(models, attack) for attack in ("fgsm", "pgd")],
        "tokens": [_tokens(models[name], path) for name, path in paths.items()],
    }


def _similarity(model: DemoModel) -> Curves:
    runs = tuple((tuple(range(1, len(run) + 1)), run) for run in model.similarity)
    return Curves(model.label.split(",")[0], _is_controlled(model), runs)


def _attack(models: Mapping[str, DemoModel], attack: str) -> Drawn:
    """Accuracy over the budget."""
    curves = []
    for name, model in models.items():
        runs = []
        for run in model.accuracy.runs:
            own = [record for row, record in run.items() if row.startswith(f"{attack}@")]
            runs.append(as_line(sorted((r.settings["eps"], r.metrics["top1"]) for r in own)))
        dashed = name.endswith("no_residual")
        curves.append(Curves(model.label, _is_controlled(model), tuple(runs), dashed))
    draw = partial(
        draw_curves,
        curves=curves,
        title=attack.upper(),
        x="eps (pixels in [0, 1])",
        y="accuracy, per cent",
        top=102,
        bottom=-2,
        level=(CHANCE, "chance"),
    )
    held = "; ".join(
        f"{model.label} {model.percent(f'{attack}@{SHOWN}').mean:.1f} %"
        for model in models.values()
    )
    words = f"Accuracy by budget under {attack.upper()}. At eps {SHOWN}: {held}."
    return Panel(draw), words


def _tokens(model: DemoModel, path: Trajectory) -> Drawn:
    """The tokens of one image at several depths."""
    words = (
        f"The tokens of one image at several depths, {model.label}; similarity at the end "
        f"{model.last_similarity.mean:.3f} over all images."
    )
    return Panel(partial(_draw_tokens, model=model, path=path), width=6.4, height=1.75), words


def _draw_tokens(figure: Figure | SubFigure, model: DemoModel, path: Trajectory) -> None:
    points = path.points
    depth = len(points) - 1
    shown = sorted({0, 1, 2, depth // 2, 3 * depth // 4, depth})
    places: Any = figure.subplots(1, len(shown), sharex=True, sharey=True)
    reach = 1.12 * float(points.abs().max())
    color = PID if _is_controlled(model) else SOFTMAX
    for axes, layer in zip(places, shown, strict=True):
        spots = points[layer]
        axes.scatter(spots[1:, 0], spots[1:, 1], s=22, color=color, alpha=0.6, linewidths=0)
        axes.scatter(spots[:1, 0], spots[:1, 1], s=34, color=INK, marker="x", linewidths=1.4)
        title = "input" if layer == 0 else f"layer {layer}"
        axes.set_title(title, fontsize=10)
        axes.set(xlim=(-reach, reach), ylim=(-reach, reach), xticks=[], yticks=[], aspect="equal")
        for spine in axes.spines.values():
            spine.set_visible(True)
    title = f"{MODELS[model.name]} (plane shows {path.explained:.0%})"
    figure.suptitle(title, fontsize=11.5, color=INK)


def _is_controlled(model: DemoModel) -> bool:
    return model.name.startswith("pid")
