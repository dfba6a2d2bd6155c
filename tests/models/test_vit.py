"""PIDVisionTransformer behaves like a timm model that carries a state through its depth."""

import copy
import io
from concurrent.futures import ThreadPoolExecutor

import pytest
import timm.layers
import torch
from timm.models.vision_transformer import ParallelScalingBlock, VisionTransformer
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV3

from pidformer import InputError, LearnedGains, PIDGains

SAME = {"rtol": 0, "atol": 0}


def test_no_gains_and_zero_gains_equal_timm(build, images):
    theirs = build(VisionTransformer)
    for gains in (None, PIDGains()):
        ours = build(gains=gains)
        theirs.load_state_dict(ours.state_dict())
        torch.testing.assert_close(ours(images), theirs(images), **SAME)


def test_gains_change_the_output_and_not_the_weights(build, images, gains):
    plain, controlled = build(), build(gains=gains)
    torch.testing.assert_close(dict(plain.state_dict()), dict(controlled.state_dict()), **SAME)
    assert not torch.allclose(plain(images), controlled(images), atol=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {"scale_attn_norm": True, "scale_mlp_norm": True},
        {"init_values": 0.1, "qk_norm": True, "qkv_bias": False},
        {"norm_layer": "rmsnorm", "act_layer": "relu", "pre_norm": True},
        {"mlp_layer": timm.layers.SwiGLU, "proj_bias": False, "reg_tokens": 1},
        {"global_pool": "map"},
        {"dtype": torch.float64},
    ],
    ids=lambda options: "-".join(options),
)
def test_timms_keywords_keep_their_meaning(build, images, options):
    ours, theirs = build(gains=PIDGains(), **options), build(VisionTransformer, **options)
    theirs.load_state_dict(ours.state_dict())
    images = images.to(options.get("dtype", torch.float32))
    torch.testing.assert_close(ours(images), theirs(images), rtol=0, atol=1e-6)


def test_keywords_that_would_be_ignored_are_refused(build):
    with pytest.raises(InputError, match="has no attn_layer="):
        build(attn_layer=timm.layers.DiffAttention)
    with pytest.raises(InputError, match="brings its own block"):
        build(block_fn=ParallelScalingBlock)
    with pytest.raises(InputError, match="unknown first_layer 'freed'; did you mean 'free'"):
        build(first_layer="freed")


@pytest.mark.parametrize("gains", [None, PIDGains(p=0.4, i=0.2, d=0.1)])
def test_masks_reach_every_layer(build, images, gains):
    model = build(gains=gains)
    mask = torch.ones(17, 17, dtype=torch.bool).tril()
    causal = model.forward_features(images, is_causal=True)
    torch.testing.assert_close(model.forward_features(images, attn_mask=mask), causal)
    # The class token comes first, so under a causal mask it cannot see the image.
    torch.testing.assert_close(causal[0, 0], causal[1, 0], **SAME)


@pytest.mark.parametrize("learn_gains", [False, True])
def test_checkpointing_keeps_gradients(build, images, gains, learn_gains):
    def gradients(checkpointing):
        model = build(gains=gains, learn_gains=learn_gains, drop_path_rate=0.3).train()
        model.set_grad_checkpointing(checkpointing)
        torch.manual_seed(2)
        model(images).square().sum().backward()
        return {name: parameter.grad for name, parameter in model.named_parameters()}

    plain, checkpointed = gradients(False), gradients(True)
    assert all(gradient is not None for gradient in plain.values())
    torch.testing.assert_close(checkpointed, plain, **SAME)


def test_two_forwards_are_independent(build, images, gains):
    model = build(gains=gains)
    batches = [images, images.flip(0) * 2, torch.zeros(1, 3, 16, 16), images + 1] * 4
    alone = [model(batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(model, batches))
    torch.testing.assert_close(together, alone, **SAME)


def test_an_image_does_not_see_its_batch(build, images, gains):
    model = build(gains=gains)
    torch.testing.assert_close(model(images)[:1], model(images[:1]))


@pytest.mark.slow
@pytest.mark.parametrize("learn_gains", [False, True])
def test_compiles_without_graph_breaks(build, images, gains, learn_gains):
    model = build(gains=gains, learn_gains=learn_gains)
    expected = torch.autograd.grad(model(images).square().sum(), list(model.parameters()))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    out = compiled(images)
    torch.testing.assert_close(out, model(images))
    ours = torch.autograd.grad(out.square().sum(), list(model.parameters()))
    torch.testing.assert_close(ours, expected)
    features = torch.compile(model.forward_intermediates, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(
        features(images, indices=[1, 2], stop_early=True),
        model.forward_intermediates(images, indices=[1, 2], stop_early=True),
    )


def test_classifier_can_be_replaced(build, images, gains):
    model = build(gains=gains)
    assert model.get_classifier() is model.head
    model.reset_classifier(7)
    assert model(images).shape == (2, 7)
    model.reset_classifier(0)
    assert model(images).shape == (2, 24)


@pytest.mark.parametrize("learn_gains", [False, True])
def test_copies_are_equal_and_independent(build, images, gains, learn_gains):
    model = build(gains=gains, learn_gains=learn_gains)
    expected = model(images).detach()
    twin, ema = copy.deepcopy(model), ModelEmaV3(model, decay=0.5)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    stored = torch.load(buffer, weights_only=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    for copied in (twin, ema.module, stored):
        torch.testing.assert_close(copied(images), expected, **SAME)
        assert copied.gains == gains
    ema.update(model)
    assert not torch.equal(ema.module(images), expected)
    twin.load_state_dict(model.state_dict())
    torch.testing.assert_close(twin(images), model(images), **SAME)


def test_learned_gains_act_like_the_fixed_gains_they_start_from(build, images, gains):
    fixed, learned = build(gains=gains), build(gains=gains, learn_gains=True)
    torch.testing.assert_close(learned(images), fixed(images))
    assert learned.gains == gains
    new = set(learned.state_dict()) - set(fixed.state_dict())
    assert new == {f"blocks.{n}.attn.gains.raw_{x}" for n in (1, 2, 3) for x in ("load", "split")}
    assert not set(fixed.state_dict()) - set(learned.state_dict())


def test_gains_are_learned_where_control_acts(build):
    gains = [PIDGains(p=0.2), PIDGains(p=0.2), PIDGains(), PIDGains(p=0.3, i=0.1)]

    def learned(**options):
        model = build(gains=gains, learn_gains=True, **options)
        return [isinstance(block.attn.gains, LearnedGains) for block in model.blocks]

    assert learned() == [False, True, False, True]
    assert learned(first_layer="controlled") == [True, True, False, True]


def test_learned_gains_train_and_are_not_decayed(build, images, gains):
    model = build(gains=gains, learn_gains=True)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=0.1, weight_decay=0.1)
    groups = optimizer.param_groups
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    attention = model.blocks[2].attn
    assert not {id(parameter) for parameter in attention.gains.parameters()} & decayed
    assert id(attention.qkv.weight) in decayed
    before = attention.gains.values()
    model(images).square().sum().backward()
    optimizer.step()
    after = attention.gains.values()
    assert all(one != two for one, two in zip(before, after, strict=True))
    assert len({head.p for head in after}) == 3


@pytest.mark.parametrize("gains", [None, PIDGains(), [PIDGains()] * 4])
def test_learning_without_control_is_refused(build, gains):
    with pytest.raises(InputError, match="learn_gains needs a layer with control"):
        build(gains=gains, learn_gains=True)


def test_meta_device_materialises_to_the_same_kind_of_model(build, images, gains):
    model = build(gains=gains, learn_gains=True, device="meta").to_empty(device="cpu")
    model.init_weights()
    assert model(images).isfinite().all()
    assert model.blocks[1].attn.gains.values()[0].p == pytest.approx(gains.p)
