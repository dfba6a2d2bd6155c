"""What clients of Hugging Face models do, on our language model beside Llama with its weights.

The wheel of transformers leaves out its model test mixins; the checks of theirs that apply are
made here, on the default and on the paper's configuration.
"""

import copy
import json
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from accelerate import cpu_offload
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    DataCollatorWithFlattening,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
)
from transformers.modeling_layers import GradientCheckpointingLayer

from pidformer.errors import InputError
from pidformer.models.causal_lm import PIDformerConfig, PIDformerForCausalLM, PIDformerModel
from tests.models.language.conftest import paper_like, some_tokens, tiny_model

GAINS = "0.4,0.3,0.1,0.5"
BUILDS = {
    "tied": lambda: tiny_model(GAINS),
    "untied": lambda: tiny_model(GAINS, tie_word_embeddings=False),
    "bias": lambda: tiny_model(GAINS, output_bias=True),
    "paper": lambda: paper_like(GAINS, hidden_dropout=0.0),
    "paper untied": lambda: paper_like(GAINS, tie_word_embeddings=False, hidden_dropout=0.0),
}


@pytest.fixture(params=list(BUILDS))
def model(request):
    return BUILDS[request.param]()


@pytest.fixture(params=["tied", "paper"])
def either(request):
    return BUILDS[request.param]()


def full(tokens):
    """A batch as clients hand it over."""
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def llama_of(model):
    """Llama with the weights of our softmax twin, whose architecture it has."""
    ours = model.config
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    names += ("num_key_value_heads", "intermediate_size", "tie_word_embeddings")
    names += ("bos_token_id", "eos_token_id", "pad_token_id")
    config = LlamaConfig(
        rms_norm_eps=ours.norm_eps, **{name: getattr(ours, name) for name in names}
    )
    renamed = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    weights = {}
    for name, tensor in model.state_dict().items():
        parts = [renamed.get(part, part) for part in name.split(".")]
        weights[".".join(parts)] = tensor
    llama = LlamaForCausalLM(config).eval()
    assert not llama.load_state_dict(weights, strict=False).unexpected_keys
    llama.tie_weights()
    return llama


def twins(**options):
    model = tiny_model(None, **options)
    return model, llama_of(model)


def same(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_llama_with_our_weights_is_our_softmax_twin():
    for options in ({}, {"num_key_value_heads": 2, "tie_word_embeddings": False}):
        model, llama = twins(**options)
        same(model(some_tokens()).logits, llama(some_tokens()).logits)


# The head


def test_a_model_offloaded_by_accelerate_gives_the_same_numbers(model):
    tokens, offloaded = some_tokens(), cpu_offload(copy.deepcopy(model))
    assert next(offloaded.parameters()).is_meta
    with torch.no_grad():
        for options in ({}, {"labels": tokens}, {"targets": tokens[:, -3:]}):
            mine, theirs = (m(**full(tokens), **options) for m in (offloaded, model))
            for name in ("logits", "loss"):
                if getattr(theirs, name) is not None:
                    assert torch.equal(mine[name], theirs[name]), (name, options)
    greedy = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    assert torch.equal(offloaded.generate(tokens, **greedy), model.generate(tokens, **greedy))


@pytest.mark.parametrize("name", ["tied", "untied", "bias"])
def test_the_head_is_a_linear_module_that_clients_can_ask_for(name):
    """As TRL does: hidden states of the base model through `get_output_embeddings()`."""
    model, tokens = BUILDS[name](), some_tokens()
    head = model.get_output_embeddings()
    assert head is model.lm_head and isinstance(head, torch.nn.Linear)
    assert (head.weight is model.get_input_embeddings().weight) == (name != "untied")
    hidden = model.model(tokens).last_hidden_state
    same(F.linear(hidden, head.weight, head.bias), model(tokens).logits)
    other = copy.deepcopy(head)
    model.set_output_embeddings(other)
    assert model.lm_head is other
    model.tie_weights()
    assert (other.weight is model.get_input_embeddings().weight) == (name != "untied")


@pytest.mark.parametrize("name", ["tied", "untied", "bias"])
def test_resizing_the_vocabulary_keeps_the_words_that_stay(name, tmp_path):
    model, tokens = BUILDS[name](), some_tokens()
    before = model(tokens).logits
    table = model.resize_token_embeddings(70)
    assert table.weight.shape[0] == model.lm_head.weight.shape[0] == model.config.vocab_size == 70
    assert (table.weight is model.lm_head.weight) == (name != "untied")
    after = model(tokens).logits
    same(after[..., :61], before)
    model.save_pretrained(tmp_path)
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path)(tokens).logits, after)
    with_new = tokens.clone()
    with_new[:, 2] = 69
    assert model(with_new, labels=with_new).loss.isfinite()


def test_resizing_gives_llamas_sizes():
    sizes = []
    for model in twins():
        model.resize_token_embeddings(61, pad_to_multiple_of=64)
        sizes.append((model.config.vocab_size, tuple(model.lm_head.weight.shape)))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("name", ["paper", "paper untied"])
def test_an_adaptive_softmax_says_what_it_cannot_do(name):
    model = BUILDS[name]()
    assert model.get_output_embeddings() is None  # no matrix gives its logits
    is_tied = model.config.tie_word_embeddings
    assert (model.lm_head.weight is model.get_input_embeddings().weight) == is_tied
    with pytest.raises(InputError, match=r"61 words .*cutoffs .* become 70"):
        model.resize_token_embeddings(70)
    assert model.resize_token_embeddings(61) is model.get_input_embeddings()
    with pytest.raises(InputError, match="adaptive softmax"):
        model.set_output_embeddings(torch.nn.Linear(32, 61))


def test_a_tied_table_is_saved_once(model, tmp_path):
    model.save_pretrained(tmp_path)
    names = load_file(tmp_path / "model.safetensors").keys()
    assert "model.embed_tokens.weight" in names
    assert ("lm_head.weight" in names) == (not model.config.tie_word_embeddings)


def old_names(weights, is_tied):
    """As version 0.1.0 wrote them before the head was a module of its own."""
    renamed = {
        f"head.{name.removeprefix('lm_head.')}" if name.startswith("lm_head.") else name: tensor
        for name, tensor in weights.items()
    }
    if is_tied:
        renamed.pop("head.weight", None)
    return {name: tensor.clone() for name, tensor in renamed.items()}


def test_weights_with_the_old_names_of_the_head_load(model, tmp_path):
    tokens, is_tied = full(some_tokens()), model.config.tie_word_embeddings
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path)
    old = old_names(model.state_dict(), is_tied)
    save_file(old, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded, info = PIDformerForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert torch.equal(loaded(**tokens).logits, model(**tokens).logits)
    loaded.save_pretrained(tmp_path / "again")
    by_auto = AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    assert torch.equal(by_auto(**tokens).logits, model(**tokens).logits)
    fresh = PIDformerForCausalLM(model.config).eval()
    fresh.load_state_dict(old)  # strict
    assert torch.equal(fresh(**tokens).logits, model(**tokens).logits)


def test_peft_adapts_the_layers_and_trains_the_head():
    peft = pytest.importorskip("peft")
    model, tokens = BUILDS["untied"](), some_tokens()
    expected = model(tokens).logits
    config = peft.LoraConfig(
        target_modules="all-linear", modules_to_save=["lm_head"], task_type="CAUSAL_LM"
    )
    adapted = peft.get_peft_model(model, config)
    same(adapted(input_ids=tokens).logits, expected)
    trained = {name for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    assert any("lm_head.modules_to_save" in name for name in trained)
    assert not any("lora" in name for name in trained if "lm_head" in name)
    adapted(input_ids=tokens, labels=tokens).loss.backward()


# Keywords


def test_shift_labels_are_the_targets_as_in_llama():
    model, llama = twins()
    tokens, shifted = some_tokens(), some_tokens(seed=5)
    shifted[0, 2] = -100
    ours, theirs = (m(tokens, labels=tokens, shift_labels=shifted) for m in (model, llama))
    same(ours.loss, theirs.loss)
    same(ours.logits, theirs.logits)
    counted = {"shift_labels": shifted, "num_items_in_batch": 4}
    same(*(m(tokens, labels=tokens, **counted).loss for m in (model, llama)))
    same(model(tokens, shift_labels=shifted).loss, theirs.loss)


def test_shift_labels_replace_labels(either):
    """A shard of a sequence: its last token has a target too, which `labels` cannot say."""
    tokens, shifted = some_tokens(), some_tokens(seed=5)
    loss = either(**full(tokens), labels=tokens, shift_labels=shifted).loss
    scores = either(**full(tokens)).logits.log_softmax(-1)
    same(loss, -scores.gather(-1, shifted[..., None]).mean())


def test_an_unknown_keyword_is_refused_in_one_line(either):
    for call in (either, either.model):
        with pytest.raises(InputError, match=r"unknown keyword 'atention_mask'.*'attention_mask'"):
            call(some_tokens(1), atention_mask=None)
    with pytest.raises(InputError, match="did you mean 'labels'"):
        either(some_tokens(1), label=some_tokens(1))
    with pytest.raises(InputError, match="is_causal"):
        either(some_tokens(1), is_causal=False)
    with pytest.raises(InputError, match="cu_seq_lens_q needs position_ids"):
        either(some_tokens(1), cu_seq_lens_q=torch.tensor([0, 4, 9]))


def test_keywords_that_transformers_passes_change_nothing(either):
    tokens = full(some_tokens())
    expected = either(**tokens).logits
    given = {"cache_position": torch.arange(9), "token_type_ids": torch.zeros(2, 9).long()}
    given |= {"is_causal": True, "output_attentions": False, "num_items_in_batch": None}
    assert torch.equal(either(**tokens, **given).logits, expected)
    same(either(**tokens, logits_to_keep=2).logits, expected[:, -2:])


# Packed documents

PACKED = {
    "rope": lambda: tiny_model(GAINS),
    "grouped": lambda: tiny_model(GAINS, num_key_value_heads=2),
    "learned": lambda: tiny_model(GAINS, position_type="learned", max_position_embeddings=16),
    "learned gains": lambda: tiny_model("0.3,0.1,0.05", learn_gains=True),
    "paper": BUILDS["paper"],
}
LENGTHS = (1, 5, 1, 7, 3)


def packed(**options):
    rows = [some_tokens(1, n, seed=n)[0] for n in LENGTHS]
    collate = DataCollatorWithFlattening(return_tensors="pt", **options)
    batch = collate([{"input_ids": row.tolist()} for row in rows])
    assert "attention_mask" not in batch
    return rows, dict(batch)


@pytest.mark.parametrize("build", PACKED.values(), ids=PACKED)
def test_packed_documents_equal_documents_alone(build):
    model, (rows, batch) = build(), packed(return_flash_attn_kwargs=True)
    alone = torch.cat([model(row[None]).logits for row in rows], 1)
    same(model(**batch).logits, alone)
    shown = model(**batch, output_attentions=True)
    same(shown.logits, alone)
    assert shown.attentions[0][0, :, -1, :-3].abs().max() == 0


@pytest.mark.parametrize("build", PACKED.values(), ids=PACKED)
@pytest.mark.parametrize("is_checkpointing", [False, True])
def test_packed_documents_have_the_gradients_of_documents_alone(build, is_checkpointing):
    model, (rows, batch) = build().train(), packed()
    labels = batch["labels"]
    alone = [F.cross_entropy(*pair(model, row), reduction="sum") for row in rows if len(row) > 1]
    expected = torch.autograd.grad(sum(alone), model.parameters())
    if is_checkpointing:
        model.gradient_checkpointing_enable()
    count = (labels[:, 1:] != -100).sum()
    found = torch.autograd.grad(model(**batch).loss * count, model.parameters())
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


def pair(model, row):
    """Scores of all words and the words themselves, in evaluation mode: logits are made there."""
    model.eval()
    logits = model(row[None]).logits[0, :-1]
    model.train()
    return logits, row[1:]


def test_packed_documents_equal_llamas():
    (model, llama), (_, batch) = twins(), packed()
    batch["use_cache"] = False
    ours, theirs = model(**batch), llama(**batch)
    same(ours.logits, theirs.logits)
    same(ours.loss, theirs.loss)


def test_rows_may_be_packed_each_in_its_own_way():
    model, tokens = tiny_model(GAINS), some_tokens(2, 6)
    places = torch.tensor([[0, 1, 2, 3, 4, 5], [0, 1, 0, 1, 2, 3]])
    found = model(tokens, position_ids=places).logits
    same(found[:1], model(tokens[:1]).logits)
    same(found[1:, 2:], model(tokens[1:, 2:]).logits)


def test_packed_documents_are_not_put_into_a_cache(either):
    _, batch = packed()
    assert either(**batch).past_key_values is None
    with pytest.raises(InputError, match="cache"):
        either(**batch, past_key_values=DynamicCache())
    if either.config.position_order == "ascending":
        with pytest.raises(InputError, match="use_cache=False"):
            either(**batch, use_cache=True)


def test_a_compiled_model_keeps_packed_documents_apart(either):
    torch.compiler.reset()
    _, batch = packed()
    batch = {"input_ids": batch["input_ids"], "position_ids": batch["position_ids"]}
    batch["use_cache"] = False
    compiled = torch.compile(either, backend="eager", fullgraph=True)
    with torch.no_grad():
        same(compiled(**batch).logits, either(**batch).logits)
        batch |= {"position_ids": torch.arange(17)[None], "use_cache": True}  # one document
        same(compiled(**batch).logits, either(**batch).logits)


# The configuration and what is given back


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
    layer = model.model.layers[0]
    with mock.patch.object(layer, "forward", wraps=layer.forward) as forward:
        model(**tokens).loss.backward()
    assert forward.call_count == 2
    for parameter, grad in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad)


def test_layers_may_be_checkpointed_one_by_one():
    model = tiny_model(GAINS).train()
    model.gradient_checkpointing_enable()
    model.model.layers[1].gradient_checkpointing = False
    layers, calls = model.model.layers, []
    for depth, layer in enumerate(layers):
        layer.register_forward_pre_hook(lambda *_, depth=depth: calls.append(depth))
    model(some_tokens(), labels=some_tokens()).loss.backward()
    assert sorted(calls) == [0, 0, 1, 2, 2]


# The paper's model


def test_a_log_likelihood_does_not_depend_on_the_batch():
    """Rows of one batch, padded on either side, score as they score alone."""
    model = BUILDS["paper"]()
    rows = [some_tokens(1, n, seed=n)[0] for n in (3, 9, 6)]
    for side in ("left", "right"):
        tokens, mask = torch.full((3, 9), 60), torch.zeros(3, 9, dtype=torch.long)
        places = [slice(0, len(r)) if side == "right" else slice(9 - len(r), 9) for r in rows]
        for k, (row, place) in enumerate(zip(rows, places, strict=True)):
            tokens[k, place], mask[k, place] = row, 1
        found = model(tokens, attention_mask=mask).logits
        for k, (row, place) in enumerate(zip(rows, places, strict=True)):
            same(found[k, place], model(row[None]).logits[0])


def test_a_batch_without_a_mask_is_refused_where_padding_would_move_positions():
    model, tokens = BUILDS["paper"](), some_tokens(2, 9)
    for call in (model, model.model):
        with pytest.raises(InputError, match=r"count down.*attention_mask"):
            call(tokens)
    # One row, targets at the end of each row, and models that count up are not in doubt.
    alone = model(tokens[:1]).logits
    same(model(**full(tokens)).logits[:1], alone)
    model(tokens, targets=tokens[:, -1:])
    padded = F.pad(tokens, (0, 4), value=60)
    up = tiny_model(GAINS)
    same(up(padded).logits[:, :9], up(tokens).logits)


def test_the_paper_model_generates_when_asked_for_a_cache():
    """As evaluation harnesses do; it takes the time of whole forwards, and says so."""
    model, tokens = BUILDS["paper"](), some_tokens()
    greedy = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
    with pytest.warns(UserWarning, match="without a cache"):
        found = model.generate(tokens, use_cache=True, **greedy)
    assert torch.equal(found, model.generate(tokens, use_cache=False, **greedy))
    with pytest.raises(InputError, match="cannot use a key/value cache"):
        model.generate(tokens, past_key_values=DynamicCache(), **greedy)


def test_the_base_model_loads_from_the_whole_models_folder(tmp_path):
    model = tiny_model(GAINS)
    model.save_pretrained(tmp_path)
    base = PIDformerModel.from_pretrained(tmp_path)
    tokens = some_tokens()
    assert torch.equal(base(tokens).last_hidden_state, model.model(tokens).last_hidden_state)
