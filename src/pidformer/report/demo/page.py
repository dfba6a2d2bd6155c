"""The page of the demonstration: four models of the digits, from the records of their runs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pidformer.analysis import Trajectory
from pidformer.files import atomic_path, out_folder
from pidformer.report.collect import collect, inputs_hash
from pidformer.report.demo.figures import all_figures
from pidformer.report.demo.models import ATTACKED, CHANCE, SHOWN, read_models
from pidformer.report.demo.verdicts import verdicts
from pidformer.report.panels import picture, save_panels
from pidformer.report.templates import page_template
from pidformer.report.write import DATA_FILE


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
