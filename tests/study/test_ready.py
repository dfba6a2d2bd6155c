"""Every registered row can be run: its model is built, takes real steps, and is measured."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pidformer import results
from pidformer.reproduce import Job, make_plan
from pidformer.reproduce.job_kinds import JobSetting, do, is_done
from pidformer.training import load_recipe
from study.hypotheses import NO_RUNS, UNMEASURED
from study.pages import write_results
from study.records import HERE, load_registered
from tests.data.pairs import write_parquet

pytestmark = pytest.mark.slow

STUDIES = sorted(path.stem for path in HERE.glob("*.yaml"))
MADE = [name for name in STUDIES if name.startswith("tiny-imagenet-100")]
"""Those with runs, whose many rows are measured by the same suites."""
CPU = JobSetting(device="cpu")
PARTS = ("_backbone", "")
SMALL = {
    "tiny_imagenet_100": [
        *("model.options.patch_size=16", "model.options.embed_dim=12", "model.options.num_heads=1"),
        *("data.batch_size=4", "data.workers=0", "schedule.epochs=1", "schedule.warmup_epochs=0"),
    ],
    "camvid": [
        *("model.options.patch_size=16", "model.options.embed_dim=12", "model.options.num_heads=1"),
        *("data.image_size=32", "data.batch_size=8", "data.workers=0"),
        *("segmentation.scale=[64, 32]", "segmentation.stride=16"),
        *("schedule.epochs=1", "schedule.warmup_epochs=0"),
    ],
    "text": [
        *("model.options.hidden_size=16", "model.options.num_hidden_layers=2"),
        *("model.options.num_attention_heads=2", "model.options.intermediate_size=16"),
        *("text.length=16", "text.min_count=1", "data.batch_size=12"),
        *("schedule.epochs=2", "schedule.warmup_epochs=0", "train.evaluate_steps=1"),
    ],
}
"""What makes each recipe tiny; the words of a row stay."""


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Sets of the registered names that hold two batches."""
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 2)):
        for label in ("dark", "light"):
            folder = root / "tiny-imagenet-100" / split / label
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    write_parquet(root / "camvid", val=2)
    for name in ("novels", "gutenberg"):
        (root / name).mkdir()
        for split in ("train", "valid", "test"):
            words = "the cat sat on the mat and the dog ran\n" * (100 if split == "train" else 4)
            (root / name / f"{split}.txt").write_text(words)
    return root


def tiny(job: Job) -> Job:
    """The job at a size that takes a second."""
    about = job.arguments
    if job.kind != "train":
        return job
    small = SMALL.get(about["recipe"].split("/")[0], SMALL["text"])
    return replace(job, arguments={**about, "overrides": (*about["overrides"], *small)})


def jobs_of(name: str, out: Path, data: Path) -> Iterator[tuple[Path, list[Job]]]:
    """The jobs of each row's first seed, behind the training of what it starts from."""
    plan = make_plan(out, study=HERE / f"{name}.yaml", data=data)
    assert not plan.blocked
    for row in {row.name: row for row in load_registered(name).rows}.values():
        runs = [out / "runs" / f"{row.name}{part}-seed{row.seeds[0]}" for part in PARTS]
        jobs = [tiny(job) for job in plan.jobs if job.arguments["run"] in runs]
        assert {"train", "publish"} <= {job.kind for job in jobs}
        yield runs[-1], jobs


def steps_of(run: Path) -> int:
    return max(record.step or 0 for record in results.read(run))


@pytest.mark.parametrize("name", MADE)
def test_every_row_takes_two_steps(name, data, tmp_path):
    for run, jobs in jobs_of(name, tmp_path, data):
        for job in jobs:
            if job.kind == "train":
                do(job, CPU)
        assert steps_of(run) >= 2, run


@pytest.mark.parametrize("name", [name for name in STUDIES if name not in MADE])
def test_every_row_is_trained_measured_and_shown(name, data, tmp_path):
    plan, folder = load_registered(name), tmp_path / "results" / name
    for run, jobs in jobs_of(name, tmp_path, data):
        for job in jobs:
            do(job, CPU)
            assert is_done(job), (run, job.id)
        assert steps_of(run) >= 2, run
    for row in plan.rows:
        first, *others = row.seeds
        text = (folder / f"{row.name}-seed{first}.jsonl").read_text()
        for seed in others:  # as if they had been run
            copy = text.replace(f"seed{first}", f"seed{seed}")
            copy = copy.replace(f'"seed": {first}', f'"seed": {seed}')
            (folder / f"{row.name}-seed{seed}.jsonl").write_text(copy)
    made = write_results([tmp_path / "results"], tmp_path / "docs")
    assert made.runs == sum(len(row.seeds) for row in plan.rows)
    page = (tmp_path / "docs" / "results" / f"{name}.md").read_text()
    for row in {row.name for row in plan.rows if not row.name.startswith("softmax")}:
        assert f"| {row} minus softmax" in page, row
    for row, metric in plan.primary:
        assert f"| {row} minus softmax | {metric}" in page, (row, metric)
    for one in plan.hypotheses:
        assert one.text in page and NO_RUNS not in page and UNMEASURED not in page
    assert ("Learning curves" in page) == (load_recipe(plan.recipe).task == "language")
