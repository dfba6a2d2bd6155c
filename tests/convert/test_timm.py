import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from timm.models.vision_transformer_sam import VisionTransformerSAM

import pidformer as pf
from pidformer.analysis import token_similarity
from pidformer.convert.mark import MARK
from pidformer.errors import InputError
from pidformer.runs.folder import save_weights, write_model_info, write_recipe
from pidformer.runs.recipe import DataRecipe, ModelRecipe, Recipe
from tests.convert.families import SMALL, TIMM, check_definition, timm_model

GAINS = pf.PIDGains(p=0.4, i=0.2, d=0.1, beta=0.8)


def images(count=2, size=32):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


@pytest.fixture(params=TIMM)
def model(request):
    return timm_model(request.param)


@torch.no_grad()
def test_a_bias_by_relative_position_and_a_mask_act_together():
    converted, x = pf.convert(timm_model("beit"), GAINS), images()
    seen = torch.ones(17, 17, dtype=torch.bool).tril()
    as_bool = converted.forward_features(x, attn_mask=seen)
    as_number = torch.zeros(17, 17).masked_fill(~seen, -torch.inf)
    torch.testing.assert_close(converted.forward_features(x, attn_mask=as_number), as_bool)
    changed = x.clone()
    changed[:, :, 24:] += 1  # the last row of patches
    other = converted.forward_features(changed, attn_mask=seen)
    torch.testing.assert_close(other[:, :13], as_bool[:, :13])
    assert not torch.allclose(other[:, 13:], as_bool[:, 13:], atol=1e-3)


@pytest.mark.parametrize("family", ["naflex", "naflex factorised"])
@torch.no_grad()
def test_patches_with_coordinates_are_controlled_as_the_image_they_come_from(family):
    """A batch padded with patches that the mask hides; and the same image whole."""
    model, x = timm_model(family), images()
    patches = x.unflatten(-1, (4, 8)).unflatten(-3, (4, 8))  # (B, 3, 4, 8, 4, 8)
    patches = patches.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)  # (B, 16, 8 * 8 * 3)
    places = torch.cartesian_prod(torch.arange(4), torch.arange(4)).expand(2, -1, -1)
    given = {
        "patches": torch.cat([patches, torch.randn(2, 3, patches.shape[-1])], dim=1),
        "patch_coord": torch.cat([places, torch.zeros(2, 3, 2, dtype=places.dtype)], dim=1),
        "patch_valid": (torch.arange(19) < 16).expand(2, -1),
    }
    assert torch.equal(pf.convert(model, pf.PIDGains())(given), model(given))
    converted = pf.convert(model, GAINS)
    torch.testing.assert_close(converted(given), converted(x), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(converted(given), model(given), atol=1e-3)
    with pytest.raises(InputError, match="whole images only"):
        converted.forward_intermediates(given, output_fmt="NLC")


@torch.no_grad()
def test_zero_gains_change_no_bit(model):
    x = images()
    converted = pf.convert(model, pf.PIDGains())
    assert torch.equal(converted(x), model(x))
    has_prefix = getattr(model, "num_prefix_tokens", 0) > 0  # SAM does not know the option
    asked = {"norm": True} | ({"return_prefix_tokens": True} if has_prefix else {})
    for ours, theirs in zip(
        converted.forward_intermediates(x, **asked)[1],
        model.forward_intermediates(x, **asked)[1],
        strict=True,
    ):
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("first_layer", ["free", "controlled"])
@torch.no_grad()
def test_control_is_the_definition_computed_from_the_values(model, first_layer, monkeypatch):
    if isinstance(model, VisionTransformerSAM):
        pytest.skip("its windows have a test of their own, in test_timm_sam.py")
    x = images()
    gains = [GAINS, GAINS, pf.PIDGains(p=0.1, i=0.3, d=0.2, beta=0.8), GAINS]
    converted = pf.convert(model, gains, first_layer=first_layer)
    check_definition(converted, x, gains, first_layer, monkeypatch)
    assert not torch.allclose(converted(x), model(x), atol=1e-3)


def test_keys_parameters_and_class_stay(model):
    converted = pf.convert(model, GAINS)
    ours, theirs = converted.state_dict(), model.state_dict()
    assert list(ours) == [*theirs, MARK]
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    assert [n for n, _ in converted.named_parameters()] == [n for n, _ in model.named_parameters()]
    assert isinstance(converted, type(model)) and converted.gains == GAINS
    assert type(model).__module__.startswith("timm.")  # the copy was converted, not the model


def test_checkpointing_keeps_gradients(model):
    x, found = images(), []
    for is_on in (False, True):
        converted = pf.convert(model, GAINS).train()
        converted.set_grad_checkpointing(is_on)
        torch.manual_seed(2)  # Sapiens2 rescales its positions at random in training
        converted(x).square().sum().backward()
        found.append({n: p.grad for n, p in converted.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_revert_gives_the_original_back(model):
    before, x = copy.deepcopy(model), images()
    assert pf.convert(model, GAINS, inplace=True) is model
    assert pf.revert(model) is model
    assert [type(m) for m in model.modules()] == [type(m) for m in before.modules()]
    for ours, theirs in zip(model.modules(), before.modules(), strict=True):
        assert ours.__dict__.keys() == theirs.__dict__.keys()
        assert ours._buffers.keys() == theirs._buffers.keys()
    assert torch.equal(model(x), before(x))


@torch.no_grad()
def test_layers_choose_what_is_controlled():
    model, x = timm_model("vit"), images()
    chosen = pf.convert(model, GAINS, layers=[1, -1])
    none = GAINS.scaled(0)
    assert chosen.gains == (none, GAINS, none, GAINS)
    assert torch.equal(chosen(x), pf.convert(model, [none, GAINS, none, GAINS])(x))
    assert pf.convert(model, GAINS, layers=np.array([1, 3])).gains == chosen.gains
    assert pf.convert(model, GAINS, layers=2).gains == (none, none, GAINS, none)
    assert not torch.equal(chosen(x), pf.convert(model, GAINS)(x))


@torch.no_grad()
def test_converting_again_replaces_the_gains():
    model, x = timm_model("vit"), images()
    twice = pf.convert(pf.convert(model, "0.9,0,0"), GAINS)
    assert torch.equal(twice(x), pf.convert(model, GAINS)(x))


@torch.no_grad()
def test_a_converted_vit_is_our_vit_with_its_weights():
    theirs, x = timm_model("deit"), images()
    ours = timm.create_model("pid_deit_tiny_patch16_224", gains=GAINS, **SMALL, patch_size=8).eval()
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(x), pf.convert(theirs, GAINS)(x), rtol=1e-5, atol=1e-5)


def test_learned_gains_get_gradients_and_keys_of_their_own():
    model = timm_model("vit")
    converted = pf.convert(model, GAINS, learn_gains=True)
    new = set(converted.state_dict()) - set(model.state_dict()) - {MARK}
    assert new == {
        f"blocks.{n}.attn.gains.{k}" for n in (1, 2, 3) for k in ("raw_load", "raw_split")
    }
    assert new <= set(converted.no_weight_decay())
    converted(images()).sum().backward()
    assert all(converted.get_parameter(name).grad.abs().sum() > 0 for name in new)
    pf.revert(converted)
    assert list(converted.state_dict()) == list(model.state_dict())


def test_learned_gains_are_by_query_head_where_value_heads_differ_by_layer():
    converted = pf.convert(timm_model("sapiens2"), GAINS, learn_gains=True)
    assert [block.attn.num_kv_heads for block in converted.blocks] == [2, 1, 1, 2]
    assert [block.attn.gains.num_heads for block in converted.blocks[1:]] == [2, 2, 2]
    converted(images()).sum().backward()
    assert all(converted.blocks[n].attn.gains.raw_load.grad.abs().min() > 0 for n in (1, 2, 3))


@torch.no_grad()
def test_the_unfused_path_of_timm_agrees():
    model, x = timm_model("vit"), images()
    for block in model.blocks:
        block.attn.fused_attn = False
    torch.testing.assert_close(pf.convert(model, pf.PIDGains())(x), model(x), rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_quantised_layers_are_called_not_read():
    """Attention goes through the linear layers it has, whatever their weights are kept as."""

    class Packed(torch.nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.scale = float(linear.weight.detach().abs().max()) / 127
            weight = (linear.weight.detach() / self.scale).round().to(torch.int8)
            self.packed, self.bias = [weight], [linear.bias.detach()]

        def forward(self, x):
            return F.linear(x, self.packed[0].float() * self.scale, self.bias[0])

    model, x = timm_model("vit"), images()
    for block in model.blocks:
        block.attn.qkv, block.attn.proj = Packed(block.attn.qkv), Packed(block.attn.proj)
    assert torch.equal(pf.convert(model, pf.PIDGains())(x), model(x))
    assert not torch.equal(pf.convert(model, GAINS)(x), model(x))


@pytest.mark.parametrize("family", ["vit", "eva02", "beit"])
@torch.no_grad()
def test_an_adapter_of_the_projections_is_not_passed_by(family):
    """Merged into the weights it gives what it gave beside them."""
    peft = pytest.importorskip("peft")
    model, x = pf.convert(timm_model(family), GAINS), images()
    before = model(x)
    lora = peft.LoraConfig(r=2, target_modules=["qkv"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, lora).eval()
    beside = adapted(x)
    assert not torch.allclose(beside, before, atol=1e-3)
    torch.testing.assert_close(adapted.merge_and_unload()(x), beside, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_share_of_the_gains():
    model, x = timm_model("vit"), images()
    converted = pf.convert(model, GAINS)
    full = converted(x)
    pf.nn.set_gain_share(converted, 0.0)
    assert torch.equal(converted(x), model(x))
    pf.nn.set_gain_share(converted, [0.0, 0.25, 1.0, 0.5])
    by_layer = [GAINS.scaled(share) for share in (0.0, 0.25, 1.0, 0.5)]
    torch.testing.assert_close(converted(x), pf.convert(model, by_layer)(x))
    assert list(converted.state_dict()) == [*model.state_dict(), MARK]
    pf.nn.set_gain_share(converted, None)
    assert torch.equal(converted(x), full)
    with pytest.raises(InputError, match="3 shares do not fit a model of 4"):
        pf.nn.set_gain_share(converted, [1, 1, 1])


def test_two_forwards_are_independent():
    converted, x = pf.convert(timm_model("eva02"), GAINS), images()
    first = converted(x)
    converted(images(3))
    assert torch.equal(converted(x), first)


@torch.no_grad()
def test_analysis_reads_a_converted_model():
    converted = pf.convert(timm_model("dinov2 reg4"), GAINS)
    assert len(token_similarity(converted, images())) >= 4
    assert pf.analysis.certify(converted, images()) is not None


@pytest.mark.slow
def test_saved_models_load_in_a_new_process_with_pidformer_alone(tmp_path):
    """As run folders; a recipe names no `block_fn`, heads by block, shared bias or windows."""
    unnamed = ("post-norm", "sapiens2", "relative post-norm", "beitv2 shared", "sam", "sam rotated")
    families = [name for name in TIMM if name not in unnamed]
    for family in families:
        name, options = TIMM[family]
        sizes = {key: SMALL[key] for key in ("embed_dim", "depth", "num_heads")}
        recipe = Recipe(
            model=ModelRecipe(
                name=f"timm:{name}",
                gains=GAINS.to_dict(),
                options=options | sizes | {"patch_size": 8},
            ),
            data=DataRecipe(name="unknown", image_size=32),
        )
        folder = tmp_path / family.replace(" ", "_")
        folder.mkdir()
        build = {"num_classes": 5, "channels": 3, "image_size": 32}
        scale = {"mean": [0.5] * 3, "std": [0.5] * 3}
        write_model_info(folder, {"build": build, "classes": list("abcde")} | scale)
        write_recipe(folder, recipe.to_dict())
        model = pf.convert(timm_model(family), GAINS)
        save_weights(folder / "model.safetensors", model.state_dict())
        x = torch.rand(2, 3, 32, 32)
        with torch.no_grad():
            logits = pf.PixelModel(model, [0.5] * 3, [0.5] * 3)(x)
        torch.save({"x": x, "logits": logits}, folder / "seen.pt")
    # Close, not equal: convolutions round by the number of threads, one here and all there.
    code = (
        "import sys, torch, pidformer as pf\n"
        "from pathlib import Path\n"
        "for folder in sorted(Path(sys.argv[1]).iterdir()):\n"
        "    print(folder.name)\n"
        "    seen = torch.load(folder / 'seen.pt', weights_only=True)\n"
        "    with torch.no_grad():\n"
        "        logits = pf.load(folder)(seen['x'])\n"
        "    torch.testing.assert_close(logits, seen['logits'], rtol=1e-5, atol=1e-6)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.split()) == len(families) == 13


@pytest.mark.slow
@torch.no_grad()
def test_compiles_to_one_graph():
    converted, x = pf.convert(timm_model("vit"), GAINS), images()
    compiled = torch.compile(converted, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), converted(x), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.nn.Linear(2, 2), "Linear cannot be converted"),
        (lambda: timm.create_model("resnet18"), "ResNet cannot be converted"),
        (lambda: timm.create_model("swin_tiny_patch4_window7_224"), "SwinTransformer .* merges"),
        (
            lambda: timm.create_model("naflexvit_base_patch16_gap", depth=1, rope_type="axial"),
            "NaFlexVit that rotates",
        ),
        (lambda: timm.create_model("cait_xxs24_224", depth=1), "Cait .* each other's scores"),
        (
            lambda: timm.create_model("pid_deit_tiny_patch16_224", **SMALL, patch_size=8),
            "has a controller of its own",
        ),
        (
            lambda: timm.create_model("vit_tiny_patch16_224", **SMALL, attn_layer="diff"),
            "attention of layer 0 is DiffAttention.*supported: Attention, AttentionRope",
        ),
    ],
)
def test_what_cannot_be_converted_is_named_and_left_alone(make, words):
    model = make()
    kinds = [type(m) for m in model.modules()]
    with pytest.raises(InputError, match=words):
        pf.convert(model, GAINS, inplace=True)
    assert [type(m) for m in model.modules()] == kinds


def test_bad_arguments_get_one_line_and_change_nothing():
    model = timm_model("vit")
    for options, words in (
        ({"gains": [GAINS] * 3}, "gains for 3 layers do not fit a model of 4"),
        ({"gains": None}, "convert needs gains"),
        ({"gains": GAINS, "layers": [4]}, "layers must be numbers from 0 to 3"),
        ({"gains": GAINS, "layers": 3.0}, "as \\[1, -1\\], got 3.0"),
        ({"gains": GAINS, "layers": [True, False, False, True]}, "got True"),
        ({"gains": GAINS, "layers": np.array([True, False])}, "got .*True"),
        ({"gains": GAINS, "first_layer": "fre"}, "did you mean 'free'"),
        ({"gains": pf.PIDGains(), "learn_gains": True}, "learn_gains needs"),
    ):
        with pytest.raises(InputError, match=words):
            pf.convert(model, inplace=True, **options)
        assert type(model) is timm.models.VisionTransformer
    with pytest.raises(InputError, match="nothing to revert"):
        pf.revert(model)


@pytest.mark.parametrize("is_again", [False, True])
@pytest.mark.parametrize(
    ("gains", "learn_gains", "words"),
    [
        ("0,0.5,0", True, "learned gains need p > 0"),
        (["0.4,0,0", "0.4,0,0", "0,0,0.5", "0.4,0,0"], True, "learned gains need p > 0"),
        ("diet", False, "did you mean 'deit'"),
    ],
)
@torch.no_grad()
def test_a_refused_conversion_leaves_the_model_as_it_was(gains, learn_gains, words, is_again):
    """Whatever refuses it, the first time or with a controller that would be replaced."""
    model, x = timm_model("vit"), images()
    if is_again:
        model = pf.convert(model, GAINS, learn_gains=True)
    kinds, keys, out = [type(m) for m in model.modules()], list(model.state_dict()), model(x)
    with pytest.raises(InputError, match=words):
        pf.convert(model, gains, learn_gains=learn_gains, inplace=True)
    assert [type(m) for m in model.modules()] == kinds and list(model.state_dict()) == keys
    assert torch.equal(model(x), out)


@torch.no_grad()
def test_a_converted_model_can_be_pickled(model):
    converted, x = pf.convert(model, GAINS), images()
    again = pickle.loads(pickle.dumps(converted))
    assert [type(m) for m in again.modules()] == [type(m) for m in converted.modules()]
    assert torch.equal(again(x), converted(x)) and again.gains == GAINS
    assert torch.equal(pf.revert(again)(x), model(x))
