import sys
from dataclasses import replace

import pytest
import timm
import torch
from safetensors.torch import save_file

import pidformer as pf
from pidformer.errors import InputError
from pidformer.runs.folder import save_weights, write_model_info, write_recipe
from pidformer.runs.open import open_subject, outline
from pidformer.training.run import build_task, train
from tests.training.tiny import tiny_recipe

pytestmark = pytest.mark.slow

SMALL = "test_vit"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "tiny-seed3"
    train(tiny_recipe("schedule.epochs=1", "seed=3"), run, device="cpu", is_shown=False)
    return run


def test_a_run_folder(folder):
    subject = open_subject(folder)
    assert subject.label == "tiny-seed3" and subject.folder == folder
    assert subject.image_size == 8 and len(subject.classes) == 10 and subject.data == "digits"
    assert subject.facts["train_seed"] == 3 and "p=0.6" in subject.facts["gains"]
    assert subject.facts["weights"] != open_subject(folder, ema=True).facts["weights"]
    mean, std = subject.scale
    assert mean == pytest.approx((0.3053,), abs=1e-3) and len(std) == 1
    with pytest.warns(UserWarning, match="trained with"):
        other = open_subject(folder, gains="0.2,0,0")
    assert other.facts["weights"] == subject.facts["weights"]
    assert other.facts["gains"] != subject.facts["gains"]


@pytest.mark.parametrize(
    "overrides",
    [
        ("model.gains=null",),
        ("model.gains=deit",),
        ("model.gains=0.4,0.1,0.05,1", "model.learn_gains=true"),
        ("model.gains=[{p: 0.4}, {p: 0.2, i: 0.1}]",),
        ("model.gains=0.4,0,0", "model.name=timm:vit_tiny_patch16_224"),
    ],
)
def test_an_outline_says_what_the_model_would(tmp_path, overrides):
    recipe, run = tiny_recipe(*overrides), tmp_path / "run"
    task = build_task(recipe, None)
    run.mkdir()
    write_recipe(run, recipe.to_dict())
    write_model_info(run, task.model_info())
    save_weights(run / "model.safetensors", task.build().state_dict())
    found, whole = outline(run), open_subject(run)
    assert replace(found, model=whole.model) == whole and found.scale == whole.scale


def test_an_outline_is_of_classifiers(tmp_path):
    recipe = tiny_recipe().to_dict() | {"task": "language", "model": {"name": "causal_lm"}}
    write_recipe(tmp_path, recipe)
    with pytest.raises(InputError, match="is for language, not for classification"):
        outline(tmp_path)


def test_a_timm_model_with_local_weights(tmp_path):
    torch.manual_seed(0)
    model = timm.create_model(SMALL)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    subject = open_subject(f"timm:{SMALL}@{tmp_path}/w.safetensors")
    x = torch.rand(2, 3, subject.image_size, subject.image_size)
    config = timm.data.resolve_model_data_config(model)
    mean, std = (torch.tensor(config[name])[:, None, None] for name in ("mean", "std"))
    torch.testing.assert_close(subject.model(x), model.eval()((x - mean) / std))
    assert subject.crop_ratio == config["crop_pct"] and subject.folder is None


def test_a_function_of_the_user(tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_text(
        "import torch\ndef small():\n    return torch.nn.Flatten()\ndef number():\n    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    subject = open_subject("my_models:small")
    assert isinstance(subject.model, torch.nn.Flatten) and not subject.model.training
    assert subject.image_size is None and subject.scale is None
    with pytest.raises(InputError, match="gave a int"):
        open_subject("my_models:number")
    with pytest.raises(InputError, match="no function 'large'"):
        open_subject("my_models:large")
    assert "" not in sys.path[:1]


def test_records_tell_a_users_models_of_other_gains_apart(tmp_path, monkeypatch):
    (tmp_path / "controlled.py").write_text(
        "import pidformer, timm, torch\n"
        "def made(gains):\n"
        "    torch.manual_seed(0)\n"
        f"    return pidformer.convert(timm.create_model('{SMALL}'), gains)\n"
        "def weak():\n    return made('0.1,0,0')\n"
        "def strong():\n    return made([{'p': 0.4}] * 5 + [{'p': 0.5}])\n"
        f"def plain():\n    torch.manual_seed(0)\n    return timm.create_model('{SMALL}')\n"
    )
    monkeypatch.chdir(tmp_path)
    weak, strong, plain = (
        open_subject(f"controlled:{name}").facts for name in ("weak", "strong", "plain")
    )
    assert weak["weights"] == strong["weights"] == plain["weights"]
    assert weak["gains"] == str(pf.PIDGains(p=0.1)) and plain["gains"] is None
    assert strong["gains"] == str((pf.PIDGains(p=0.4),) * 5 + (pf.PIDGains(p=0.5),))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gone", "not a run folder"),
        ("timm:test_vitt", "timm has no model"),
        ("timm:test_vit@gone.safetensors", "no weights at gone.safetensors"),
        ("no_such_module:f", "is no run folder, timm:NAME"),
    ],
)
def test_bad_names_get_one_line(text, words):
    with pytest.raises(InputError) as caught:
        open_subject(text)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_weights_of_a_converted_model_are_not_taken_for_a_plain_one(tmp_path):
    converted = pf.convert(timm.create_model(SMALL), "0.4,0.1,0.05")
    save_file(converted.state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(InputError, match=r"does not fit test_vit \(pidformer\._extra_state"):
        open_subject(f"timm:{SMALL}@{tmp_path}/w.safetensors")


def test_weights_of_another_model_are_refused(tmp_path):
    save_file({"a": torch.ones(1)}, tmp_path / "w.safetensors")
    with pytest.raises(InputError, match="does not fit test_vit"):
        open_subject(f"timm:{SMALL}@{tmp_path}/w.safetensors")
