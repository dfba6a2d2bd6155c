"""Questions that transformers' own tests of `generate` ask, of the default and the paper's model.

What a cache, beams, sampling, padding and assistants give is in `test_generate.py`.
"""

import pytest
import torch
import transformers

from pidformer.errors import InputError
from tests.models.language.beside_llama import BUILDS, full, same
from tests.models.language.conftest import some_tokens

GREEDY = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
NEW = GREEDY["max_new_tokens"]


def has_cache(model):
    return model.config.position_order == "ascending"


@pytest.mark.parametrize("beams", [1, 3])
def test_what_was_looked_at_comes_with_the_text(either, beams):
    tokens = some_tokens()
    asked = {"output_scores": True, "output_attentions": True, "output_hidden_states": True}
    out = either.generate(
        **full(tokens), **GREEDY, **asked, num_beams=beams, return_dict_in_generate=True
    )
    plain = either.generate(**full(tokens), **GREEDY, num_beams=beams)
    assert torch.equal(out.sequences, plain)
    assert len(out.scores) == len(out.attentions) == len(out.hidden_states) == NEW
    assert all(score.shape == (2 * beams, 61) for score in out.scores)
    for step, (kernels, states) in enumerate(zip(out.attentions, out.hidden_states, strict=True)):
        keys = tokens.shape[1] + step
        queries = 1 if step and has_cache(either) else keys
        assert [k.shape for k in kernels] == [(2 * beams, 4, queries, keys)] * 3
        assert [s.shape for s in states] == [(2 * beams, queries, 32)] * 4
        same(kernels[0].sum(-1), torch.ones(2 * beams, 4, queries))
    assert (out.past_key_values is not None) == has_cache(either)


def test_a_text_goes_on_from_its_cache():
    model, tokens = BUILDS["tied"](), some_tokens()
    whole = model.generate(**full(tokens), **GREEDY)
    part = GREEDY | {"return_dict_in_generate": True}
    first = model.generate(**full(tokens), **part | {"max_new_tokens": 2})
    rest = model.generate(
        **full(first.sequences),
        past_key_values=first.past_key_values,
        **part | {"max_new_tokens": 3},
    )
    assert torch.equal(rest.sequences, whole)
    seen = sum(layer.keys.shape[-2] for layer in rest.past_key_values.layers) // 3
    assert seen == whole.shape[1] - 1


def test_embeddings_write_what_their_tokens_write():
    model, tokens = BUILDS["tied"](), some_tokens()
    embedded = model.get_input_embeddings()(tokens)
    found = model.generate(inputs_embeds=embedded, attention_mask=torch.ones_like(tokens), **GREEDY)
    assert torch.equal(found, model.generate(**full(tokens), **GREEDY)[:, tokens.shape[1] :])
    paper = BUILDS["paper"]()
    with pytest.raises(InputError, match=r"inputs_embeds with a cache alone.*give input_ids"):
        paper.generate(inputs_embeds=embedded, **GREEDY)


def test_without_a_prompt_it_begins_at_the_first_token(either):
    found = either.generate(max_new_tokens=4, do_sample=False, eos_token_id=None)
    assert found.shape == (1, 5) and found[0, 0] == either.config.bos_token_id


def test_a_mask_over_pairs_of_tokens_is_obeyed(either):
    tokens = some_tokens()
    lower = torch.ones(2, 1, 9, 9).tril().bool()
    same(either(tokens, attention_mask=lower).logits, either(**full(tokens)).logits)
    lower[:, :, 3:, 2] = False
    hidden = either(tokens, attention_mask=lower).logits
    changed = tokens.clone()
    changed[:, 2] = (tokens[:, 2] + 1) % 60
    same(hidden[:, 3:], either(changed, attention_mask=lower).logits[:, 3:])
    assert not torch.allclose(hidden[:, 2], either(changed, attention_mask=lower).logits[:, 2])


def test_a_prompt_read_in_chunks_writes_the_same():
    model, tokens = BUILDS["tied"](), full(some_tokens())
    chunked = model.generate(**tokens, prefill_chunk_size=4, **GREEDY)
    assert torch.equal(chunked, model.generate(**tokens, **GREEDY))


def test_its_first_layers_may_be_the_assistant():
    """Early exit: transformers cuts `num_hidden_layers` for a while, and layers must follow."""
    model, tokens = BUILDS["tied"](), full(some_tokens(1))
    found = model.generate(**tokens, assistant_early_exit=1, **GREEDY)
    assert torch.equal(found, model.generate(**tokens, **GREEDY))
    assert model.config.num_hidden_layers == 3


@pytest.mark.parametrize("kind", ["offloaded", "offloaded_static"])
def test_a_cache_that_is_offloaded_needs_something_to_be_offloaded_from(kind, monkeypatch):
    model, tokens = BUILDS["tied"](), full(some_tokens())
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(InputError, match=f"{kind}.*no accelerator"):
        model.generate(**tokens, cache_implementation=kind, **GREEDY)


@pytest.mark.parametrize("kind", ["offloaded", "offloaded_static"])
def test_with_a_cache_that_is_offloaded_nothing_is_compiled(kind, monkeypatch):
    given = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(
        transformers.GenerationMixin, "generate", lambda *_, **options: given.append(options)
    )
    BUILDS["tied"]().generate(**full(some_tokens()), cache_implementation=kind)
    assert given[0]["disable_compile"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("kind", ["offloaded", "offloaded_static"])
def test_an_offloaded_cache_writes_the_same(kind):
    model = BUILDS["tied"]().cuda()
    tokens = full(some_tokens().cuda())
    found = model.generate(**tokens, cache_implementation=kind, **GREEDY)
    assert torch.equal(found, model.generate(**tokens, **GREEDY))


def test_a_pipeline_writes_text(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = {f"w{n}": n for n in range(61)}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="w60", eos_token="w0"
    )
    model = BUILDS["tied"]()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    write = transformers.pipeline("text-generation", model=str(tmp_path), device="cpu")
    found = write("w3 w5 w7", **GREEDY, return_full_text=False)[0]["generated_text"].split()
    wanted = model.generate(**full(torch.tensor([[3, 5, 7]])), **GREEDY)[0, 3:]
    assert found == [f"w{n}" for n in wanted]
