import pytest
import timm
import torch

import pidformer as pf
from pidformer.analysis import control_scale
from pidformer.errors import InputError
from pidformer.nn import LearnedGains
from pidformer.nn.gains import set_gain_share
from pidformer.runs.model import initial_model
from pidformer.training.run import train
from tests.report.runs import make_run, small_vit
from tests.training.tiny import tiny_recipe

IMAGES = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def written_out(model, gains, leak=1.0):
    """Root mean squares of A v and of the control, from the definition, block by block."""
    outputs, controls, v_0, total = [], [], None, 0
    x = model.embed(IMAGES)
    state = None
    for block, own in zip(model.blocks, gains, strict=True):
        q, k, v = block.attn.qkv(block.norm1(x)).unflatten(-1, (6, 8)).transpose(1, 2).split(2, 1)
        outputs.append((q @ k.mT / 8**0.5).softmax(-1) @ v)
        if v_0 is None:
            v_0, before, control = v, v, torch.zeros_like(v)
        else:
            error = own.beta * v_0 - v
            total = leak * total + error
            control = own.p * error + own.i * total + own.d * (before - v)
            before = v
        controls.append(control)
        x, state = block(x, state)
    rms = [
        torch.stack([t.double().square().mean().sqrt() for t in ts]) for ts in (outputs, controls)
    ]
    return rms


@torch.no_grad()
@pytest.mark.parametrize("leak", [1.0, 0.5])
def test_the_scale_is_that_of_the_definition(leak):
    gains = pf.PIDGains(p=0.4, i=0.2, d=0.05, beta=0.5)
    model = small_vit("0.4,0.2,0.05,0.5", integral_leak=leak)
    output, control = written_out(model, [gains] * 3, leak)
    found = control_scale(model, IMAGES, batch_size=2)
    torch.testing.assert_close(found.output, output, rtol=1e-5, atol=0)
    torch.testing.assert_close(found.control, control, rtol=1e-5, atol=1e-9)
    assert found.ratio[0] == 0 and found.mean_ratio == pytest.approx(float(found.ratio[1:].mean()))


@torch.no_grad()
@pytest.mark.parametrize("terms", ["0.6,0,0,1", "0.6,0,0,0.5", "0.6,0,0.1,0.5", "0,0,0.1,1"])
def test_a_network_that_hands_on_less_is_measured_alike(terms):
    """Without an integral (and a derivative) the state holds no sum (and no previous values)."""
    model = small_vit(terms)
    output, control = written_out(model, [model.gains] * 3)
    found = control_scale(model, IMAGES)
    torch.testing.assert_close(found.output, output, rtol=1e-5, atol=0)
    torch.testing.assert_close(found.control, control, rtol=1e-5, atol=1e-9)
    assert not any("reads_whole_state" in vars(block.attn) for block in model.blocks)


@torch.no_grad()
def test_learned_p_control_is_measured():
    fixed, learned = small_vit("0.6,0,0"), small_vit("0.6,0,0", learn_gains=True)
    wanted = control_scale(fixed, IMAGES).control
    assert wanted[1:].min() > 0
    torch.testing.assert_close(control_scale(learned, IMAGES).control, wanted, rtol=1e-4, atol=0)


@torch.no_grad()
def test_gains_by_layer_learned_and_ramped_count_as_they_act():
    one = small_vit(["0,0,0", "0,0,0", "0.4,0,0"])
    assert control_scale(one, IMAGES).control.tolist()[:2] == [0, 0]
    full = control_scale(small_vit("0.4,0.1,0.05"), IMAGES)
    learned = small_vit("0.4,0.1,0.05", learn_gains=True)
    assert isinstance(learned.blocks[1].attn.gains, LearnedGains)
    torch.testing.assert_close(
        control_scale(learned, IMAGES).control, full.control, rtol=1e-4, atol=0
    )
    ramped = small_vit("0.4,0.1,0.05")
    set_gain_share(ramped, 0.0)
    assert control_scale(ramped, IMAGES).mean_ratio == 0


def test_softmax_has_none_and_foreign_models_are_refused():
    assert control_scale(small_vit(), IMAGES).mean_ratio == 0
    assert control_scale(small_vit(value_residual=0.5), IMAGES).mean_ratio == 0
    foreign = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1)
    with pytest.raises(InputError, match="does not hand its state"):
        control_scale(foreign, torch.rand(1, 3, 32, 32))


@pytest.mark.slow
def test_the_initial_model_is_the_one_that_training_began_with(tmp_path):
    recipe = tiny_recipe(
        "optim.lr=1e-20",
        "optim.weight_decay=0",
        "schedule.epochs=1",
        "seed=3",
        "schedule.warmup_lr=1e-20",
        "schedule.min_lr=1e-20",
        "train.ema=null",
    )
    train(recipe, tmp_path / "run", device="cpu", is_shown=False)
    before, after = initial_model(tmp_path / "run"), pf.load(tmp_path / "run")
    for name, weight in before.state_dict().items():
        torch.testing.assert_close(weight, after.state_dict()[name], rtol=0, atol=1e-12)
    first = make_run(tmp_path / "first", None)
    begun = make_run(tmp_path / "begun", "0.4,0.1,0.05", f"model.init={first}")
    with pytest.raises(InputError, match="began with the weights of"):
        initial_model(begun)


@pytest.mark.slow
def test_analysis_records_the_scale_now_and_at_first(tmp_path):
    from pidformer import results
    from pidformer.evaluation.analysis import analyze

    run = make_run(tmp_path / "pid", "0.4,0.1,0.05")
    softmax = make_run(tmp_path / "softmax", None)
    analyze([run, softmax], limit=8, device="cpu", is_shown=False, out=tmp_path / "no")
    (record,) = [r for r in results.read(run) if r.settings.get("what") == "control_scale"]
    assert record.metrics["ratio"] > 0 and len(record.details["initial_ratio"]) == 3
    assert not [r for r in results.read(softmax) if r.settings.get("what") == "control_scale"]
    assert not (tmp_path / "no").exists()
