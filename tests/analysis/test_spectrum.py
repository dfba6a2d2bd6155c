import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import pidformer as pf
from pidformer.analysis import attention_matrices, attention_spectrum, eigenvalues
from tests.analysis.test_similarity import SIZE
from tests.analysis.test_tokens import hugging_face
from tests.kernels import softmax_kernel


@pytest.fixture
def images():
    return torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def make(name="pid_deit_tiny_patch16_224", **options):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=10, **SIZE | options).eval()
    for block in model.blocks:
        nn.init.normal_(block.attn.qkv.weight, std=0.6)  # attention that is not flat
    return model


def explicit(model, images):
    """A from the modules' own weights, head by head, without any call that could be watched."""
    kept = {}
    hooks = [
        block.attn.register_forward_pre_hook(lambda _, x, d=depth: kept.update({d: x[0]}))
        for depth, block in enumerate(model.blocks)
    ]
    with torch.no_grad():
        model(images)
        for hook in hooks:
            hook.remove()
        found = []
        for depth, block in enumerate(model.blocks):
            x, attn = kept[depth].double(), block.attn
            weight, bias = attn.qkv.weight.double(), attn.qkv.bias.double()
            q, k, _ = (x @ weight.T + bias).chunk(3, dim=-1)  # (B, N, C)
            heads = []
            for head in range(attn.num_heads):
                part = slice(head * attn.head_dim, (head + 1) * attn.head_dim)
                qh, kh = q[..., part], k[..., part]
                if not isinstance(attn.q_norm, nn.Identity):
                    qh, kh = attn.q_norm(qh.float()).double(), attn.k_norm(kh.float()).double()
                scores = torch.einsum("bnd,bmd->bnm", qh, kh) / attn.head_dim**0.5
                weights = (scores - scores.amax(-1, keepdim=True)).exp()
                heads.append(weights / weights.sum(-1, keepdim=True))
            found.append(torch.stack(heads, 1))
    return found


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("name", ["pid_deit_tiny_patch16_224", "vit_tiny_patch16_224"])
def test_matrices_equal_an_explicit_softmax(name, qk_norm, images):
    gains = {"gains": "0.4,0.1,0.05"} if name.startswith("pid") else {}
    model = make(name, qk_norm=qk_norm, **gains)
    found = list(attention_matrices(model, images, dtype=torch.float64))
    expected = explicit(model, images)
    assert len(found) == 3
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert found[1].std() > 0.02  # not flat


def test_an_unfused_timm_model_gives_the_same_matrices(images):
    model = make("vit_tiny_patch16_224")
    fused = list(attention_matrices(model, images))
    for block in model.blocks:
        block.attn.fused_attn = False
    for a, b in zip(fused, attention_matrices(model, images), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["ViT", "Llama"])
def test_hugging_face_models_agree_with_their_own_attentions(name, implementation, images):
    more = {"num_key_value_heads": 1, "vocab_size": 50}
    more = more if name == "Llama" else {"image_size": 8, "patch_size": 2, "num_channels": 1}
    inputs = images if name == "ViT" else torch.randint(0, 50, (3, 7))
    model = hugging_face(name, attn_implementation=implementation, **more)
    eager = hugging_face(name, attn_implementation="eager", **more)
    with torch.no_grad():
        expected = eager(inputs, output_attentions=True).attentions
    found = list(attention_matrices(model, inputs))
    assert len(found) == 2
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    if name == "Llama":  # causal: the spectrum is the diagonal
        kappas = attention_spectrum(model, inputs).kappas[1]
        torch.testing.assert_close(kappas.real, expected[1].diagonal(dim1=-2, dim2=-1).double())


def test_masks_of_both_kinds_and_causality_are_kept():
    q, k, v = torch.randn(3, 2, 2, 5, 4)
    keep = torch.rand(5, 5) > 0.3
    keep.fill_diagonal_(True)
    bias = torch.randn(5, 5)

    class Layers(nn.Module):
        def forward(self, x):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.7)
            out = out + F.scaled_dot_product_attention(q, k, v, keep)
            return out + F.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    values = torch.eye(5).expand(2, 2, 5, 5)  # attention of the identity is the matrix itself
    found = list(attention_matrices(Layers(), torch.zeros(2, 1)))
    called = ({"is_causal": True, "scale": 0.7}, {"attn_mask": keep}, {"attn_mask": bias})
    for matrix, options in zip(found, called, strict=True):
        torch.testing.assert_close(matrix, F.scaled_dot_product_attention(q, k, values, **options))


def test_matrices_are_made_one_layer_at_a_time(images):
    matrices = attention_matrices(make(), images)
    assert iter(matrices) is matrices and next(matrices).shape == (3, 2, 17, 17)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 9), st.integers(0, 10**6), st.floats(0.1, 5))
def test_causal_eigenvalues_are_the_diagonal(size, seed, sharpness):
    generator = torch.Generator().manual_seed(seed)
    scores = sharpness * torch.randn(size, size, generator=generator, dtype=torch.float64)
    lower = torch.ones(size, size, dtype=torch.bool).tril()
    matrix = scores.masked_fill(~lower, -torch.inf).softmax(-1)
    found = np.sort(eigenvalues(matrix).real.numpy())
    np.testing.assert_array_equal(found, np.sort(np.diag(matrix.numpy())))
    # np.linalg.eigvals of a triangular matrix is exact up to rounding of near-equal eigenvalues
    np.testing.assert_allclose(
        np.prod(1.7 - found), np.linalg.det(1.7 * np.eye(size) - matrix.numpy()), rtol=1e-8
    )
    np.testing.assert_allclose(
        np.sort(np.linalg.eigvals(matrix.numpy()).real), found, rtol=0, atol=1e-6
    )


def test_the_summary_is_what_numpy_says(images):
    model = make()
    spectrum = attention_spectrum(model, images, batch_size=2)
    assert spectrum.images == 3 and [tuple(k.shape) for k in spectrum.kappas] == [(3, 2, 17)] * 3
    by_hand = [np.linalg.eigvals(layer.numpy()) for layer in explicit(model, images)]
    for layer, expected in enumerate(by_hand):
        found = spectrum.summary(layer)
        assert found.min_real == pytest.approx(expected.real.min(), abs=1e-4)
        assert found.max_imag == pytest.approx(np.abs(expected.imag).max(), abs=1e-4)
        assert found.share_negative == pytest.approx((expected.real < -1e-6).mean(), abs=0.02)
        assert found.quantiles[0.5] == pytest.approx(np.median(expected.real), abs=1e-4)
        assert found.unit_error < 1e-12
        moduli = np.sort(np.abs(expected), axis=-1)
        assert found.second == pytest.approx(moduli[..., -2].max(), abs=1e-4)
    whole = spectrum.summary()
    assert whole.min_real == min(spectrum.summary(layer).min_real for layer in range(3))
    heads = [spectrum.summary(1, head).min_real for head in range(2)]
    assert spectrum.summary(1).min_real == min(heads) != max(heads)


def test_eigenvalues_of_a_general_kernel():
    kernel = softmax_kernel(9, sharpness=3.0)
    found, expected = eigenvalues(kernel), np.linalg.eigvals(kernel.numpy())
    np.testing.assert_allclose(np.sort_complex(found.numpy()), np.sort_complex(expected), atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 23, 64, 65, 197])
def test_eigenvalues_of_uniform_attention(size):
    kernels = torch.stack([torch.full((size, size), 1 / size).double(), softmax_kernel(size)])
    found = eigenvalues(kernels)
    assert found.dtype == torch.complex128
    moduli = found[0].abs().sort(descending=True).values
    assert moduli[0] == pytest.approx(1, abs=1e-6) and moduli[1:].max() < 1e-6
    expected = np.linalg.eigvals(kernels[1].numpy())
    np.testing.assert_allclose(np.sort(found[1].real.numpy()), np.sort(expected.real), atol=1e-9)


class Windows(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(*torch.zeros(3, 4 * len(x), 1, 3, 2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: attention_matrices(nn.Conv2d(1, 2, 3), x), "cannot be read"),
        (lambda x: attention_matrices(Windows(), x), "4 windows"),
        (lambda x: attention_matrices(make(), x[:0]), "at least one"),
        (lambda x: attention_spectrum(make(), x, batch_size=0), "batch_size"),
        (lambda x: attention_spectrum(make(), torch.rand(1, 1, 9, 9)), "1, 8, 8"),
        (lambda x: eigenvalues(torch.full((2, 2), torch.nan)), "not finite"),
    ],
)
def test_bad_input_gets_one_line(images, call, words):
    with pytest.raises(pf.InputError, match=words) as refused:
        call(images)
    assert "\n" not in str(refused.value)
