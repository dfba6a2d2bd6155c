"""Commands that make a run again."""

import shlex
from pathlib import Path

import pytest

from pidformer.models.gains import as_gains
from pidformer.report.collect import Run, collect, read_run
from pidformer.report.details import training_seconds
from pidformer.report.rerun import train_command
from pidformer.results import Record, append
from pidformer.runs.twins import MOVES_NOTHING
from pidformer.training import load_recipe, shipped_recipes
from tests.report.fresh import fresh_run
from tests.training.tiny import tiny_recipe

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", shipped_recipes())
def test_the_command_of_a_run_makes_its_recipe_again(name):
    changes = ["optim.lr=0.00123", "seed=7"]
    recipe = load_recipe(name, changes).to_dict()
    words = shlex.split(train_command(recipe))
    end = (["--data", "DATA"] if recipe["data"]["name"] != "digits" else []) + ["--out", "RUN"]
    assert words[:2] == ["pidformer", "train"] and words[-len(end) :] == end
    assert load_recipe(words[2], words[3 : -len(end)]).to_dict() == recipe


def resolved(recipe):
    """The recipe, its gains as numbers and without what moves rounding at most."""
    fields = {key: dict(own) if isinstance(own, dict) else own for key, own in recipe.items()}
    gains = fields["model"]["gains"]
    if isinstance(gains, list):
        fields["model"]["gains"] = [as_gains(layer) for layer in gains]
    for name in MOVES_NOTHING:
        section, key = name.split(".")
        (fields.get(section) or {}).pop(key, None)
    return fields


@pytest.mark.parametrize("study", sorted(p.name for p in (ROOT / "results").glob("*/")))
def test_the_command_of_every_published_run_makes_its_recipe_again(study):
    for path in sorted((ROOT / "results" / study).glob("*.jsonl")):
        run = read_run(path)
        if not run.header.settings["command"].startswith("pidformer train "):
            continue  # study.retrofit trains networks of others
        recipe = dict(run.recipe)
        command = train_command(recipe)
        words = shlex.split(command)
        again = load_recipe(words[2], words[3:-4]).to_dict()
        assert resolved(again) == resolved(recipe), path.name
        assert len(command) < 600, path.name


def test_a_variant_is_trained_by_overrides_of_the_nearest_recipe():
    gains = [{"p": 0.4, "i": 0.1, "d": 0.0, "beta": 1.0}] * 2
    given = load_recipe("tiny_imagenet_100/deit_tiny_softmax.yaml", ["schedule.epochs=100"])
    fields = given.to_dict()
    fields["model"] |= {"gains": gains, "learn_gains": True}
    command = train_command(fields)
    assert "tiny_imagenet_100/" in command and "schedule.epochs=100" in command
    assert "model.learn_gains=true" in command


def test_a_task_of_no_shipped_recipe_is_trained_by_the_runs_own():
    command = train_command({"task": "speech", "seed": 3, "data": {"name": "words"}}, "runs/a b")
    assert command == ("pidformer train RECIPE seed=3 --data DATA --out 'runs/a b'")


def test_training_records_say_how_the_run_is_trained(tmp_path):
    folder = fresh_run(tmp_path / "pid-seed4", tiny_recipe("seed=4", "optim.lr=0.00123"))
    append(folder, Record(kind="train", metrics={"loss": 1.0}, step=1))
    (run,) = collect([folder])
    words = shlex.split(run.of("train")[-1].settings["command"])
    assert words[:2] == ["pidformer", "train"] and words[-2:] == ["--out", str(folder)]
    assert {"seed=4", "optim.lr=0.00123"} <= {*words}
    assert shlex.split(run.command) == [*words[:-1], "pid-seed4-again"]


@pytest.mark.parametrize(
    ("name", "speed", "items"),
    [("digits/pid.yaml", "images_per_second", 1), ("novels/pid.yaml", "tokens_per_second", 256)],
)
def test_training_time_is_what_the_logged_speeds_say(name, speed, items):
    recipe = load_recipe(name).to_dict()
    log = [(2, 10.0), (6, 40.0)]
    records = tuple(Record(kind="train", metrics={speed: rate}, step=step) for step, rate in log)
    run = Run(folder=Path("pid-seed0"), records=records, recipe=recipe)
    size = recipe["data"]["batch_size"] * items
    assert training_seconds(run) == pytest.approx(size * (2 / 10 + 4 / 40))
