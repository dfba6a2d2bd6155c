"""PID control's relatives in whole models: images, segmentation, language; fresh and converted."""

import pytest
import timm
import torch

import pidformer as pf
from pidformer.control import Feedback
from pidformer.errors import InputError
from tests.models.language.conftest import some_tokens, tiny_model
from tests.models.test_segmenter import tiny as tiny_segmenter
from tests.ops.relatives import DEFINITIONS, attended

names = pytest.mark.parametrize("name", DEFINITIONS)


def network(model, images, name):
    """A timm-like transformer, its attention replaced by the definition of the paper."""
    x = model.norm_pre(model._pos_embed(model.patch_embed(images)))
    values = []
    for block in model.blocks:
        packed = block.attn.qkv(block.norm1(x)).unflatten(-1, (3, block.attn.num_heads, -1))
        q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
        values.append(v)
        out = DEFINITIONS[name](attended(q, k), values)
        x = x + block.attn.proj(out.transpose(1, 2).flatten(2))
        x = x + block.mlp(block.norm2(x))
    return model.head(model.norm(x)[:, 0])


@names
def test_a_vision_transformer_is_the_definition(name, build, images):
    model = build(gains=name).double()
    expected = network(model, images.double(), name)
    torch.testing.assert_close(model(images.double()), expected, rtol=1e-11, atol=1e-11)
    parameters = list(model.parameters())
    ours = torch.autograd.grad(model(images.double()).square().sum(), parameters)
    theirs = torch.autograd.grad(expected.square().sum(), parameters)
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


@names
def test_a_converted_timm_model_is_the_definition_and_comes_back(name, tmp_path):
    torch.manual_seed(0)
    plain = (
        timm.create_model("vit_tiny_patch16_224", img_size=32, depth=3, num_classes=5)
        .double()
        .eval()
    )
    images = torch.rand(2, 3, 32, 32, dtype=torch.float64)
    model = pf.convert(plain, name)
    torch.testing.assert_close(model(images), network(plain, images, name), rtol=1e-10, atol=1e-10)
    assert torch.equal(pf.revert(model)(images), plain(images))
    pf.save(pf.convert(plain.float(), name), tmp_path / "model.safetensors")
    again = pf.restore(
        timm.create_model("vit_tiny_patch16_224", img_size=32, depth=3, num_classes=5),
        tmp_path / "model.safetensors",
    ).eval()
    assert torch.equal(again(images.float()), pf.convert(plain, name)(images.float()))


@names
def test_a_segmenter_takes_them(name):
    model = tiny_segmenter(name)
    assert model.encoder.gains == pf.control.as_feedback(name)
    images = torch.rand(1, 3, 32, 32)
    plain = tiny_segmenter(None)
    plain.load_state_dict(model.state_dict())
    assert not torch.allclose(model(images), plain(images))


@names
@pytest.mark.parametrize("groups", [4, 2])
def test_a_language_model_decodes_with_a_cache_as_without(name, groups):
    model = tiny_model(name, num_key_value_heads=groups)
    tokens = some_tokens()
    whole = model(tokens).logits
    looked = model(tokens, output_attentions=True)
    torch.testing.assert_close(looked.logits, whole, rtol=1e-4, atol=1e-5)
    out = model(tokens[:, :4], use_cache=True)
    parts = [out.logits]
    with torch.no_grad():
        for place in range(4, tokens.shape[1]):
            step = tokens[:, place : place + 1]
            out = model(step, past_key_values=out.past_key_values, use_cache=True)
            parts.append(out.logits)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-4, atol=1e-5)
    changed = tokens.clone()
    changed[:, -1] = 5
    torch.testing.assert_close(model(changed).logits[:, :-1], whole[:, :-1])  # causal


@names
def test_a_language_model_is_saved_with_its_method(name, tmp_path):
    from pidformer.models.causal_lm import PIDformerForCausalLM

    model, tokens = tiny_model(name), some_tokens()
    model.save_pretrained(tmp_path)
    again = PIDformerForCausalLM.from_pretrained(tmp_path)
    assert again.config.model_gains == pf.control.as_feedback(name)
    assert torch.equal(again(tokens).logits, model(tokens).logits)


@names
@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_a_converted_hugging_face_model(name, kind, tmp_path):
    """With a cache as without, saved and loaded, and back."""
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        LlamaConfig,
        LlamaForCausalLM,
    )

    torch.manual_seed(0)
    size = {
        "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": 48, "vocab_size": 61, "initializer_range": 0.25,
    }  # fmt: skip
    if kind == "llama":
        plain = LlamaForCausalLM(LlamaConfig(**size, num_key_value_heads=2)).eval()
    else:
        plain = BertForMaskedLM(BertConfig(**size)).eval()
    model, tokens = pf.convert(plain, name), some_tokens()
    whole = model(tokens).logits
    assert not torch.allclose(whole, plain(tokens).logits, atol=1e-3)
    if kind == "llama":
        out = model(tokens[:, :5], use_cache=True)
        rest = model(tokens[:, 5:], past_key_values=out.past_key_values, use_cache=True)
        torch.testing.assert_close(rest.logits, whole[:, 5:], rtol=1e-4, atol=1e-5)
    model.save_pretrained(tmp_path)
    assert torch.equal(pf.from_pretrained(tmp_path)(tokens).logits, whole)
    assert torch.equal(pf.revert(model)(tokens).logits, plain(tokens).logits)


@names
def test_a_share_of_the_law_begins_at_attention(name, build, images):
    from pidformer.nn.gains import set_gain_share

    model, plain = build(gains=name), build(gains=None)
    plain.load_state_dict(model.state_dict())
    whole = model(images)
    set_gain_share(model, 0.0)
    torch.testing.assert_close(model(images), plain(images), rtol=1e-5, atol=1e-6)
    set_gain_share(model, 1.0)
    torch.testing.assert_close(model(images), whole, rtol=1e-5, atol=1e-6)


def test_what_reads_pid_gains_alone_refuses_the_rest(build, images):
    with pytest.raises(InputError, match="skipinit starts without attention"):
        build(gains="skipinit")
    with pytest.raises(InputError, match="another recursion"):
        pf.analysis.certify(build(gains="laplacian"), images)
    for wrong, words in (("twicing", "attends twice"), ("xsb", "did you mean 'xsa'")):
        with pytest.raises(InputError, match=words):
            build(gains=wrong)


def test_a_layer_without_pid_gains_carries_the_state_on(build, images):
    """As a layer of zero gains does: the sums of the layers behind it are those of PID control."""
    pid, zero = {"p": 0.3, "i": 0.2, "d": 0.1}, {"p": 0.0}
    model, expected = build(gains=[pid, Feedback(), pid, pid]), build(gains=[pid, zero, pid, pid])
    expected.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(images), expected(images), rtol=1e-6, atol=1e-6)


def test_the_control_of_other_laws_is_not_measured_as_pid(build, images):
    from pidformer.nn import has_control

    assert has_control(build(gains="0.4,0,0")) and not has_control(build(gains="xsa"))
    with pytest.raises(InputError, match="terms beyond PID gains"):
        pf.analysis.control_scale(build(gains="laplacian", learn_gains=True), images)
    with pytest.raises(InputError, match="another recursion"):
        pf.analysis.certify(build(gains="laplacian", learn_gains=True), images)


def test_layers_may_differ(build, images):
    laws = ["0.4,0,0", "xsa", {"skip": -0.5}, "resformer"]
    model = build(gains=laws)
    assert model.gains[2] == Feedback(skip=-0.5)
    assert torch.isfinite(model(images)).all()


@pytest.mark.parametrize(
    ("name", "terms", "layers"),
    [
        ("skipinit", ("skip", "own"), 4),
        ("laplacian", ("skip",), 4),
        ("xsa", ("exclude",), 4),
        ("resformer", ("first", "own"), 3),
    ],
)
def test_coefficients_are_learned_per_head(name, terms, layers, build, images):
    """What differs from attention; a first layer that looks back at nothing learns nothing."""
    model = build(gains=name, learn_gains=True)
    learned = [p for key, p in model.named_parameters() if ".gains." in key]
    heads = model.blocks[0].attn.num_heads
    assert [tuple(p.shape) for p in learned] == [(len(terms), heads)] * layers
    model(images).square().sum().backward()
    assert all(bool((p.grad != 0).any()) for p in learned)
    if name != "skipinit":
        fixed = build(gains=name)
        fixed.load_state_dict(model.state_dict(), strict=False)
        torch.testing.assert_close(model(images), fixed(images), rtol=1e-5, atol=1e-5)


def test_value_skipinit_is_its_definition(build, images):
    """Simplified blocks (arXiv 2311.01906): (a + b A) v, from a = 1 and b = 0, per head."""
    model = build(gains="skipinit", learn_gains=True).double()
    generator = torch.Generator().manual_seed(0)
    for block in model.blocks:
        drawn = torch.rand(block.attn.gains.raw_terms.shape, generator=generator)
        block.attn.gains.raw_terms.data.copy_(drawn)
    x = model.norm_pre(model._pos_embed(model.patch_embed(images.double())))
    for block in model.blocks:
        packed = block.attn.qkv(block.norm1(x)).unflatten(-1, (3, block.attn.num_heads, -1))
        q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
        a, b = block.attn.gains.raw_terms.double()[..., None, None]
        out = a * v + b * (attended(q, k) @ v)
        x = x + block.attn.proj(out.transpose(1, 2).flatten(2))
        x = x + block.mlp(block.norm2(x))
    expected = model.head(model.norm(x)[:, 0])
    torch.testing.assert_close(model(images.double()), expected, rtol=1e-11, atol=1e-11)


def test_learned_coefficients_are_saved_and_loaded(tmp_path):
    model = tiny_model("skipinit", learn_gains=True, num_key_value_heads=2)
    for layer in model.model.layers:
        layer.self_attn.gains.raw_terms.data.uniform_(0.2, 1)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    tokens = some_tokens()
    assert torch.equal(again(tokens).logits, model(tokens).logits)
    out = model(tokens[:, :5], use_cache=True)
    rest = model(tokens[:, 5:], past_key_values=out.past_key_values, use_cache=True)
    torch.testing.assert_close(rest.logits, model(tokens).logits[:, 5:], rtol=1e-4, atol=1e-5)
