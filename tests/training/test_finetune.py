"""Training that starts from other weights, with gains that come in slowly."""

import pytest
import torch

import pidformer as pf
from pidformer import results
from pidformer.convert.mark import MARK, unmarked
from pidformer.errors import InputError
from pidformer.runs.folder import load_weights, read_model_info, save_weights
from pidformer.runs.model import build_network
from pidformer.runs.open import run_fingerprint
from pidformer.runs.twins import recipe_hash
from pidformer.runs.weights import fingerprint, start_from
from pidformer.training import load_recipe
from pidformer.training.converted import convert_run
from pidformer.training.recipe import SHIPPED
from pidformer.training.run import train
from tests.training.tiny import tiny_recipe

pytestmark = pytest.mark.slow

SOFTMAX = ("model.gains=null", "schedule.epochs=1", "schedule.warmup_epochs=0")


@pytest.fixture(scope="module")
def softmax(tmp_path_factory):
    out = tmp_path_factory.mktemp("softmax") / "run"
    train(tiny_recipe(*SOFTMAX), out, device="cpu", is_shown=False)
    return out


def test_a_run_starts_from_the_weights_of_another(softmax, tmp_path):
    frozen = ("optim.lr=0", "optim.weight_decay=0", "schedule.warmup_lr=0", f"model.init={softmax}")
    out = tmp_path / "run"
    train(tiny_recipe("schedule.epochs=1", *frozen), out, device="cpu", is_shown=False)
    before, after = (load_weights(run / "model.safetensors") for run in (softmax, out))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_gains_ramp_up_and_the_run_resumes_exactly(softmax, tmp_path, monkeypatch):
    from pidformer.training.loop import Trainer

    seen, real = [], Trainer._train_step

    def watched(self, batch, rate):
        seen.append(float(self.model.blocks[1].attn.gain_share))
        if self.step == 7 and stop_at:
            raise KeyboardInterrupt
        return real(self, batch, rate)

    monkeypatch.setattr(Trainer, "_train_step", watched)
    given = tiny_recipe("schedule.epochs=1", "schedule.gain_ramp=0.5", f"model.init={softmax}")
    stop_at = False
    train(given, tmp_path / "whole", device="cpu", is_shown=False)
    steps = len(seen)
    assert seen == pytest.approx([min(1, step / steps / 0.5) for step in range(steps)])
    stop_at = True
    with pytest.raises(KeyboardInterrupt):
        train(given, tmp_path / "parts", device="cpu", is_shown=False)
    stop_at = False
    train(given, tmp_path / "parts", device="cpu", is_shown=False)
    a, b = (load_weights(tmp_path / run / "model.safetensors") for run in ("whole", "parts"))
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_the_best_weights_are_the_best_with_whole_gains(softmax, tmp_path):
    """Weaker gains on the way score higher here, but it is with whole ones that a run is used."""
    ramped = ("model.gains=9,0,0,1", "schedule.gain_ramp=1", "optim.lr=1e-4")
    recipe = tiny_recipe(f"model.init={softmax}", *ramped, "train.keep_best=true")
    run = tmp_path / "run"
    train(recipe, run, device="cpu", is_shown=False)
    scores = [r.metrics["top1"] for r in results.read(run) if r.kind == "evaluate"]
    assert scores[0] > scores[-1]
    best, last = (load_weights(run / f"{name}.safetensors") for name in ("best", "model"))
    assert all(torch.equal(best[key], last[key]) for key in last)


def test_a_timm_model_by_name_trains_and_loads(tmp_path):
    options = "{patch_size: 4, embed_dim: 16, depth: 2, num_heads: 2}"
    given = tiny_recipe(
        "model.name=timm:vit_tiny_patch16_224", f"model.options={options}", "schedule.epochs=1"
    )
    scores = train(given, tmp_path / "run", device="cpu", is_shown=False)
    model = pf.load(tmp_path / "run")
    assert type(model.model).__name__ == "ControlledVisionTransformer" and scores["images"] == 360
    with pytest.warns(UserWarning, match="trained with gains"):
        other = pf.load(tmp_path / "run", gains="0.1,0,0")
    assert other.model.gains == pf.PIDGains(p=0.1)
    x = torch.rand(2, 1, 8, 8)
    assert not torch.equal(model(x), other(x))


def test_a_timm_run_says_its_controller_and_one_from_before_loads_as_it_did(tmp_path, recwarn):
    options = "{patch_size: 4, embed_dim: 16, depth: 2, num_heads: 2}"
    timm = ("model.name=timm:vit_tiny_patch16_224", f"model.options={options}")
    run, path = tmp_path / "run", tmp_path / "run" / "model.safetensors"
    train(tiny_recipe(*timm, "schedule.epochs=1"), run, device="cpu", is_shown=False)
    model, weights, name = pf.load(run), load_weights(path), run_fingerprint(run)
    assert MARK in weights
    convert_run(str(run), "0.1,0,0", tmp_path / "other")
    other = load_weights(tmp_path / "other" / "model.safetensors")
    assert float(other[MARK][0, 0]) == pytest.approx(0.1)
    save_weights(path, unmarked(weights))
    x = torch.rand(2, 1, 8, 8)
    assert torch.equal(pf.load(run)(x), model(x)) and run_fingerprint(run) == name
    for gains in ("null", "0.2,0,0"):  # a recipe says which controller its weights go on with
        recipe = tiny_recipe(*timm, f"model.gains={gains}").to_dict()
        network = build_network(recipe, read_model_info(run)["build"])
        start_from(network, str(tmp_path / "other"))
        assert fingerprint(network) == fingerprint(model.model)
    assert not [w for w in recwarn if "controller" in str(w.message)]


def test_twins_of_a_fine_tuning_share_their_recipe(softmax):
    plain = tiny_recipe("model.gains=null", f"model.init={softmax}").to_dict()
    ramped = tiny_recipe(f"model.init={softmax}", "schedule.gain_ramp=0.3").to_dict()
    assert recipe_hash(plain) == recipe_hash(ramped)
    assert recipe_hash(plain) != recipe_hash(tiny_recipe().to_dict())
    older = tiny_recipe().to_dict()  # written before these keys were there
    del older["model"]["init"], older["schedule"]["gain_ramp"]
    del older["schedule"]["gain_ramp_by_layer"]
    assert recipe_hash(older) == recipe_hash(tiny_recipe().to_dict())


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["schedule.gain_ramp=1.5"], "end after training"),
        (["model.init=nowhere"], "no run folder and no .safetensors file at nowhere"),
        (["model.name=timm:vit_tinny"], "timm has no model 'vit_tinny'"),
        (["model.name=timm:resnet18", "model.options={}"], "ResNet cannot be converted|timm model"),
        (
            ["model.name=timm:vit_tiny_patch16_224", "model.attention_residual=false"],
            "keeps its residuals",
        ),
    ],
)
def test_bad_input_gets_one_line(overrides, words, tmp_path):
    with pytest.raises(InputError, match=words):
        train(tiny_recipe(*overrides), tmp_path / "run", device="cpu", is_shown=False)


def test_weights_that_do_not_fit_are_refused(softmax, tmp_path):
    given = tiny_recipe(f"model.init={softmax}", "model.options.depth=3")
    with pytest.raises(InputError, match=r"does not fit the recipe's model \(lacks blocks\.2"):
        train(given, tmp_path / "run", device="cpu", is_shown=False)


def test_a_head_for_other_classes_starts_anew(tmp_path):
    a, b = torch.nn.ModuleDict({"head": torch.nn.Linear(2, 3), "x": torch.nn.Linear(2, 2)}), None
    b = torch.nn.ModuleDict({"head": torch.nn.Linear(2, 5), "x": torch.nn.Linear(2, 2)})
    save_weights(tmp_path / "a.safetensors", a.state_dict())
    with pytest.warns(UserWarning, match="knows 3 classes, the data have 5"):
        start_from(b, str(tmp_path / "a.safetensors"))
    assert torch.equal(a["x"].weight, b["x"].weight)


@pytest.mark.parametrize(
    "path", sorted((SHIPPED / "finetune").glob("*.yaml")), ids=lambda p: p.stem
)
def test_a_recipe_that_goes_on_from_a_run_asks_which(path, tmp_path):
    """Before data are opened: there are none."""
    recipe = load_recipe(f"finetune/{path.name}")
    with pytest.raises(InputError, match=r"at RUN; say which with model\.init=RUN"):
        train(recipe, tmp_path / "run", data=tmp_path / "none", device="cpu", is_shown=False)
