"""The relatives that bring weights, a gate or a learned reference, against their definitions."""

import pytest
import timm
import torch

import pidformer as pf
from pidformer.control import Feedback, as_feedback
from pidformer.control.pid import first_state
from pidformer.errors import InputError
from tests.models.language.conftest import some_tokens, tiny_model
from tests.models.relatives import (
    close,
    language,
    repeated,
    same_gradients,
    segmenter,
    vision,
)
from tests.models.test_segmenter import tiny as tiny_segmenter
from tests.ops.relatives import attended
from tests.ops.test_attention import layers

both = pytest.mark.parametrize("name", ["gated", "value_embedding"])


@both
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("groups", [4, 2, 1])
def test_the_operator_is_the_definition(name, is_causal, groups):
    """sigma(W x) * A v (arXiv 2505.06708), A (E + v) / 2 with E of the token; behind a cache."""
    (q, k, v), (extra, other, _) = layers(2, heads=4, kv_heads=groups)
    reference = other  # (B, Hkv, N, D)
    leaves = [x.requires_grad_() for x in (q, k, v, extra, other)]
    gate, kernel = extra.sigmoid(), attended(q, repeated(k, 4), is_causal)
    if name == "gated":
        state, options, seen = None, {"gate": gate}, v
        expected = gate * (kernel @ repeated(v, 4))
    else:
        state, options, seen = first_state(reference), {}, (reference + v) / 2
        expected = kernel @ repeated(reference + v, 4) / 2
    ours, _ = pf.pid_attention(q, k, v, state, name, is_causal=is_causal, **options)
    close(ours, expected)
    used = leaves[:4] if name == "gated" else [*leaves[:3], other]
    same_gradients(ours, expected, used)
    last = {key: part[..., -1:, :] for key, part in options.items()}
    one = None if state is None else type(state)(*(part[..., -1:, :] for part in state))
    token, _ = pf.pid_attention(
        q[..., -1:, :], k, seen, one, name, value=v[..., -1:, :], is_causal=is_causal, **last
    )
    close(token, expected[..., -1:, :])


def test_a_gated_vision_transformer_is_the_definition(build, images):
    model = build(gains="gated").double()
    ours = model(images.double())
    expected = model.head(vision(model, images.double(), "gated")[:, 0])
    close(ours, expected)
    same_gradients(ours, expected, list(model.parameters()))
    for block in model.blocks:  # the attention matrix can be looked at
        block.attn.fused_attn = False
    close(model(images.double()), expected)


@both
@pytest.mark.parametrize("groups", [4, 2])
def test_a_language_model_is_the_definition_with_a_cache_too(name, groups, tmp_path):
    model, tokens = tiny_model(name, num_key_value_heads=groups).double(), some_tokens()
    hidden = model.model(tokens).last_hidden_state
    expected = language(model, tokens, name)
    close(hidden, expected)
    same_gradients(hidden, expected, list(model.model.parameters()))
    whole = model(tokens).logits
    with torch.no_grad():
        out = model(tokens[:, :4], use_cache=True)
        parts = [out.logits]
        for place in range(4, tokens.shape[1]):
            step = tokens[:, place : place + 1]
            out = model(step, past_key_values=out.past_key_values, use_cache=True)
            parts.append(out.logits)
    close(torch.cat(parts, dim=1), whole)
    looked = model(tokens, output_attentions=True).logits  # whose softmax is in float32
    torch.testing.assert_close(looked, whole, rtol=1e-4, atol=1e-5)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, dtype=torch.float64)
    close(again(tokens).logits, whole)
    assert torch.equal(model.generate(tokens, max_new_tokens=3)[:, : tokens.shape[1]], tokens)


def test_a_gated_segmenter_is_the_definition_and_words_are_refused():
    model = tiny_segmenter("gated").double().eval()
    images = torch.rand(2, 3, 16, 16, dtype=torch.float64)
    ours, expected = model(images), segmenter(model, images, "gated")
    close(ours, expected)
    same_gradients(ours, expected, list(model.parameters()))
    with pytest.raises(InputError, match="images have no words"):
        tiny_segmenter("value_embedding")


@both
def test_what_brings_weights_is_not_converted(name):
    plain = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=5)
    with pytest.raises(InputError, match=f"{name} is not offered here: it brings weights"):
        pf.convert(plain, name)


def test_refusals_in_one_line(build):
    (q, k, v), *_ = layers(1)
    tokens = some_tokens()
    model = tiny_model("value_embedding")
    for call, words in (
        (lambda: build(gains="value_embedding"), "images have no words"),
        (lambda: build(gains="gated", learn_gains=True), "gated has no coefficient to learn"),
        (lambda: build(gains="shaped"), "shaped is not offered: .* skipinit"),
        (lambda: Feedback(gate=2), r"gate must be in \[0, 1\]"),
        (lambda: Feedback(embedded=0.5), "embedded must be 0 or 1"),
        (lambda: pf.pid_attention(q, k, v, None, "gated"), "give `gate`"),
        (lambda: pf.pid_attention(q, k, v, None, "value_embedding"), "learned reference"),
        (lambda: model(inputs_embeds=torch.rand(1, 3, 32)), "give input_ids"),
        (lambda: model.resize_token_embeddings(99), "cannot become more or fewer"),
    ):
        with pytest.raises(InputError, match=words):
            call()
    assert torch.isfinite(model(tokens).logits).all()


def test_a_learned_mix_with_a_learned_reference(build):
    model = tiny_model("value_embedding", learn_gains=True)
    assert model.model.layers[0].self_attn.gains.terms == ("first", "own")
    model(some_tokens()).logits.square().sum().backward()
    assert all(bool((p.grad != 0).any()) for p in model.parameters())


def test_a_learned_reference_is_there_for_the_first_layer_to_learn():
    """Its control acts there, as the reference does not come from that layer's values."""
    law = {"p": 0.4, "embedded": 1}
    for gains in (law, [{"p": 0.4, "skip": 0.1}, "value_embedding", "resformer"]):
        model = tiny_model(gains, learn_gains=True)
        learned = [p for name, p in model.named_parameters() if "raw_terms" in name]
        model(some_tokens()).logits.square().sum().backward()
        assert len(learned) == 3 and all(bool((p.grad != 0).all()) for p in learned)


def test_a_share_of_the_gate_begins_at_attention(build, images):
    from pidformer.nn.gains import set_gain_share

    model, plain = build(gains="gated"), build(gains=None)
    plain.load_state_dict(model.state_dict(), strict=False)
    set_gain_share(model, 0.0)
    torch.testing.assert_close(model(images), plain(images), rtol=1e-5, atol=1e-6)
    assert as_feedback("gated").scaled(0.5).gate == 0.5
