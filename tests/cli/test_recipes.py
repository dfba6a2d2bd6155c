"""`pidformer recipes`, and the recipes for a user's own folders, from one end to the other."""

import dataclasses
import json
import sys

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from pidformer.data.formats.table import open_images, open_segmentation
from pidformer.training import load_recipe, shipped_recipes
from pidformer.training.recipe import recipe_keys


def test_every_shipped_recipe_is_listed_with_a_word_about_it(run):
    code, out, _ = run("recipes", "--json")
    rows = json.loads(out)
    assert code == 0 and [row["recipe"] for row in rows] == shipped_recipes()
    assert all(row["what"] for row in rows)


@pytest.mark.parametrize("arguments", [(), ("--keys",), ("novels/pid",)])
def test_names_that_are_typed_stay_whole_on_a_narrow_terminal(run, monkeypatch, arguments):
    module = sys.modules["pidformer.cli.recipes"]  # the package has the command under that name
    monkeypatch.setattr(module, "tables", lambda: Console(width=80))
    _, out, _ = run("recipes", *arguments)
    names = set(shipped_recipes()) if not arguments else {"model.attention_residual", "optim.lr"}
    assert names <= {line.split()[0] for line in out.splitlines() if line.strip()}
    assert max(len(line.rstrip()) for line in out.splitlines()[2:]) <= 80


def leaves(fields, prefix=""):
    for name, value in fields.items():
        if isinstance(value, dict) and name != "options":
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


@pytest.mark.parametrize("name", ["custom/photos", "custom/segmentation", "novels/pid"])
def test_a_recipe_is_explained_key_by_key(run, name):
    code, out, _ = run("recipes", name, "--json")
    rows, fields = json.loads(out), load_recipe(name).to_dict()
    shown = {key for key in leaves(fields) if fields[key.partition(".")[0]] is not None}
    assert code == 0 and {row["key"] for row in rows} == shown
    assert all(row["meaning"] for row in rows)
    assert {row["key"]: row["value"] for row in rows}["optim.lr"] == fields["optim"]["lr"]


def test_every_key_can_be_given_as_its_default():
    keys = list(recipe_keys())
    assert len(keys) == len({key.name for key in keys}) > 80
    for key in keys:
        if not key.name.startswith(("segmentation", "text")):
            default = list(key.default) if isinstance(key.default, tuple) else key.default
            assert load_recipe("digits/pid", [f"{key.name}={json.dumps(default)}"])
    assert dataclasses.is_dataclass(load_recipe("digits/pid"))


@pytest.mark.parametrize("name", ["custom/fotos", "nothing", ""])
def test_an_unknown_recipe_is_one_line(run, name):
    code, out, errors = run("recipes", name)
    assert code == 2 and not out and errors.count("\n") == 1


@pytest.fixture
def photos(tmp_path):
    draw = np.random.default_rng(0)
    for label in ("cat", "dog"):
        folder = tmp_path / "photos" / label
        folder.mkdir(parents=True)
        for index in range(12):
            pixels = draw.integers(0, 255, (40, 56, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{index}.jpg")
    return tmp_path / "photos"


@pytest.fixture
def masked(tmp_path):
    draw = np.random.default_rng(0)
    for kind, size, ending in (("images", (64, 64, 3), "jpg"), ("annotations", (64, 64), "png")):
        folder = tmp_path / "masked" / kind
        folder.mkdir(parents=True)
        for index in range(12):
            pixels = draw.integers(0, 3 if kind == "annotations" else 255, size, dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{index}.{ending}")
    (tmp_path / "masked" / "classes.json").write_text('{"classes": ["road", "tree"]}')
    return tmp_path / "masked"


@pytest.mark.filterwarnings("ignore:.*no val")
@pytest.mark.parametrize(
    ("kind", "opened"), [("photos", open_images), ("masked", open_segmentation)]
)
def test_a_set_without_splits_is_divided_once_and_for_all(request, kind, opened):
    folder = request.getfixturevalue(kind)
    names = [
        {source.name(index) for index in range(len(source))}
        for source in (opened(folder, "train"), opened(folder, "val"), opened(folder, "val"))
    ]
    count = sum(1 for _ in folder.rglob("*.jpg"))
    assert not names[0] & names[1] and len(names[0] | names[1]) == count
    assert names[1] == names[2] and len(names[1]) == {"photos": 4, "masked": 2}[kind]


@pytest.mark.slow
def test_photographs_without_splits_are_trained_on_and_evaluated(run, photos, tmp_path):
    out = tmp_path / "run"
    small = ("model.options.depth=1", "schedule.steps=1", "data.workers=0", "data.batch_size=8")
    assert run("train", "custom/photos", "--data", photos, "--out", out, *small)[0] == 0
    code, shown, errors = run("evaluate", out, "--data", photos, "--json")
    assert code == 0 and json.loads(shown) and errors.count("no val/") <= 1


@pytest.mark.slow
def test_photographs_with_masks_are_trained_on(run, masked, tmp_path):
    small = ("model.options.depth=1", "schedule.steps=1", "data.workers=0", "data.batch_size=2")
    small += ("data.image_size=32", "segmentation.scale=[64, 64]", "segmentation.stride=32")
    out = tmp_path / "run"
    assert run("train", "custom/segmentation", "--data", masked, "--out", out, *small)[0] == 0


def test_data_check_says_what_is_held_out(run, photos):
    code, out, _ = run("data", "check", photos)
    assert code == 0 and "one in ten" in out
