"""PID control's relatives in whole models: images, segmentation, language; fresh and converted."""

import pytest
import timm
import torch

import pidformer as pf
from pidformer.control import Feedback
from pidformer.errors import InputError
from tests.models.language.conftest import some_tokens, tiny_model
from tests.models.relatives import (
    close,
    hugging_face,
    language,
    same_gradients,
    segmenter,
    vision,
)
from tests.models.test_segmenter import tiny as tiny_segmenter
from tests.ops.relatives import WITH_ATTENTION

names = pytest.mark.parametrize("name", WITH_ATTENTION, ids=str)


@names
def test_a_vision_transformer_is_the_definition(name, build, images):
    model = build(gains=name).double()
    ours, tokens = model(images.double()), vision(model, images.double(), name)
    expected = model.head(tokens[:, 0])
    close(ours, expected)
    same_gradients(ours, expected, list(model.parameters()))


@names
def test_a_converted_timm_model_is_the_definition_and_comes_back(name, tmp_path):
    torch.manual_seed(0)
    plain = (
        timm.create_model("vit_tiny_patch16_224", img_size=32, depth=3, num_classes=5)
        .double()
        .eval()
    )
    images = torch.rand(2, 3, 32, 32, dtype=torch.float64)
    model = pf.convert(plain, name, inplace=False)
    ours, expected = model(images), plain.head(vision(plain, images, name)[:, 0])
    close(ours, expected)
    for one, two in zip(
        torch.autograd.grad(ours.square().sum(), list(model.parameters())),
        torch.autograd.grad(expected.square().sum(), list(plain.parameters())),
        strict=True,
    ):
        close(one, two)
    assert torch.equal(pf.revert(model)(images), plain(images))
    pf.save(pf.convert(plain.float(), name), tmp_path / "model.safetensors")
    again = pf.restore(
        timm.create_model("vit_tiny_patch16_224", img_size=32, depth=3, num_classes=5),
        tmp_path / "model.safetensors",
    ).eval()
    assert torch.equal(again(images.float()), pf.convert(plain, name)(images.float()))


@names
def test_a_segmenter_is_the_definition(name):
    model = tiny_segmenter(name).double().eval()
    assert model.encoder.gains == model.decoder_gains == pf.control.as_feedback(name)
    images = torch.rand(2, 3, 16, 16, dtype=torch.float64)
    ours, expected = model(images), segmenter(model, images, name)
    close(ours, expected)
    same_gradients(ours, expected, list(model.parameters()))


@names
@pytest.mark.parametrize("groups", [4, 2])
def test_a_language_model_is_the_definition_and_decodes_with_a_cache(name, groups):
    model = tiny_model(name, num_key_value_heads=groups).double()
    tokens = some_tokens()
    hidden, expected = model.model(tokens).last_hidden_state, language(model, tokens, name)
    close(hidden, expected)
    same_gradients(hidden, expected, list(model.model.parameters()))
    whole = model(tokens).logits
    looked = model(tokens, output_attentions=True)  # whose softmax is in float32
    torch.testing.assert_close(looked.logits, whole, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        out = model(tokens[:, :4], use_cache=True)
        parts = [out.logits]
        for place in range(4, tokens.shape[1]):
            step = tokens[:, place : place + 1]
            out = model(step, past_key_values=out.past_key_values, use_cache=True)
            parts.append(out.logits)
    close(torch.cat(parts, dim=1), whole)
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
    """The definition, with a cache as without, saved and loaded, and back."""
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
    plain = plain.double()
    model, tokens = pf.convert(plain, name), some_tokens()
    whole, expected = model(tokens).logits, hugging_face(plain, tokens, name)
    torch.testing.assert_close(whole, expected, rtol=1e-6, atol=1e-6)  # norms are in float32
    for one, two in zip(
        torch.autograd.grad(whole.square().mean(), list(model.parameters()), retain_graph=True),
        torch.autograd.grad(expected.square().mean(), list(plain.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(whole, plain(tokens).logits, atol=1e-3)
    if kind == "llama":
        out = model(tokens[:, :5], use_cache=True)
        rest = model(tokens[:, 5:], past_key_values=out.past_key_values, use_cache=True)
        torch.testing.assert_close(rest.logits, whole[:, 5:], rtol=1e-6, atol=1e-6)
    model.save_pretrained(tmp_path)
    close(pf.from_pretrained(tmp_path, dtype=torch.float64)(tokens).logits, whole)
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
    for name in ("xsa", "gated"):
        with pytest.raises(InputError, match=f"{name} is not linear .* measured only"):
            pf.analysis.certify(build(gains=name), images)
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


def drawn(model):
    """The model in float64, with learned coefficients that differ by layer and head."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if hasattr(module, "raw_terms"):
            values = torch.rand(module.raw_terms.shape, generator=generator)
            module.raw_terms.data.copy_(values)
    return model.double().eval()


def test_learned_skipinit_is_its_definition(build, images):
    """(a + b A) v per head, from a = 1 and b = 0; in both parts of a segmenter, in language."""
    vit = drawn(build(gains="skipinit", learn_gains=True))
    ours = vit(images.double())
    expected = vit.head(vision(vit, images.double(), "skipinit")[:, 0])
    close(ours, expected)
    same_gradients(ours, expected, list(vit.parameters()))
    model = drawn(tiny_segmenter("skipinit", learn_gains=True))
    pictures = torch.rand(2, 3, 16, 16, dtype=torch.float64)
    ours, expected = model(pictures), segmenter(model, pictures, "skipinit")
    close(ours, expected)
    same_gradients(ours, expected, list(model.parameters()))
    lm, tokens = (
        drawn(tiny_model("skipinit", learn_gains=True, num_key_value_heads=2)),
        some_tokens(),
    )
    ours, expected = lm.model(tokens).last_hidden_state, language(lm, tokens, "skipinit")
    close(ours, expected)
    same_gradients(ours, expected, list(lm.model.parameters()))


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
