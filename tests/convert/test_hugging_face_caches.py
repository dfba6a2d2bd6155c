"""Where a token stands, and what attention saw: caches of any kind, masks of any shape."""

import pytest
import torch
import transformers as hf
from accelerate.hooks import AlignDevicesHook, add_hook_to_module

import pidformer as pf
from pidformer.errors import InputError
from tests.convert.hugging_face import CAUSAL, FAMILIES, batch, build
from tests.convert.hugging_face_types import TYPES

GAINS = pf.PIDGains(p=0.4, i=0.2, d=0.1, beta=0.8)


def static(model, length=16):
    return hf.StaticCache(config=model.config, max_cache_len=length)


@pytest.mark.parametrize("family", CAUSAL)
@torch.no_grad()
def test_a_right_padded_prompt_in_a_static_cache_equals_no_cache(family):
    model, x = pf.convert(build(family), GAINS), batch(family)
    x["attention_mask"][1, 4:] = 0
    whole = model(**x, use_cache=False).logits
    cached = model(**x, past_key_values=static(model), use_cache=True).logits
    torch.testing.assert_close(cached, whole, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_prefix_that_sees_itself_both_ways_equals_no_cache():
    """The last key that a query may see is not its own."""
    model, x = pf.convert(build("llama"), GAINS), batch("llama")["input_ids"]
    seen = torch.ones(7, 7, dtype=torch.bool).tril()
    seen[:4, :4] = True
    mask = torch.zeros(2, 1, 7, 16, dtype=torch.bool)
    mask[..., :7] = seen
    whole = model(x, attention_mask=mask[..., :7], use_cache=False).logits
    for given, cache in ((mask[..., :7], None), (mask, static(model))):
        cached = model(x, attention_mask=given, past_key_values=cache, use_cache=True).logits
        torch.testing.assert_close(cached, whole, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_full_static_window_slides_like_a_growing_cache():
    model, x = pf.convert(build("mistral sliding"), GAINS), batch("mistral sliding")["input_ids"]
    whole, cache, steps = model(x, use_cache=False).logits, static(model), []
    for part in (x[:, :3], x[:, 3:5], x[:, 5:6], x[:, 6:]):
        steps.append(model(part, past_key_values=cache, use_cache=True).logits)
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_attentions_are_those_of_eager_attention(family):
    model, x = build(family), batch(family)
    if "attention_mask" in x:
        x["attention_mask"][1, 4:] = 0
    converted = pf.convert(model, pf.PIDGains())
    model.set_attn_implementation("eager")
    wanted, found = (m(**x, output_attentions=True).attentions for m in (model, converted))
    assert len(found) == len(wanted) == 3
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_asking_for_attentions_changes_no_bit_of_the_logits():
    model, x = pf.convert(build("llama"), GAINS), batch("llama")
    asked = model(**x, output_attentions=True)
    assert torch.equal(asked.logits, model(**x).logits)
    assert model(**x).attentions is None


def test_a_configuration_that_always_asks_is_refused_with_what_to_do():
    model = build("llama")
    model.set_attn_implementation("eager")
    model.config.output_attentions = True
    with pytest.raises(InputError, match="output_attentions = False and ask in the call"):
        pf.convert(model, GAINS)


@pytest.mark.parametrize("cache", [None, "static"])
@torch.no_grad()
def test_generate_gives_the_attentions_of_every_step(cache):
    model, x = pf.convert(build("llama"), GAINS), batch("llama")
    options = {"cache_implementation": cache, "disable_compile": True} if cache else {}
    out = model.generate(
        **x, max_new_tokens=3, output_attentions=True, return_dict_in_generate=True, **options
    )
    assert len(out.attentions) == 3 and all(len(step) == 3 for step in out.attentions)
    for step in out.attentions:
        torch.testing.assert_close(step[2].sum(-1), torch.ones_like(step[2].sum(-1)))


@pytest.mark.parametrize(
    ("family", "parts"),
    [("llama", ["layers.1", "layers.2", "norm"]), (TYPES["bloom"], ["h.1", "h.2", "ln_f"])],
)
@pytest.mark.parametrize("gains", [GAINS, "resformer"])
@torch.no_grad()
def test_layers_on_two_devices_hand_the_state_on(family, parts, gains):
    """As device_map="auto" spreads them. The second device here only knows shapes."""
    model = pf.convert(build(family), gains).base_model
    for part in map(model.get_submodule, parts):
        add_hook_to_module(part.to("meta"), AlignDevicesHook("meta"))
    out = model(**batch(family)).last_hidden_state
    assert out.is_meta and out.shape == (2, 7, 32)


@pytest.mark.slow
@torch.no_grad()
def test_a_step_with_a_static_cache_compiles_to_one_graph():
    model, x = pf.convert(build("llama"), GAINS), batch("llama")["input_ids"]
    caches = [static(model), static(model)]
    for cache in caches:
        model(x[:, :6], past_key_values=cache, use_cache=True)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    wanted, found = (
        run(x[:, 6:], past_key_values=cache, use_cache=True).logits
        for run, cache in zip((model, compiled), caches, strict=True)
    )
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
