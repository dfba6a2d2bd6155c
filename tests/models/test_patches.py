"""Patches by a matrix product against the convolution they stand for."""

import pytest
import timm
import torch
import torch.nn.functional as F

from pidformer.models.patches import PatchProjection, ProjectedPatches, patch_product


@pytest.mark.parametrize(
    ("patch", "size"), [((4, 4), (16, 12)), ((2, 3), (9, 10)), ((8, 8), (8, 8))]
)
@pytest.mark.parametrize("has_bias", [True, False])
def test_same_numbers_and_gradients_as_the_convolution(patch, size, has_bias):
    torch.manual_seed(0)
    options = {"dtype": torch.float64, "requires_grad": True}
    given = [torch.randn(2, 3, *size, **options), torch.randn(5, 3, *patch, **options)]
    given += [torch.randn(5, **options)] if has_bias else []
    bias = given[2] if has_bias else None
    expected = F.conv2d(given[0], given[1], bias, stride=patch)
    found = patch_product(given[0], given[1], bias)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(expected)
    wanted = torch.autograd.grad((expected * weights).sum(), given)
    torch.testing.assert_close(torch.autograd.grad((found * weights).sum(), given), wanted)


def test_tokens_need_no_copy():
    found = patch_product(torch.rand(2, 3, 8, 8), torch.rand(5, 3, 4, 4), None)
    assert found.flatten(2).transpose(1, 2).is_contiguous()


def test_embedding_is_timms_on_the_cpu():
    torch.manual_seed(0)
    theirs = timm.layers.PatchEmbed(16, 4, 3, 8)
    torch.manual_seed(0)
    ours = ProjectedPatches(16, 4, 3, 8)
    assert isinstance(ours.proj, PatchProjection)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=0)
    images = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(ours(images), theirs(images), rtol=0, atol=0)
