"""Values that no task or machine could take are refused, also where they would not be read."""

import mmap
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, Image

RELEASE = Path(__file__).parents[1] / "runs" / "release"
TRAIN = ("train", "digits/pid.yaml", "--out", "out", "--device", "cpu")
SEGMENTS = ("train", "custom/segmentation", "--out", "out", "--device", "cpu")
ENDLESS = "9" * 5000


def refusal(found, *, said: str) -> None:
    """One line on stderr that says this, and nothing else."""
    code, out, err = found
    assert code == 2 and out == "" and err.count("\n") == 1, err
    assert said in err and len(err) <= 301, err


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Nothing is written where the tests were started, or at all."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    yield
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.parametrize("key", ["seed", "optim.lr", "model.options.depth", "data.std", "model"])
def test_whole_numbers_of_5000_digits_are_one_line(run, tmp_path, key):
    refusal(run(*TRAIN, f"{key}={ENDLESS}"), said=f"override '{key}=999")
    section, _, rest = key.partition(".")
    nested = f"{{{rest.replace('.', ': {')}: {ENDLESS}}}" + "}" * rest.count(".")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"{section}: {nested if rest else ENDLESS}\n")
    refusal(run("train", recipe, *TRAIN[2:]), said="is not YAML (Exceeds the limit")


@pytest.mark.parametrize("seed", [2**64, -1, ENDLESS])
@pytest.mark.parametrize("command", ["analyze", "evaluate", "tune"])
def test_seeds_that_no_generator_takes_are_one_line(run, tmp_path, command, seed):
    folder = shutil.copytree(RELEASE / "image", tmp_path / "run")
    refusal(run(command, folder, "--device", "cpu", "--seed", seed), said="seed")


@pytest.mark.parametrize("rate", ["1e300", "-1", ".inf", ".nan"])
def test_learning_rates_that_no_weight_survives_are_one_line(run, rate):
    refusal(run(*TRAIN, f"optim.lr={rate}"), said="optim.lr must be")


@pytest.mark.parametrize("dropout", ["-0.1", "1", "1.5", ".nan"])
def test_a_decoders_dropout_is_a_rate(run, dropout):
    given = f"segmentation.decoder.dropout={dropout}"
    refusal(run(*SEGMENTS, given), said="segmentation.decoder.dropout must be in [0, 1)")


@pytest.mark.parametrize("path", ["a\0b", "\udcff", "a" * 5000, "a\nb"])
@pytest.mark.parametrize("command", ["evaluate", "train", "report", "data check", "generate"])
def test_paths_that_no_disk_has_are_one_line(run, command, path):
    refusal(run(*command.split(), path), said="pidformer: ")


def test_a_class_in_place_of_a_size_is_refused_by_name(run):
    refusal(run(*TRAIN, "model.options.act_layer=os.system"), said="act_layer is refused")


def test_an_eps_file_among_the_pictures_starts_no_program(run, tmp_path, monkeypatch):
    """PIL decodes EPS by Ghostscript, whatever the file is called."""
    called = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: called.append(1))
    for kind in ("cat", "dog"):
        for split in ("train", "val"):
            (tmp_path / "set" / split / kind).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(tmp_path / "set" / split / kind / "a.png")
    picture = tmp_path / "set" / "train" / "cat" / "b.jpg"
    Image.new("RGB", (8, 8)).save(picture, "EPS")
    code, out, err = run("data", "check", tmp_path / "set")
    assert code == 1 and "damaged: train/cat/b.jpg: UnidentifiedImageError" in out and err == ""
    found = run("segment", RELEASE / "segmentation", picture, "--device", "cpu")
    refusal(found, said="b.jpg as an image")
    assert not called


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ((*SEGMENTS, "segmentation.decoder.layers=1e9"), "layers must be a whole number from 1 to"),
        ((*TRAIN, "model.options.depth=1e9"), "depth must be a whole number from 1 to 512"),
        ((*TRAIN, "model.options={depth: 512, embed_dim: 16384}"), "GB; this machine has"),
        ((*TRAIN, "schedule.steps=1e30"), "schedule.steps must be"),
        ((*TRAIN, "schedule.epochs=1e10"), "schedule.epochs must be at most 1e+09"),
        (("demo", "--out", "out", "--seeds", 10**29), "seeds must be at least 1, and at most"),
        (("demo", "--out", "out", "--seeds", "1e29"), "valid integer"),
    ],
)
def test_runs_that_cannot_end_are_not_begun(run, command, said):
    refusal(run(*command), said=said)


def test_a_model_beyond_the_machine_can_be_insisted_on(run, monkeypatch):
    """The line says how; building it is left to PyTorch, which here says that memory ran out."""
    options = (*TRAIN, "model.options={depth: 512, embed_dim: 16384, num_heads: 512}")
    refusal(run(*options), said="or set PIDFORMER_ANY_SIZE=1 to build it all the same")
    monkeypatch.setenv("PIDFORMER_ANY_SIZE", "1")

    def build(*_, **__):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] not enough memory")

    monkeypatch.setattr("timm.create_model", build)
    found = run(*options)
    refusal(found, said="not enough memory")


@pytest.mark.slow
def test_a_run_whose_records_are_damaged_says_nothing_of_going_on(run, tmp_path):
    folder = shutil.copytree(RELEASE / "interrupted", tmp_path / "run")
    (folder / "results.jsonl").write_text("{\n")
    command = ("train", folder / "recipe.yaml", "--out", folder, "--device", "cpu")
    refusal(run(*command), said="results.jsonl is damaged")


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--views", "tri"), "unknown views 'tri'"),
        (("--protocol", "slidng"), "unknown protocol 'slidng'; did you mean 'sliding'?"),
        (("--split", "valid,tset"), "unknown split 'tset'; did you mean 'test'?"),
    ],
)
def test_evaluate_refuses_values_that_a_classifier_does_not_read(run, option, said):
    code, _, err = run("evaluate", "somewhere:model", *option)
    assert code == 2 and said in err and err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("port", ["99999", "-1"])
def test_the_lab_refuses_a_port_that_cannot_be(run, port):
    pytest.importorskip("gradio")
    code, _, err = run("lab", "--port", port)
    assert code == 2 and "a port must be 0 (any free one) to 65535" in err


@pytest.mark.parametrize(
    "ask",
    [
        lambda: torch.empty(2**50),
        lambda: np.zeros(2**50),
        lambda: mmap.mmap(-1, 2**46),
        lambda: bytearray(2**50),
    ],
    ids=["torch", "numpy", "map", "python"],
)
def test_memory_that_runs_out_is_one_line(run, monkeypatch, ask):
    """More than any machine has, asked of NumPy, PyTorch and the system."""
    monkeypatch.setattr("pidformer.training.converted.convert_run", lambda *_, **__: ask())
    code, _, err = run("convert", "x", "--gains", "lm", "--out", "y")
    assert code == 2 and err.startswith("pidformer: out of memory (") and err.count("\n") == 1
    assert len(err) <= 300


def test_other_errors_keep_their_traceback(monkeypatch):
    from pidformer.cli import main

    def fail(*_, **__):
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr("pidformer.training.converted.convert_run", fail)
    with pytest.raises(RuntimeError, match="shapes"):
        main(["convert", "x", "--gains", "lm", "--out", "y"])
