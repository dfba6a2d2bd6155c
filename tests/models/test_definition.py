"""The whole model against slow, direct implementations with lists of past values."""

import pytest
import torch

from pidformer import PIDGains


def by_definition(model, images, gains, first_layer="free", attention_residual=True):
    """Definition 1 with e_m = beta v_0 - v_m, every sum written out from the list of values."""
    x = model.patch_embed.proj(images).flatten(2).mT
    x = torch.cat([model.cls_token.expand(len(x), -1, -1), x], dim=1) + model.pos_embed
    values = []
    for depth, (block, layer) in enumerate(zip(model.blocks, gains, strict=True)):
        heads = block.attn.num_heads
        q, k, v = (
            part.unflatten(-1, (heads, -1)).transpose(1, 2)
            for part in block.attn.qkv(block.norm1(x)).chunk(3, dim=-1)
        )
        values.append(v)
        errors = [layer.beta * values[0] - past for past in values]
        out = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1) @ v
        if first_layer == "controlled":
            previous = errors[-2] if depth > 0 else errors[-1]
            out = out + layer.p * errors[-1] + layer.i * sum(errors)
            out = out + layer.d * (errors[-1] - previous)
        elif depth > 0:
            out = out + layer.p * errors[-1] + layer.i * sum(errors[1:])
            out = out + layer.d * (errors[-1] - errors[-2])
        out = block.attn.proj(out.transpose(1, 2).flatten(2))
        x = x + out if attention_residual else out
        x = x + block.mlp(block.norm2(x))
    return model.head(model.norm(x)[:, 0])


@pytest.mark.parametrize("attention_residual", [True, False])
@pytest.mark.parametrize("first_layer", ["free", "controlled"])
def test_model_equals_definition_1_in_float64(
    build, images, gains, first_layer, attention_residual
):
    options = {"first_layer": first_layer, "attention_residual": attention_residual}
    model = build(gains=gains, **options).double()
    expected = by_definition(model, images.double(), [gains] * 4, **options)
    torch.testing.assert_close(model(images.double()), expected, rtol=1e-11, atol=1e-11)


def test_each_layer_can_have_its_own_gains(build, images):
    gains = [PIDGains(p=0.1 * n, i=0.05 * n, d=0.02 * (4 - n), beta=0.5) for n in range(4)]
    model = build(gains=gains).double()
    expected = by_definition(model, images.double(), gains)
    torch.testing.assert_close(model(images.double()), expected, rtol=1e-11, atol=1e-11)
    assert model.gains == tuple(gains)


def test_gradients_equal_those_of_definition_1(build, images, gains):
    model = build(gains=gains).double()
    parameters = list(model.parameters())
    ours = torch.autograd.grad(model(images.double()).square().sum(), parameters)
    direct = by_definition(model, images.double(), [gains] * 4).square().sum()
    for one, two in zip(ours, torch.autograd.grad(direct, parameters), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-10)


def neutreno(model, images, alpha):
    """NeuTRENO: attention plus alpha (v_0 - v), from the second layer on."""
    x = model.norm_pre(model._pos_embed(model.patch_embed(images)))
    initial = None
    for block in model.blocks:
        heads = block.attn.num_heads
        qkv = block.attn.qkv(block.norm1(x)).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        out = (q * q.shape[-1] ** -0.5 @ k.mT).softmax(-1) @ v
        initial = v if initial is None else initial
        out = (out + alpha * (initial - v)).transpose(1, 2).flatten(2)
        x = x + block.attn.proj(out)
        x = x + block.mlp(block.norm2(x))
    return model.head(model.norm(x)[:, 0])


@pytest.mark.parametrize("first_layer", ["free", "controlled"])
def test_p_control_with_beta_one_equals_neutreno(build, images, first_layer):
    model = build(gains=PIDGains(p=0.6), first_layer=first_layer)
    torch.testing.assert_close(model(images), neutreno(model, images, 0.6), rtol=1e-5, atol=1e-5)
