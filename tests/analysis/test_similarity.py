import numpy as np
import pytest
import timm
import torch
from torch import nn

import pidformer as pf
from pidformer.analysis import (
    attention_measures,
    certify,
    mean_cosine,
    token_similarity,
    token_spectrum,
    token_trajectory,
)

SIZE = {"img_size": 8, "patch_size": 2, "in_chans": 1, "embed_dim": 16, "depth": 3, "num_heads": 2}


@pytest.fixture
def vit():
    torch.manual_seed(0)
    return timm.create_model("pid_deit_tiny_patch16_224", gains="0.4,0.1,0.05", **SIZE)


@pytest.fixture
def images():
    return torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def pairwise(tokens):
    """The definition, pair by pair, in float64."""
    total, pairs = 0.0, 0
    for i in range(len(tokens)):
        for j in range(len(tokens)):
            if i != j:
                a, b = tokens[i].detach().double(), tokens[j].detach().double()
                total += float(a @ b / (a.norm() * b.norm()))
                pairs += 1
    return total / pairs


def test_similarity_matches_the_double_loop(vit, images):
    found = token_similarity(vit, images)
    taken = vit.eval().forward_intermediates(
        images, output_fmt="NLC", return_prefix_tokens=True, intermediates_only=True
    )
    expected = [
        sum(pairwise(torch.cat([prefix[b], rest[b]])) for b in range(len(images))) / len(images)
        for rest, prefix in taken
    ]
    torch.testing.assert_close(found.tolist(), expected, rtol=0, atol=1e-6)


def test_tokens_of_zeros_and_tiny_tokens_are_compared_as_the_definition_says():
    tokens = torch.randn(3, 6, 8, dtype=torch.float64)
    tokens[0, [1, 4]] = 0  # their cosine to any other is 0: no unit vector that could add to it
    tokens[1] *= 1e-30
    tokens[2] = 0
    unit = tokens.numpy() / np.linalg.norm(tokens.numpy(), axis=-1, keepdims=True).clip(1e-300)
    cosines = unit @ unit.transpose(0, 2, 1)
    others = ~np.eye(6, dtype=bool)
    np.testing.assert_allclose(mean_cosine(tokens), cosines[:, others].mean(1), atol=1e-12)
    two = torch.nn.functional.cosine_similarity(tokens[0, 0], tokens[0, 2], dim=0)
    assert mean_cosine(tokens[0, [0, 2]]) == pytest.approx(float(two))
    alike = torch.full((5, 8), 1e-14)
    assert mean_cosine(alike) == pytest.approx(1) and mean_cosine(alike.bfloat16()) > 0.999


def test_identical_tokens_have_similarity_one(vit, images):
    with torch.no_grad():
        vit.pos_embed.zero_()
        vit.cls_token.copy_(vit.patch_embed.proj.bias[None, None])
    blank = torch.zeros_like(images)
    torch.testing.assert_close(token_similarity(vit, blank), torch.ones(3), rtol=0, atol=1e-5)


def test_pixels_and_normalised_images_agree(vit, images):
    pixel = pf.PixelModel(vit, mean=[0.3], std=[0.4])
    torch.testing.assert_close(
        token_similarity(pixel, images), token_similarity(vit, (images - 0.3) / 0.4)
    )


def test_the_size_of_the_parts_changes_nothing(vit, images):
    whole, parts = (token_similarity(vit, images, batch_size=n) for n in (64, 2))
    torch.testing.assert_close(whole, parts)


def test_mode_and_gradients_are_left_alone(images):
    vit = timm.create_model("pid_deit_tiny_patch16_224", drop_path_rate=0.5, **SIZE).train()
    with torch.autocast("cpu", torch.bfloat16):
        first, second = token_similarity(vit, images), token_similarity(vit, images)
    assert torch.equal(first, second) and first.dtype == torch.float32
    assert all(m.training for m in vit.modules()) and not first.requires_grad


def test_the_trajectory_keeps_what_a_plane_can_keep(vit, images):
    points, explained = token_trajectory(vit, images[0])
    assert points.shape == (4, 17, 2) and 0 < explained <= 1
    tokens = vit.eval().embed(images[:1])[0]
    seen = [tokens] + [
        torch.cat([p[0], r[0]])
        for r, p in vit.forward_intermediates(
            images[:1], output_fmt="NLC", return_prefix_tokens=True, intermediates_only=True
        )
    ]
    unit = nn.functional.normalize(torch.stack(seen).double(), dim=-1).detach()
    centred = (unit - unit.mean((0, 1))).flatten(0, 1)
    share = points.double().square().sum() / centred.square().sum()
    assert explained == pytest.approx(float(share), abs=1e-5)
    values = torch.linalg.eigvalsh(centred.T @ centred)
    torch.testing.assert_close(
        points.double().square().sum((0, 1)), values.flip(0)[:2], rtol=1e-4, atol=1e-6
    )
    assert torch.equal(points, token_trajectory(vit, images[0]).points)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda vit, x: token_similarity(nn.Linear(2, 2), x), "PIDVisionTransformer"),
        (lambda vit, x: token_similarity(vit, x[0]), "images must be"),
        (lambda vit, x: token_similarity(vit, x[:0]), "images must be"),
        (lambda vit, x: token_similarity(vit, x, batch_size=0), "batch_size"),
        (lambda vit, x: token_similarity(vit, x, batch_size=2.5), "whole number >= 1, got 2.5"),
        (lambda vit, x: token_similarity(vit, (255 * x).byte()), "floats .*uint8"),
        (lambda vit, x: token_trajectory(vit, x), "one image"),
        (lambda vit, x: certify(vit, x, directions=0), "directions must be .* got 0"),
        (lambda vit, x: certify(vit, x, growth_images=2.5), "growth_images must be .* got 2.5"),
        (lambda vit, x: token_similarity(vit, x / 0), "depth 0 .* not finite; check its weights"),
        (lambda vit, x: token_spectrum(vit, x * torch.nan), "not finite; check its weights"),
        (lambda vit, x: token_trajectory(vit, x[0] * torch.nan), "not finite; check its weights"),
        (lambda vit, x: attention_measures(vit, x * torch.nan), "not finite; .* weights"),
    ],
)
def test_bad_input_gets_one_line(vit, images, call, words):
    with pytest.raises(pf.InputError, match=words) as refused:
        call(vit, images)
    assert "\n" not in str(refused.value)


def test_without_residual_softmax_collapses_and_control_holds_the_tokens_apart(images):
    size = SIZE | {"embed_dim": 32, "depth": 10, "init_std": 0.12, "attention_residual": False}
    torch.manual_seed(0)
    free = timm.create_model("pid_deit_tiny_patch16_224", **size)
    held = timm.create_model("pid_deit_tiny_patch16_224", gains="0.6,0.1,0.05", **size)
    held.load_state_dict(free.state_dict())
    assert f"{float(token_similarity(free, images)[-1]):.3f}" == "1.000"
    assert float(token_similarity(held, images)[-1]) < 0.9
    assert float(token_spectrum(free, images).mean_token_residual[-1]) < 1e-2
