"""Intermediate features: timm's options, timm's results, one loop over depth."""

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer

from pidformer import InputError, PIDGains, scan_blocks

OPTIONS = [
    {},
    {"indices": 2},
    {"indices": [0, -1]},
    {"indices": [1], "stop_early": True},
    {"norm": True},
    {"return_prefix_tokens": True},
    {"output_fmt": "NLC"},
    {"intermediates_only": True},
    {"output_dict": True},
    {"output_dict": True, "return_prefix_tokens": True, "intermediates_only": True},
    {"output_dict": True, "indices": [2], "stop_early": True, "norm": True, "output_fmt": "NLC"},
    {"is_causal": True},
    {"attn_mask": torch.ones(17, 17, dtype=torch.bool).tril()},
]


@pytest.fixture
def twins(build):
    """Our model with zero gains, and timm's with the same weights."""
    ours, theirs = build(gains=PIDGains()), build(VisionTransformer)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "defaults")
def test_zero_gains_give_timms_intermediates(twins, images, options):
    ours, theirs = (model.forward_intermediates(images, **options) for model in twins)
    assert type(ours) is type(theirs)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "options", [{"class_token": False, "global_pool": "avg"}, {"reg_tokens": 2}]
)
def test_other_prefixes_give_timms_intermediates(build, images, options):
    ours, theirs = build(gains=PIDGains(), **options), build(VisionTransformer, **options)
    theirs.load_state_dict(ours.state_dict())
    for prefix in (False, True):
        one, two = (
            model.forward_intermediates(images, return_prefix_tokens=prefix, output_dict=prefix)
            for model in (ours, theirs)
        )
        torch.testing.assert_close(one, two, rtol=0, atol=1e-6)
    torch.testing.assert_close(ours(images), theirs(images), rtol=0, atol=1e-6)


def test_forward_intermediates_equals_observed_blocks(build, images, gains):
    model = build(gains=gains)
    seen = []
    tokens = model._pos_embed(model.patch_embed(images))
    scan_blocks(model.blocks, tokens, observe=lambda depth, x, state: seen.append(x))
    final, outputs = model.forward_intermediates(
        images, return_prefix_tokens=True, output_fmt="NLC"
    )
    for x, (patches, prefix) in zip(seen, outputs, strict=True):
        torch.testing.assert_close(torch.cat([prefix, patches], dim=1), x, rtol=0, atol=0)
    torch.testing.assert_close(final, model.forward_features(images), rtol=0, atol=0)


def test_images_of_another_size_give_feature_maps_of_another_size(build, gains):
    model = build(gains=gains, dynamic_img_size=True)
    wide = torch.randn(1, 3, 16, 24)
    assert model(wide).shape == (1, 5)
    maps = model.forward_intermediates(wide, intermediates_only=True)
    assert [out.shape for out in maps] == [(1, 24, 4, 6)] * 4


def test_pruned_model_keeps_its_intermediates(build, images, gains):
    model = build(gains=gains)
    before = model.forward_intermediates(images, indices=[0, 2], intermediates_only=True)
    kept = model.prune_intermediate_layers([0, 2], prune_norm=True)
    assert len(model.blocks) == 3
    after = model.forward_intermediates(images, indices=kept, intermediates_only=True)
    torch.testing.assert_close(after, before, rtol=0, atol=0)


def test_features_only(images, gains):
    name, size = "pid_deit_tiny_patch16_224", {"img_size": 16, "patch_size": 4, "depth": 4}
    features = timm.create_model(
        name, features_only=True, out_indices=(1, 3), gains=gains, embed_dim=24, **size
    ).eval()
    expected = features.model.forward_intermediates(images, [1, 3], intermediates_only=True)
    torch.testing.assert_close(features(images), expected, rtol=0, atol=0)
    assert features.feature_info.channels() == [24, 24]


def test_unknown_format_is_refused(build, images):
    with pytest.raises(InputError, match="unknown output_fmt 'NHWC'"):
        build().forward_intermediates(images, output_fmt="NHWC")
