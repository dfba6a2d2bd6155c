"""The last job of the demonstration: one image through each model, and the page."""

from __future__ import annotations

from pathlib import Path

from pidformer.analysis import token_trajectory
from pidformer.data import open_images, sample_images
from pidformer.report.demo.models import MODELS
from pidformer.report.demo.page import write_demo
from pidformer.reproduce.jobs import Job
from pidformer.reproduce.times import Times
from pidformer.runs.model import load


def write_demo_page(job: Job) -> None:
    """Write the page of the job's runs, with the tokens of one image in those of seed 0."""
    folders = [Path(folder) for folder in job.arguments["folders"]]
    out = Path(job.arguments["out"])
    images, labels = sample_images(open_images("digits", "val"), image_size=8)
    firsts = {
        name: folder for folder in folders for name in MODELS if folder.name == f"{name}-seed0"
    }
    times = Times(out / "jobs")
    write_demo(
        folders,
        out,
        paths={name: token_trajectory(load(run), images[0]) for name, run in firsts.items()},
        digit=int(labels[0]),
        seconds=sum(times.of(need).seconds for need in job.needs),
    )
