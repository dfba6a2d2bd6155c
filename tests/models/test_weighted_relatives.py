"""The relatives that bring weights, a gate or a learned reference, against their definitions."""

import pytest
import timm
import torch

import pidformer as pf
from pidformer.control import Feedback, as_feedback
from pidformer.control.pid import first_state
from pidformer.errors import InputError
from pidformer.models.language.positions import rotated
from tests.models.language.conftest import some_tokens, tiny_model
from tests.models.test_segmenter import tiny as tiny_segmenter
from tests.ops.relatives import attended
from tests.ops.test_attention import layers

both = pytest.mark.parametrize("name", ["gated", "value_embedding"])


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def same_gradients(ours, theirs, leaves):
    for one, two in zip(
        torch.autograd.grad(ours.square().sum(), leaves, retain_graph=True),
        torch.autograd.grad(theirs.square().sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


def repeated(x, heads):
    return x.repeat_interleave(heads // x.shape[1], dim=1)


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


def gated_network(model, images):
    x = model.norm_pre(model._pos_embed(model.patch_embed(images)))
    for block in model.blocks:
        given = block.norm1(x)
        packed = block.attn.qkv(given).unflatten(-1, (3, block.attn.num_heads, -1))
        q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = (attended(q, k) @ v).transpose(1, 2).flatten(2)
        x = x + block.attn.proj(mixed * torch.sigmoid(given @ block.attn.gate.weight.T))
        x = x + block.mlp(block.norm2(x))
    return model.head(model.norm(x)[:, 0])


def test_a_gated_vision_transformer_is_the_definition(build, images):
    model = build(gains="gated").double()
    ours, expected = model(images.double()), gated_network(model, images.double())
    close(ours, expected)
    same_gradients(ours, expected, list(model.parameters()))
    for block in model.blocks:  # the attention matrix can be looked at
        block.attn.fused_attn = False
    close(model(images.double()), expected)


def definition(name, model, tokens):
    """The language model with its attention written out: pre-norm, rotary positions, no mask."""
    inner, config = model.model, model.config
    places = torch.arange(tokens.shape[1])[None]
    x, turned = inner._placed(inner.embed_tokens(tokens), places, None)
    for block in inner.layers:
        attention, given = block.self_attn, block.attention_norm(x)
        q, k, v = (
            project(given).unflatten(-1, (-1, config.head_dim)).transpose(1, 2)
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        if name == "value_embedding":
            table = inner.embed_values(tokens).unflatten(-1, (-1, config.head_dim))
            v = 0.5 * table.transpose(1, 2) + 0.5 * v
        q, k = rotated(q, turned), rotated(k, turned)
        heads = config.num_attention_heads
        out = attended(q, repeated(k, heads), is_causal=True) @ repeated(v, heads)
        out = out.transpose(1, 2).flatten(2)
        if name == "gated":
            out = out * torch.sigmoid(attention.gate(given))
        x = x + attention.o_proj(out)
        x = x + block.mlp(block.mlp_norm(x))
    return inner.norm(x)


@both
@pytest.mark.parametrize("groups", [4, 2])
def test_a_language_model_is_the_definition_with_a_cache_too(name, groups, tmp_path):
    model, tokens = tiny_model(name, num_key_value_heads=groups).double(), some_tokens()
    hidden = model.model(tokens).last_hidden_state
    expected = definition(name, model, tokens)
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


def test_a_segmenter_takes_a_gate_and_no_words():
    model, images = tiny_segmenter("gated"), torch.rand(1, 3, 32, 32)
    assert sum("attn.gate.weight" in name for name in model.state_dict()) == len(
        [*model.encoder.blocks, *model.decoder.blocks]
    )
    before = model(images)
    with torch.no_grad():
        model.decoder.blocks[0].attn.gate.weight.mul_(3)
    assert not torch.allclose(model(images), before)
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


def test_a_share_of_the_gate_begins_at_attention(build, images):
    from pidformer.nn.gains import set_gain_share

    model, plain = build(gains="gated"), build(gains=None)
    plain.load_state_dict(model.state_dict(), strict=False)
    set_gain_share(model, 0.0)
    torch.testing.assert_close(model(images), plain(images), rtol=1e-5, atol=1e-6)
    assert as_feedback("gated").scaled(0.5).gate == 0.5
