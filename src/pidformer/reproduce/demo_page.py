"""The last job of the demonstration: images through each model, as they are and attacked."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from pidformer.analysis import token_trajectory
from pidformer.data import open_images, sample_images
from pidformer.report.demo.models import ATTACKED, MODELS, SHOWN
from pidformer.report.demo.page import Answers, digits_view, write_demo
from pidformer.reproduce.jobs import Job
from pidformer.reproduce.times import Times
from pidformer.robustness import PGD
from pidformer.runs.model import load


def write_demo_page(job: Job) -> None:
    """Write the page of the job's runs, with the tokens of one image in those of seed 0."""
    folders = [Path(folder) for folder in job.arguments["folders"]]
    out = Path(job.arguments["out"])
    images, labels = sample_images(open_images("digits", "val"), image_size=8)
    firsts = {
        name: folder for folder in folders for name in MODELS if folder.name == f"{name}-seed0"
    }
    models = {name: load(run) for name, run in firsts.items()}
    times = Times(out / "jobs")
    write_demo(
        folders,
        out,
        paths={name: token_trajectory(model, images[0]) for name, model in models.items()},
        digits=attacked_digits(models),
        digit=int(labels[0]),
        seconds=sum(times.of(need).seconds for need in job.needs),
    )


def attacked_digits(models: Mapping[str, Any]) -> dict[str, Any]:
    """A few of the images that the runs were measured on, under the PGD of the page's table."""
    images, labels = sample_images(open_images("digits", "val"), ATTACKED, image_size=8)
    threat = PGD(eps=float(SHOWN), steps=10, step_size=float(SHOWN) / 4)
    answers = {}
    for name, model in models.items():
        attacked = threat(model, images, labels, seed=0)
        with torch.no_grad():
            said = [model(shown).argmax(-1).tolist() for shown in (images, attacked)]
        answers[name] = Answers(attacked, *said)
    return digits_view(images, labels.tolist(), answers)
