"""What a model hands back, and what its configuration says, as clients of Llama expect."""

import json
from unittest import mock

import pytest
import torch
from transformers import (
    LlamaConfig,
)
from transformers.modeling_layers import GradientCheckpointingLayer

from pidformer.errors import InputError
from pidformer.models.causal_lm import PIDformerConfig
from tests.models.language.beside_llama import GAINS, full, same, twins
from tests.models.language.conftest import some_tokens, tiny_model


def test_the_configuration_says_its_tokens_and_refuses_what_it_does_not_know():
    for kind in (PIDformerConfig, LlamaConfig):
        config = kind(bos_token_id=3, eos_token_id=[4, 5], pad_token_id=6)
        assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (3, [4, 5], 6)
    plain = PIDformerConfig()
    assert plain.bos_token_id is plain.eos_token_id is plain.pad_token_id is None
    for make in (PIDformerConfig, PIDformerConfig.paper):
        with pytest.raises(InputError, match=r"'num_layers'.*did you mean 'num_hidden_layers'"):
            make(num_layers=3)
    made = PIDformerConfig(architectures=["A"], dtype="float32", torch_dtype="float32")
    assert made.architectures == ["A"]


def test_a_configuration_comes_back_from_its_file_with_what_clients_added(tmp_path):
    config = PIDformerConfig(num_hidden_layers=2, gains=GAINS, eos_token_id=0)
    config.architectures, config.unsloth_version = ["PIDformerForCausalLM"], "1"
    config.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    fields = json.loads(file.read_text())
    # What transformers 4 kept in config.json.
    fields |= {"torch_dtype": "float32", "use_bfloat16": False, "max_length": 20, "top_k": 50}
    file.write_text(json.dumps(fields))
    read = PIDformerConfig.from_pretrained(tmp_path)
    assert (read.num_hidden_layers, read.eos_token_id, read.gains) == (2, 0, config.gains)
    assert read.unsloth_version == "1"
    assert PIDformerConfig.from_dict(read.to_dict()).to_dict() == read.to_dict()


def flat(value):
    if isinstance(value, tuple):
        return [tensor for part in value for tensor in flat(part)]
    return [value] if isinstance(value, torch.Tensor) else []


@pytest.mark.parametrize("asked", [{}, {"output_hidden_states": True}, {"output_attentions": True}])
def test_a_tuple_holds_what_the_dictionary_holds(either, asked):
    tokens = full(some_tokens())
    for call, options in ((either, {}), (either, {"labels": some_tokens()}), (either.model, {})):
        named = call(**tokens, **options, **asked)
        plain = call(**tokens, **options, **asked, return_dict=False)
        assert type(plain) is tuple and len(plain) == len(named.to_tuple())
        for ours, theirs in zip(flat(plain), flat(named.to_tuple()), strict=True):
            assert torch.equal(ours, theirs)
    either.config.return_dict = False
    assert type(either(**tokens)) is type(either.model(**tokens)) is tuple


def test_hidden_states_and_attentions_equal_llamas():
    model, llama = twins(num_key_value_heads=2)
    llama.set_attn_implementation("eager")
    asked = {"output_hidden_states": True, "output_attentions": True}
    ours, theirs = (m(some_tokens(), **asked) for m in (model, llama))
    for name in ("hidden_states", "attentions"):
        assert len(ours[name]) == len(theirs[name])
        for mine, other in zip(ours[name], theirs[name], strict=True):
            same(mine, other)
    assert torch.equal(
        model.model(some_tokens(), output_hidden_states=True).hidden_states[-1],
        model.model(some_tokens()).last_hidden_state,
    )


def test_gradients_reach_hidden_states_and_attentions(either):
    out = either(**full(some_tokens()), output_hidden_states=True, output_attentions=True)
    seen = [*out.hidden_states, *out.attentions]
    for tensor in seen:
        tensor.retain_grad()
    out.logits[0, 0, 0].backward()
    assert all(tensor.grad is not None for tensor in seen)


# Checkpointing


def test_checkpointing_is_switched_where_clients_look(either):
    layers = [m for m in either.modules() if isinstance(m, GradientCheckpointingLayer)]
    assert len(layers) == either.config.num_hidden_layers
    assert not either.is_gradient_checkpointing
    either.gradient_checkpointing_enable()
    assert either.is_gradient_checkpointing and all(m.gradient_checkpointing for m in layers)
    either.gradient_checkpointing_disable()
    assert not either.is_gradient_checkpointing
    assert not any(m.gradient_checkpointing for m in layers)


@pytest.mark.parametrize("how", [None, {"use_reentrant": False}, {"use_reentrant": True}])
def test_checkpointing_recomputes_and_keeps_gradients_however_it_is_asked_for(either, how):
    tokens, model = full(some_tokens()) | {"labels": some_tokens()}, either.train()
    model(**tokens).loss.backward()
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)
    mlp = model.model.layers[0].mlp
    with mock.patch.object(mlp, "forward", wraps=mlp.forward) as forward:
        model(**tokens).loss.backward()
    assert forward.call_count == 2
    for parameter, grad in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad)


def test_checkpointing_by_timms_name_recomputes_each_layer_once(either):
    """As the training loop does."""
    tokens, calls = full(some_tokens()) | {"labels": some_tokens()}, []
    either.train().set_grad_checkpointing(True)
    for depth, layer in enumerate(either.model.layers):
        layer.mlp.register_forward_pre_hook(lambda *_, depth=depth: calls.append(depth))
    either(**tokens).loss.backward()
    assert sorted(calls) == [0, 0, 1, 1, 2, 2]


def test_a_function_for_checkpointing_that_is_not_torchs_is_refused():
    with pytest.raises(InputError, match="leave out offload=True"):
        tiny_model(GAINS)._set_gradient_checkpointing(True, lambda function, *args: None)


def test_layers_may_be_checkpointed_one_by_one():
    model = tiny_model(GAINS).train()
    model.gradient_checkpointing_enable()
    model.model.layers[1].gradient_checkpointing = False
    layers, calls = model.model.layers, []
    for depth, layer in enumerate(layers):
        layer.mlp.register_forward_pre_hook(lambda *_, depth=depth: calls.append(depth))
    model(some_tokens(), labels=some_tokens()).loss.backward()
    assert sorted(calls) == [0, 0, 1, 2, 2]
