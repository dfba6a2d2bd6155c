"""The page of the demonstration: four models of the digits, from the records of their runs."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from pidformer.analysis import Trajectory
from pidformer.files import atomic_path, out_folder
from pidformer.report.collect import collect, inputs_hash
from pidformer.report.demo.figures import all_figures
from pidformer.report.demo.models import ATTACKED, CHANCE, MODELS, SHOWN, read_models
from pidformer.report.demo.verdicts import verdicts
from pidformer.report.panels import picture, png_uri, save_panels
from pidformer.report.templates import page_template
from pidformer.report.write import DATA_FILE

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
    with atomic_path(out / "report.html") as temporary:
        temporary.write_text(page, encoding="utf-8")
    fields = {
        "inputs": inputs_hash(folders),
        "seeds": list(range(seeds)),
        "eps": float(SHOWN),
        "models": [model.to_dict() for model in models.values()],
        "verdicts": said,
    }
    with atomic_path(out / DATA_FILE) as temporary:
        temporary.write_text(json.dumps(fields, indent=1))
    return out / "report.html"


class Answers(NamedTuple):
    """What one model says of N images, before and after they were changed to mislead it."""

    attacked: Tensor
    """(N, 1, height, width), pixels in [0, 1]."""
    before: Sequence[int]
    after: Sequence[int]


def chosen(labels: Sequence[int], answers: Mapping[str, Answers]) -> list[int]:
    """The first images on which a twin with residual, softmax or PID, is misled; then others.

    Both twins are asked, so the choice favours neither.
    """

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
