"""Ranks and eigenvalues from products with attention, against the matrices themselves."""

import pytest
import timm
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pidformer.analysis import (
    attention_matrices,
    attention_measures,
    eigenvalues,
    token_similarity,
    token_spectrum,
)
from pidformer.analysis.inspection import AttentionCall
from pidformer.analysis.products import _diagonal, _measured
from pidformer.analysis.summary import smoothing_verdict
from tests.analysis.test_tokens import hugging_face


def exact(matrices):
    """(3, B, H) from the whole matrices."""
    sizes = torch.linalg.svdvals(matrices)
    kappas = eigenvalues(matrices)
    place = (kappas - 1).abs().argmin(-1, keepdim=True)
    second = kappas.abs().scatter(-1, place, 0.0).amax(-1)
    rank = sizes.square().sum(-1) / sizes[..., 0].square()
    return torch.stack([rank, second, kappas.real.amin(-1)])


def some_call(tokens, dim, *, groups=2, sharpness=1.0, is_causal=False):
    draw = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, tokens, dim, generator=draw, dtype=torch.float64) * sharpness
    k = torch.randn(2, groups, tokens, dim, generator=draw, dtype=torch.float64)
    return AttentionCall(q, k, is_causal=is_causal)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("sharpness", [0.1, 1.0, 4.0])
def test_with_few_tokens_products_are_exact(is_causal, sharpness):
    call = some_call(14, 16, sharpness=sharpness, is_causal=is_causal)
    found = _measured(call, torch.Generator().manual_seed(1))
    torch.testing.assert_close(found, exact(call.matrix(torch.float64)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("sharpness", [0.3, 1.0])
def test_with_many_tokens_they_are_close(sharpness):
    call = some_call(150, 32, sharpness=sharpness)
    rank, second, _ = _measured(call, torch.Generator().manual_seed(1))
    true_rank, true_second, _ = exact(call.matrix(torch.float64))
    torch.testing.assert_close(rank, true_rank, rtol=0.1, atol=0.1)
    torch.testing.assert_close(second, true_second, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("is_causal", [False, True])
def test_ranks_of_sharp_attention_are_close(is_causal):
    """Far from normal: where A applied often goes, its largest singular value is not."""
    call = some_call(300, 32, sharpness=6.0, is_causal=is_causal)
    rank = _measured(call, torch.Generator().manual_seed(1))[0]
    true_rank = exact(call.matrix(torch.float64))[0]
    torch.testing.assert_close(rank, true_rank, rtol=0.1, atol=0)


@pytest.mark.parametrize("share", [1.0, 0.9, 0.5])
def test_tokens_that_attend_to_themselves_have_their_rank(share):
    """More singular values than columns, and all of a size: none of them may be left out."""
    tokens = 256
    weights = share * torch.eye(tokens) + (1 - share) / tokens
    rank, second, _ = _measured(
        AttentionCall(weights=weights[None, None]), torch.Generator().manual_seed(1)
    )
    true_rank, true_second, _ = exact(weights[None, None].double())
    torch.testing.assert_close(rank, true_rank, rtol=0.1, atol=0)
    torch.testing.assert_close(second, true_second, rtol=1e-3, atol=0)


@pytest.mark.parametrize("tokens", [65, 197, 256])
def test_uniform_attention_is_measured(tokens):
    """What collapse ends in; MKL's eigenvalues do not converge on it."""
    weights = torch.full((1, 2, tokens, tokens), 1 / tokens)
    found = _measured(AttentionCall(weights=weights), torch.Generator().manual_seed(1))
    wanted = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64).view(3, 1, 1).expand(3, 1, 2)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_finished_weights_and_the_diagonal_in_parts(monkeypatch):
    call = some_call(20, 16, is_causal=True)
    matrix = call.matrix(torch.float64)
    monkeypatch.setattr("pidformer.analysis.products.ROWS", 6)
    torch.testing.assert_close(_diagonal(call), matrix.diagonal(dim1=-2, dim2=-1))
    weights = some_call(20, 16).matrix(torch.float64)
    found = _measured(AttentionCall(weights=weights), torch.Generator().manual_seed(1))
    torch.testing.assert_close(found, exact(weights), rtol=1e-6, atol=1e-6)


class Sizes(TorchDispatchMode):
    """The largest tensor that any operation makes, those inside attention too."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = [x.numel() for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        self.most = max([self.most, *made])
        return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_matrix_of_attention_is_made(dtype):
    call = some_call(400, 16, groups=4)
    call = call._replace(query=call.query.to(dtype), key=call.key.to(dtype))
    with Sizes() as seen:
        _measured(call, torch.Generator().manual_seed(1))
    assert seen.most <= call.query.numel()  # a matrix would be 25 times as large
    with Sizes() as seen:
        call.matrix()
    assert seen.most == 25 * call.query.numel()


@pytest.mark.parametrize("kind", ["timm", "hugging face"])
def test_a_model_is_measured_by_layer(kind):
    torch.manual_seed(0)
    if kind == "timm":
        model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=3).eval()
        inputs = torch.rand(3, 3, 32, 32)
    else:
        model = hugging_face("Llama", vocab_size=50, num_key_value_heads=1)
        inputs = torch.randint(0, 50, (3, 12))
    found = attention_measures(model, inputs, batch_size=2)
    matrices = attention_matrices(model, inputs, dtype=torch.float64)
    layers = [exact(m).mean(-1).mean(-1) for m in matrices]
    expected = torch.stack(layers, -1)
    torch.testing.assert_close(torch.stack(found), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("similarity", "ranks", "word"),
    [
        ([0.2, 0.5, 0.97], [9.0, 5.0, 3.0], "collapsed"),
        ([0.2, 0.3, 0.25], [9.0, 3.0, 1.4], "collapsed"),  # one line, two signs
        ([0.2, 0.3, 0.6], [9.0, 8.0, 7.0], "oversmoothing"),
        ([0.6, 0.5, 0.3], [9.0, 8.0, 9.0], "no oversmoothing"),
        ([0.2, 0.98, 0.3], [9.0, 1.3, 8.0], "collapsed in between"),
        ([0.2, 0.3, 0.6], [9.0, 1.9, 8.0], "collapsed in between"),
    ],
)
def test_a_sentence_of_verdict(similarity, ranks, word):
    found = smoothing_verdict(similarity, ranks)
    assert found.startswith(f"{word}: ") and f"{similarity[-1]:.2f}" in found


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({}, "no oversmoothing"),
        ({"attention_residual": False}, "collapsed"),  # Dong et al., 2021
        ({"attention_residual": False, "gains": "default", "init_std": 0.2}, "no oversmoothing"),
    ],
)
def test_networks_that_are_known_to_collapse_and_not_to(options, word):
    torch.manual_seed(0)
    size = {"img_size": 64, "patch_size": 8, "depth": 12, "num_classes": 10}
    model = timm.create_model("pid_deit_tiny_patch16_224", **size, **options).eval()
    images = torch.rand(2, 3, 64, 64)
    similarity = token_similarity(model, images).tolist()
    ranks = token_spectrum(model, images).effective_rank.tolist()
    assert smoothing_verdict(similarity, ranks).startswith(f"{word}: ")
