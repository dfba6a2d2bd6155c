"""Which tensors are read, from which models."""

import pytest
import timm
import torch
from torch import nn

import pidformer as pf
from pidformer.analysis import rank_measures, token_similarity, token_spectrum
from pidformer.analysis.tokens import visit_tokens
from tests.analysis.test_similarity import SIZE, pairwise

TIMM = {"img_size": 8, "patch_size": 2, "in_chans": 1, "embed_dim": 16, "depth": 3, "num_heads": 2}


@pytest.fixture
def vit():
    torch.manual_seed(0)
    return timm.create_model("pid_deit_tiny_patch16_224", gains="0.4,0.1,0.05", **SIZE)


@pytest.fixture
def images():
    return torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def seen(model, images, **options):
    found = {}
    visit_tokens(model, images, lambda depth, x: found.update({depth: x}), **options)
    return found


def by_hand(tokens):
    return [sum(map(pairwise, layer)) / len(layer) for layer in tokens]


def test_patch_tokens_leave_the_class_token_out(vit, images):
    found = token_similarity(vit, images, tokens="patch")
    taken = vit.eval().forward_intermediates(images, output_fmt="NLC", intermediates_only=True)
    torch.testing.assert_close(found.tolist(), by_hand(taken), rtol=0, atol=1e-6)


def test_after_the_norm_is_what_the_next_layer_reads(vit, images):
    blocks, normed = seen(vit, images), seen(vit, images, of="norm")
    with torch.no_grad():
        for depth, norm in enumerate([vit.blocks[1].norm1, vit.blocks[2].norm1, vit.norm], 1):
            torch.testing.assert_close(normed[depth], norm(blocks[depth]))
    assert sorted(normed) == [1, 2, 3] and sorted(blocks) == [0, 1, 2, 3]


def test_values_are_the_last_third_of_qkv(vit, images):
    found = seen(vit, images, of="values")
    blocks = seen(vit, images)
    with torch.no_grad():
        for depth, block in enumerate(vit.blocks):
            expected = block.attn.qkv(block.norm1(blocks[depth]))[..., -16:]
            torch.testing.assert_close(found[depth + 1], expected)


def test_a_timm_model_is_read_like_its_twin(images):
    torch.manual_seed(0)
    theirs = timm.create_model("vit_tiny_patch16_224", num_classes=10, **TIMM)
    twin = timm.create_model("pid_deit_tiny_patch16_224", num_classes=10, **TIMM)
    twin.load_state_dict(theirs.state_dict())
    for options in ({}, {"tokens": "patch"}, {"of": "norm"}, {"of": "values"}):
        torch.testing.assert_close(
            token_similarity(theirs, images, **options), token_similarity(twin, images, **options)
        )


@pytest.mark.slow
def test_a_compiled_model_is_read_without_compiling(vit, images):
    torch.testing.assert_close(
        token_similarity(torch.compile(vit), images), token_similarity(vit, images)
    )


def hugging_face(name, **more):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    size |= {"intermediate_size": 32} | more
    config = getattr(transformers, f"{name}Config")(**size)
    return getattr(transformers, f"{name}Model")(config).eval()


@pytest.mark.slow
def test_a_hugging_face_model_gives_its_hidden_states(images):
    model = hugging_face("ViT", image_size=8, patch_size=2, num_channels=1)
    with torch.no_grad():
        hidden = model(images, output_hidden_states=True).hidden_states
    found = token_similarity(model, images, tokens="patch", prefix=1)
    expected = by_hand([layer[:, 1:] for layer in hidden[1:]])
    torch.testing.assert_close(found.tolist(), expected, rtol=0, atol=1e-6)
    with pytest.raises(pf.InputError, match="prefix="):
        token_similarity(model, images, tokens="patch")


@pytest.mark.slow
def test_a_language_model_takes_token_ids():
    model = hugging_face("Llama", vocab_size=50)
    ids = torch.randint(0, 50, (3, 7), generator=torch.Generator().manual_seed(0))
    assert token_similarity(model, ids).shape == (2,)
    assert token_similarity(model, ids, of="values").shape == (2,)


def test_any_callable_is_read_by_the_modules_named():
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    tokens = torch.randn(3, 5, 8)
    found = seen(lambda x: encoder(x).mean(1), tokens, layers=list(encoder.layers))
    assert encoder.training and encoder.layers[0].dropout.training
    with torch.no_grad():
        first = encoder.eval().layers[0](tokens)
    torch.testing.assert_close(found[1], encoder.layers[0](tokens), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[2], encoder.layers[1](first), rtol=1e-4, atol=1e-5)


def test_a_layer_used_twice_is_seen_twice():
    layer = nn.Linear(4, 4)
    tokens = torch.randn(2, 3, 4)
    found = seen(lambda x: layer(layer(x)), tokens, layers=[layer])
    assert sorted(found) == [1, 2]
    torch.testing.assert_close(found[2], layer(layer(tokens)))


def test_ranks_by_layer_are_means_over_images_of_the_definition(vit, images):
    found = token_spectrum(vit, images, batch_size=2)
    for depth, tokens in seen(vit, images).items():
        if depth:
            expected = rank_measures(tokens)
            for name in expected._fields:
                value = getattr(found, name)[depth - 1]
                torch.testing.assert_close(value, getattr(expected, name).mean())


@pytest.mark.parametrize("shape", [(6, 9), (9, 6), (5, 5)])
def test_rank_measures_agree_with_the_singular_values(shape):
    torch.manual_seed(sum(shape))
    x = torch.randn(4, *shape, dtype=torch.float64)
    found = rank_measures(x)
    for image, tokens in enumerate(x):
        left, s, right = torch.linalg.svd(tokens, full_matrices=False)
        p = s / s.sum()
        nearest = s[0] * torch.outer(left[:, 0], right[0])
        mean = tokens.mean(0).expand_as(tokens)
        expected = {
            "effective_rank": (-(p * p.log()).sum()).exp(),
            "stable_rank": tokens.norm() ** 2 / torch.linalg.matrix_norm(tokens, 2) ** 2,
            "rank_one_residual": (tokens - nearest).norm() / tokens.norm(),
            "mean_token_residual": (tokens - mean).norm() / tokens.norm(),
        }
        for name, value in expected.items():
            torch.testing.assert_close(getattr(found, name)[image], value, rtol=1e-9, atol=1e-9)


def test_rank_one_and_equal_tokens_are_told_apart():
    direction = torch.randn(7, dtype=torch.float64)
    lengths = torch.tensor([1.0, 2.0, -3.0, 0.5], dtype=torch.float64)
    scaled = rank_measures(torch.outer(lengths, direction))
    equal = rank_measures(direction.expand(4, 7))
    for found in (scaled, equal):
        assert found.effective_rank == pytest.approx(1, abs=1e-5)
        assert found.stable_rank == pytest.approx(1)
        assert found.rank_one_residual == pytest.approx(0, abs=1e-6)
    assert scaled.mean_token_residual > 0.9 and equal.mean_token_residual < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda vit, x: token_similarity(vit, x, of="rows"), "unknown of"),
        (lambda vit, x: token_similarity(vit, x, tokens="class"), "unknown tokens"),
        (lambda vit, x: token_similarity(vit, torch.rand(2, 1, 16, 16)), "1, 8, 8"),
        (lambda vit, x: token_similarity(vit, torch.rand(2, 3, 8, 8)), "1, 8, 8"),
        (lambda vit, x: token_similarity(lambda y: y, x), "layers="),
        (lambda vit, x: token_similarity(vit, x, layers=[nn.Linear(1, 1)]), "none of the layers"),
        (lambda vit, x: token_similarity(vit, x, layers=[vit.head]), "not tokens"),
        (lambda vit, x: token_similarity(vit, x, layers=[vit.norm], of="norm"), "leave of"),
        (lambda vit, x: token_similarity(nn.Flatten(), x, of="values"), "cannot be read"),
        (lambda vit, x: rank_measures(torch.zeros(2, 3)), "all zero"),
        (lambda vit, x: rank_measures(torch.tensor([[1.0, torch.nan]])), "not finite"),
    ],
)
def test_bad_input_gets_one_line(vit, images, call, words):
    with pytest.raises(pf.InputError, match=words) as refused:
        call(vit, images)
    assert "\n" not in str(refused.value)
