"""The page of the demonstration: four models of the digits, from the records of their runs."""

import json
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure, SubFigure
from torch import Tensor

from pidformer.analysis import Trajectory
from pidformer.files import out_folder, write_whole
from pidformer.report.collect import collect, inputs_hash
from pidformer.report.demo.models import (
    ATTACKED,
    CHANCE,
    MODELS,
    SHOWN,
    DemoModel,
    read_models,
    verdicts,
)
from pidformer.report.figures import Curves, Drawn, by_layer, curve_panel, similarity_panel
from pidformer.report.panels import INK, PID, SOFTMAX, Panel, picture, png_uri, save_panels
from pidformer.report.templates import page_template
from pidformer.report.write import DATA_FILE


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
    runs = [by_layer(values) for values in model.similarity]
    return Curves(model.label.split(",")[0], model.is_controlled, runs)


def _attack(models: Mapping[str, DemoModel], attack: str) -> Drawn:
    curves = []
    for name, model in models.items():
        runs = []
        for run in model.accuracy.runs:
            own = [record for row, record in run.items() if row.startswith(f"{attack}@")]
            runs.append(sorted((r.settings["eps"], r.metrics["top1"]) for r in own))
        dashed = name.endswith("no_residual")
        curves.append(Curves(model.label, model.is_controlled, runs, dashed))
    look: dict[str, Any] = {"top": 102, "bottom": -2, "level": (CHANCE, "chance")}
    axes = ("eps (pixels in [0, 1])", "accuracy, per cent")
    held = "; ".join(
        f"{model.label} {model.percent(f'{attack}@{SHOWN}').mean:.1f} %"
        for model in models.values()
    )
    words = f"Accuracy by budget under {attack.upper()}. At eps {SHOWN}: {held}."
    return curve_panel(curves, attack.upper(), *axes, **look), words


def _tokens(model: DemoModel, path: Trajectory) -> Drawn:
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
    color = PID if model.is_controlled else SOFTMAX
    for axes, layer in zip(places, shown, strict=True):
        spots = points[layer]
        axes.scatter(spots[1:, 0], spots[1:, 1], s=22, color=color, alpha=0.6, linewidths=0)
        axes.scatter(spots[:1, 0], spots[:1, 1], s=34, color=INK, marker="x", linewidths=1.4)
        title = "input" if layer == 0 else f"layer {layer}"
        axes.set_title(title, fontsize=10)
        axes.set(xlim=(-reach, reach), ylim=(-reach, reach), xticks=[], yticks=[], aspect="equal")
        axes.spines[:].set_visible(True)
    title = f"{MODELS[model.name]} (plane shows {path.explained:.0%})"
    figure.suptitle(title, fontsize=11.5, color=INK)


COUNT = 5
"""Digits that are shown as they are and attacked."""


def write_demo(
    folders: Sequence[Path],
    out: str | Path,
    *,
    paths: Mapping[str, Trajectory],
    digits: Mapping[str, Any],
    digit: int,
    seconds: float,
) -> Path:
    """Write OUT/report.html, OUT/report.json and OUT/figures/*.png from runs; the page's path.

    `paths` holds the tokens of one image, a `digit`, in each model, `digits` a few images and
    their attacked twins (`digits_view`); `seconds` is what all jobs took together.
    """
    runs = collect(folders)
    models = read_models(runs)
    out = out_folder(out)
    out_folder(out / "figures")
    figures = all_figures(models, paths)
    for name, drawn in figures.items():
        save_panels([panel for panel, _ in drawn], out / "figures" / f"{name}.png")
    said = {name: verdict._asdict() for name, verdict in verdicts(models).items()}
    first = models["softmax"].accuracy.runs
    seeds = len(first)
    table = [model.to_dict() | {"label": model.label} for model in models.values()]
    page = page_template("report", "demo/page.html.j2").render(
        pictures={name: [picture(*one) for one in drawn] for name, drawn in figures.items()},
        verdicts=said,
        table=table,
        seeds=seeds,
        images=int(first[0]["clean"].metrics["images"]),
        attacked=ATTACKED,
        shown_budget=SHOWN,
        chance=CHANCE,
        digits=digits,
        digit=digit,
        layers=len(models["softmax"].similarity[0]),
        command=f"pidformer demo --out {shlex.quote(str(out))} --seeds {seeds}",
        trains=[run.command for run in runs if run.label.endswith("-seed0")],
        run=next(run.folder for run in runs if run.label == "pid_no_residual-seed0"),
        out=out,
        machine=first[0]["clean"].settings["machine"],
        seconds=seconds,
    )
    write_whole(out / "report.html", page)
    fields = {
        "inputs": inputs_hash(folders),
        "seeds": list(range(seeds)),
        "eps": float(SHOWN),
        "models": [model.to_dict() for model in models.values()],
        "verdicts": said,
    }
    write_whole(out / DATA_FILE, json.dumps(fields, indent=1))
    return out / "report.html"


class Answers(NamedTuple):
    """What one model says of N images, before and after they were changed to mislead it."""

    attacked: Tensor
    """(N, 1, height, width), pixels in [0, 1]."""
    before: Sequence[int]
    after: Sequence[int]


def chosen(labels: Sequence[int], answers: Mapping[str, Answers]) -> list[int]:
    """The first images on which either twin with residual is misled, then others."""

    def is_misled(place: int) -> bool:
        return any(
            answers[name].before[place] == labels[place] != answers[name].after[place]
            for name in ("softmax", "pid")
        )

    return sorted(range(len(labels)), key=lambda place: not is_misled(place))[:COUNT]


def digits_view(
    images: Tensor, labels: Sequence[int], answers: Mapping[str, Answers]
) -> dict[str, Any]:
    """The chosen images and, for each model, a line of them as attacked."""
    places = chosen(labels, answers)
    lines = []
    for name, found in answers.items():
        cells = [
            {
                "uri": png_uri(found.attacked[place]),
                "before": found.before[place],
                "after": found.after[place],
                "is_wrong": found.after[place] != labels[place],
            }
            for place in places
        ]
        lines.append({"label": MODELS[name], "cells": cells})
    heads = [{"uri": png_uri(images[place]), "label": labels[place]} for place in places]
    return {"heads": heads, "lines": lines}
