import json
import shutil

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file
from timm import create_model

import pidformer as pf
from pidformer import results
from pidformer.data import Batch
from pidformer.errors import InputError
from pidformer.models.segmenter import Segmenter
from pidformer.runs.folder import load_weights, read_model_info
from pidformer.runs.recipe import ScheduleRecipe, recipe_from
from pidformer.training import load_recipe
from pidformer.training.loop import Trainer, equal_parts
from pidformer.training.optimizer import learning_rate
from pidformer.training.recipe import difference
from pidformer.training.run import build_task, train
from tests.data.pairs import write_parquet
from tests.processes import COMMAND, ends_well, two
from tests.training.tiny import losses, tiny_recipe

pytestmark = pytest.mark.slow

OPTIONS = "{patch_size: 4, embed_dim: 16, depth: 2, num_heads: 2, mlp_ratio: 2, init_std: 0.1}"


def recipe(*overrides: str):
    return load_recipe(
        "camvid/pid.yaml",
        [
            f"model.options={OPTIONS}",
            "model.options.drop_path_rate=0.1",
            "data.image_size=16",
            "data.batch_size=4",
            "data.workers=0",
            "segmentation.scale=[64, 24]",
            "segmentation.stride=12",
            "optim.lr=5e-3",
            "schedule.epochs=3",
            "schedule.warmup_epochs=0",
            "train.precision=fp32",
            "train.evaluate_every=1",
            "train.checkpoint_steps=3",
            "train.log_steps=2",
            *overrides,
        ],
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_parquet(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return folder, train(recipe(), folder, data=data, device="cpu", is_shown=False)


def same_weights(a, b) -> bool:
    left, right = (load_weights(run / "model.safetensors") for run in (a, b))
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def test_a_segmentation_run_is_a_run_like_any_other(whole):
    folder, scores = whole
    assert scores["images"] == 6 and 0 < scores["miou"] < scores["pixel_accuracy"] <= 100
    records = results.read(folder)
    final = [r for r in records if r.kind == "evaluate"][-1]
    assert final.metrics["miou"] == scores["miou"] and final.step == 12
    info = read_model_info(folder)
    assert info["inference"] == {"scale": [64, 24], "window": 16, "stride": 12}
    assert info["classes"] == ["red", "green", "blue", "grey"] and info["backbone"] is None


def test_it_learns(tmp_path, data):
    scores = train(
        recipe("schedule.epochs=20", "train.evaluate_every=20", "train.checkpoint_steps=1000"),
        tmp_path / "run",
        data=data,
        device="cpu",
        is_shown=False,
    )
    assert scores["miou"] > 45  # four colours; chance is 14


def test_load_gives_a_model_of_pixels(whole):
    model = pf.load(whole[0])
    assert isinstance(model.model, Segmenter) and not model.training
    assert model(torch.rand(1, 3, 21, 30)).shape == (1, 4, 21, 30)
    assert model.model.gains == model.model.decoder_gains == pf.PIDGains(p=0.4, i=0.1, d=0.05)
    with pytest.warns(UserWarning, match=r"trained with gains .*p=0.4.* loaded with .*p=0.6"):
        other = pf.load(whole[0], gains="0.6,0,0")
    assert other.model.decoder_gains == pf.PIDGains(p=0.6)


@pytest.mark.parametrize("steps", [2, 7])
def test_a_crashed_run_ends_with_the_same_weights(whole, tmp_path, data, monkeypatch, steps):
    run, inner = tmp_path / "run", Trainer._save_or_stop

    def crash(self, at_end=False):
        inner(self, at_end)
        if self.step == steps:
            raise RuntimeError("crash")

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_save_or_stop", crash)
        with pytest.raises(RuntimeError, match="crash"):
            train(recipe(), run, data=data, device="cpu", is_shown=False)
    assert train(recipe(), run, data=data, device="cpu", is_shown=False) == whole[1]
    assert same_weights(run, whole[0])


def test_parts_of_a_batch_have_its_loss(data):
    """Parts of a batch with the same number of labelled pixels have the loss of the whole."""
    task = build_task(recipe("model.options.drop_path_rate=0"), data)
    torch.manual_seed(0)
    model = task.build().eval()
    images, targets = torch.rand(4, 3, 16, 16), torch.randint(4, (4, 16, 16))
    targets[:, :3] = 255
    batch = Batch(images, targets)
    parts = equal_parts(batch, 2)
    assert [len(part.images) for part in parts] == [2, 2]
    total = sum(task.loss(model, part) for part in parts) / 2
    torch.testing.assert_close(total, task.loss(model, batch))


def test_the_loss_is_the_mean_over_labelled_pixels(data):
    task = build_task(recipe(), data)
    model = task.build().eval()
    images, targets = torch.rand(2, 3, 16, 16), torch.randint(4, (2, 16, 16))
    targets[0, 2:9] = 255
    mean, std = (
        torch.tensor(v)[:, None, None] for v in (task.recipe.data.mean, task.recipe.data.std)
    )
    with torch.no_grad():
        logits = model((images - mean) / std).double().log_softmax(1)
        expected = np.mean(
            [
                -float(logits[b, targets[b, y, x], y, x])
                for b in range(2)
                for y in range(16)
                for x in range(16)
                if targets[b, y, x] != 255
            ]
        )
        assert float(task.loss(model, Batch(images, targets))) == pytest.approx(expected, rel=1e-5)
        nothing = task.loss(model, Batch(images, torch.full_like(targets, 255)))
    assert float(nothing) == 0  # not nan


def test_twins_share_weights_and_keys(data):
    softmax, pid = (
        build_task(recipe(f"model.gains={gains}"), data).build() for gains in ("null", "0,0,0")
    )
    assert list(softmax.state_dict()) == list(pid.state_dict())
    pid.load_state_dict(softmax.state_dict())
    images = torch.rand(1, 3, 16, 16)
    assert torch.equal(softmax.eval()(images), pid.eval()(images))


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    """A classification run of the same width: digits are grey, so its first layer is made here."""
    folder = tmp_path_factory.mktemp("runs") / "backbone"
    train(
        tiny_recipe("schedule.epochs=1", "model.gains=0.8,0.5,0.05,0.1"),
        folder,
        device="cpu",
        is_shown=False,
    )
    torch.manual_seed(4)
    options = {"patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "mlp_ratio": 2}
    model = create_model("pid_deit_tiny_patch16_224", img_size=32, num_classes=10, **options)
    save_file(model.state_dict(), folder / "model.safetensors")
    return folder, model.state_dict()


def test_a_run_becomes_the_backbone_and_both_gains_are_recorded(tmp_path, data, backbone):
    folder, weights = backbone
    given = recipe(f"segmentation.backbone={folder}", "schedule.epochs=1")
    with pytest.warns(
        UserWarning, match=r"trained with gains .*p=0.8.*the segmenter takes .*p=0.4"
    ):
        model = build_task(given, data).build()
    assert torch.equal(
        model.encoder.state_dict()["blocks.1.mlp.fc1.weight"], weights["blocks.1.mlp.fc1.weight"]
    )
    with pytest.warns(UserWarning, match="trained with gains"):
        train(given, tmp_path / "run", data=data, device="cpu", is_shown=False)
    info = read_model_info(tmp_path / "run")["backbone"]
    assert info["gains"] == "0.8,0.5,0.05,0.1" and len(info["weights"]) == 16
    assert json.loads((tmp_path / "run" / "model.json").read_text())
    pf.load(tmp_path / "run")  # does not need the backbone


def test_a_segmenter_starts_from_the_weights_of_another(tmp_path, data):
    path = tmp_path / "before.safetensors"
    weights = build_task(recipe(), data).build().state_dict()
    save_file(weights, path)
    model = build_task(recipe(f"model.init={path}"), data).build()
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_a_safetensors_file_becomes_the_backbone(tmp_path, data, backbone):
    path = tmp_path / "deit.safetensors"
    save_file(backbone[1], path)
    model = build_task(recipe(f"segmentation.backbone={path}"), data).build()
    assert torch.equal(model.encoder.state_dict()["norm.weight"], backbone[1]["norm.weight"])


def test_backbones_that_cannot_be_used(tmp_path, data, backbone, whole):
    cases = {
        "deit.pth": "run folder or a .safetensors file",
        str(tmp_path / "none.safetensors"): "no weights at",
        str(whole[0]): "is a run of segmentation",
        str(tmp_path): "not a run folder",
    }
    for where, words in cases.items():
        with pytest.raises(InputError, match=words):
            build_task(recipe(f"segmentation.backbone={where}"), data).build()
    wide = recipe(f"segmentation.backbone={backbone[0]}", "model.options.embed_dim=32")
    with pytest.raises(InputError, match="is 16 wide, this encoder 32"):
        build_task(wide, data).build()


def test_ade20k_is_as_published():
    softmax, pid = (load_recipe(f"ade20k/segmenter_tiny_{name}") for name in ("softmax", "pid"))
    assert softmax.model.gains is None and pid.model.gains == "segmenter"
    assert softmax.optim.name == "sgd" and softmax.optim.momentum == 0.9
    assert softmax.optim.weight_decay == 0 and softmax.optim.clip is None
    assert (softmax.peak_lr, softmax.schedule.min_lr) == (1e-3, 1e-5)
    assert softmax.schedule.name == "poly" and softmax.schedule.power == 0.9
    assert softmax.schedule.epochs == 64 and softmax.data.batch_size == 8
    assert softmax.train.precision == "fp32" and softmax.data.image_size == 512
    own = softmax.segmentation
    assert own is not None and own.scale == (2048, 512) and own.stride == 480
    assert own.augment.ratio == (0.5, 2.0) and own.augment.max_category == 0.75
    levels = [123.68, 116.28, 103.53], [58.40, 57.12, 57.38]
    for found, expected in zip((softmax.data.mean, softmax.data.std), levels, strict=True):
        np.testing.assert_allclose(np.array(found) * 255, expected, atol=1e-5)


def test_camvid_twins_differ_in_gains_only():
    softmax, pid = (load_recipe(f"camvid/{name}").to_dict() for name in ("softmax", "pid"))
    assert [line.split(":")[0] for line in difference(softmax, pid)] == ["model.gains"]


def test_poly_schedule_is_its_formula():
    schedule = ScheduleRecipe(name="poly", epochs=64, warmup_epochs=0, min_lr=1e-5)
    for step in (0, 1, 1000, 161_727):
        expected = (1e-3 - 1e-5) * (1 - step / 161_728) ** 0.9 + 1e-5
        assert learning_rate(schedule, 1e-3, step, 2527) == pytest.approx(expected, rel=1e-12)
    assert learning_rate(schedule, 1e-3, 161_728, 2527) == 1e-5


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"task": "segmentation", "augment": {"flip": 0.1}}, "segmentation.augment"),
        ({"segmentation": {"scale": [64, 24]}}, "needs task: segmentation"),
        (
            {"task": "segmentation", "segmentation": {"decoder": {"name": "masks"}}},
            "segmentation.decoder.name must be one of mask, linear",
        ),
        (
            {"task": "segmentation", "segmentation": {"augment": {"flop": 1}}},
            "did you mean 'segmentation.augment.flip'",
        ),
    ],
)
def test_recipes_are_checked(fields, words):
    with pytest.raises(InputError) as caught:
        recipe_from(fields)
    assert words in str(caught.value)


def test_data_must_be_named(data):
    with pytest.raises(InputError, match="trains on camvid; say where with --data DIR"):
        build_task(recipe(), None)
    with pytest.raises(InputError, match="3 values"):
        build_task(recipe("data.mean=[0.5]"), data)


def test_a_run_of_before_the_new_keys_goes_on(whole, tmp_path, data):
    """Keys that a saved recipe does not have count as their defaults."""
    run = tmp_path / "run"
    shutil.copytree(whole[0], run)
    fields = yaml.safe_load((run / "recipe.yaml").read_text())
    del fields["schedule"]["power"], fields["segmentation"]["augment"]["hue"]
    (run / "recipe.yaml").write_text(yaml.safe_dump(fields))
    assert train(recipe(), run, data=data, device="cpu", is_shown=False) == whole[1]


def test_learned_gains_of_a_backbone_are_named_when_left_out(tmp_path, data, backbone):
    run = tmp_path / "learned"
    shutil.copytree(backbone[0], run)
    weights = dict(backbone[1])
    weights["blocks.1.attn.gains.raw_load"] = torch.zeros(2)
    save_file(weights, run / "model.safetensors")
    task = build_task(recipe(f"segmentation.backbone={run}"), data)
    with pytest.warns(UserWarning, match="learned its gains, from .*p=0.8.*are left out"):
        task.build()


def test_two_processes_train_like_one(tmp_path, data):
    """The same batches, and one mean over all labelled pixels, however these are shared out."""
    options = {"embed_dim": 16, "depth": 2, "num_heads": 2, "patch_size": 4, "init_std": 0.1}
    text = yaml.safe_dump(options, default_flow_style=True).strip()
    overrides = [
        f"model.options={text}", "data.image_size=16", "data.batch_size=4",
        "data.workers=0", "segmentation.scale=[64, 24]", "segmentation.stride=12",
        "segmentation.decoder.dropout=0", "segmentation.augment.ratio=[1.0, 1.0]",
        "schedule.epochs=3", "schedule.warmup_epochs=0", "train.precision=fp32",
        "train.log_steps=1",
    ]  # fmt: skip
    recipe = load_recipe("camvid/pid.yaml", overrides)
    train(recipe, tmp_path / "one", data=data, device="cpu", is_shown=False)
    where = ["--device", "cpu", "--data", data, "--out", tmp_path / "two"]
    parts = ["train.accumulate=2"]
    ends_well(*two(COMMAND, "train", "camvid/pid.yaml", *overrides, *parts, *where))
    one, many = losses(tmp_path / "one"), losses(tmp_path / "two")
    np.testing.assert_allclose(one, many, rtol=2e-4)
    assert one[-1] < one[0] - 0.05
