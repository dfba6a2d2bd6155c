"""What clients of Hugging Face models do, on our language model beside Llama with its weights.

The wheel of transformers leaves out its model test mixins; the checks of theirs that apply are
made here, on the default and on the paper's configuration.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from accelerate import cpu_offload
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
)

from pidformer.errors import InputError
from pidformer.models.causal_lm import PIDformerForCausalLM, PIDformerModel
from tests.models.language.beside_llama import BUILDS, GAINS, full, same, twins
from tests.models.language.conftest import some_tokens, tiny_model


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


@torch.no_grad()
def test_hooks_around_layers_change_nothing_that_is_asked_for():
    """As accelerate's `dispatch_model` puts them there: arguments of a layer are copied."""
    model, tokens = tiny_model(GAINS), some_tokens()
    asked = {"output_attentions": True, "output_hidden_states": True}
    wanted = model(tokens, **asked)
    for layer in model.model.layers:
        add_hook_to_module(layer, AlignDevicesHook("cpu"))
    found = model(tokens, **asked)
    for name in ("attentions", "hidden_states"):
        assert len(found[name]) == len(wanted[name])
        assert all(map(torch.equal, found[name], wanted[name]))


@torch.no_grad()
def test_a_token_is_decoded_across_devices(gains):
    """The second device here only knows shapes."""
    model, tokens = tiny_model(gains).model, some_tokens()
    for part in (*model.layers[1:], model.norm):
        add_hook_to_module(part.to("meta"), AlignDevicesHook("meta"))
    cache = DynamicCache()
    for part in (tokens, tokens[:, :1]):
        out = model(part, past_key_values=cache, use_cache=True).last_hidden_state
        assert out.is_meta and out.shape == (*part.shape, 32)


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
