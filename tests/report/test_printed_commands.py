"""Every command that a report prints about a run is run, as printed."""

import html
import re
import shlex
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from pidformer.runs.folder import load_weights
from tests.training.tiny import OPTIONS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("undrawn")]

OVERRIDES = (
    f"model.options={OPTIONS}",
    "schedule.steps=3",
    "data.workers=0",
    "data.batch_size=12",
    "data.mean=[0.5, 0.5, 0.5]",
    "data.std=[0.5, 0.5, 0.5]",
    "optim.lr=0.00123",
)


@pytest.fixture
def photos(tmp_path):
    draw = np.random.default_rng(0)
    for split in ("train", "val"):
        for label in ("cat", "dog", "my owl"):
            folder = tmp_path / "my photos" / split / label
            folder.mkdir(parents=True)
            for index in range(8):
                pixels = draw.integers(0, 255, (8, 8), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{index}.png")
    return tmp_path / "my photos"


@pytest.fixture
def type_in(run, monkeypatch):
    """Run a line as a shell would."""

    def typed(line):
        words = shlex.split(line)
        assert words[0] == "pidformer"
        monkeypatch.setattr(sys, "argv", words)
        code, _, errors = run(*words[1:])
        assert code == 0, (line, errors)

    return typed


def printed(folder):
    page = (folder / "report.html").read_text()
    found = re.findall(r"<code>(pidformer (?:train|evaluate|analyze)[^<]*)</code>", page)
    return list(dict.fromkeys(html.unescape(line) for line in found))


def test_every_printed_command_about_a_run_runs_and_repeats_it(
    photos, tmp_path, monkeypatch, type_in
):
    monkeypatch.chdir(tmp_path)
    wanted = shlex.join(["--data", photos.name, *OVERRIDES])
    for name, change in (("softmax", "model.gains=null"), ("pid", "model.gains=0.4,0.1,0.05")):
        type_in(f"pidformer train digits/pid --device cpu --out runs/{name} {change} {wanted}")
    type_in("pidformer report runs/softmax runs/pid --out first")
    lines = printed(tmp_path / "first")
    assert sum(line.startswith("pidformer train") for line in lines) >= 2
    assert any("--curve" in line for line in lines) and any("analyze" in line for line in lines)
    for line in lines:
        type_in(line)
    for name in ("softmax", "pid"):
        new, old = (
            load_weights(tmp_path / f / "model.safetensors")
            for f in (f"{name}-again", f"runs/{name}")
        )
        assert all(torch.equal(new[key], old[key]) for key in old)
    type_in("pidformer report runs/softmax runs/pid --out second")
    for line in printed(tmp_path / "second"):
        if line not in lines:
            type_in(line)


def test_a_run_says_where_its_data_were(photos, tmp_path, run):
    out = tmp_path / "run"
    done = run("train", "digits/pid", "--data", photos, "--out", out, *OVERRIDES)
    assert done[0] == 0
    code, _, errors = run("evaluate", out)
    assert code == 2 and errors.count("\n") == 1
    assert f"trained on {photos}" in errors and "--data" in errors
