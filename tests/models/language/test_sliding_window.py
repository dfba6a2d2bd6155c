"""A token sees itself and the W - 1 before it, as in Mistral."""

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import DynamicCache, MistralConfig, MistralForCausalLM, StaticCache

import pidformer as pf
from pidformer import export as exporting
from pidformer.errors import InputError
from pidformer.models.causal_lm import PIDformerForCausalLM
from tests.models.language.beside_llama import GAINS, llama_of, same
from tests.models.language.conftest import paper_like, some_tokens, tiny_model

WINDOW = 4
TAKES_CHUNKS = Version(transformers.__version__) >= Version("5")
"""Whether a static cache that slides takes more than a prompt and then one token at a time."""


def mistral_of(model):
    """Mistral with the weights of our softmax twin and its window."""
    llama = llama_of(model)
    config = MistralConfig(**llama.config.to_dict() | {"sliding_window": WINDOW})
    mistral = MistralForCausalLM(config).eval()
    mistral.load_state_dict(llama.state_dict())
    return mistral


@pytest.mark.parametrize("options", [{}, {"num_key_value_heads": 2}], ids=["heads", "grouped"])
def test_the_softmax_twin_is_mistral(options):
    model = tiny_model(None, sliding_window=WINDOW, **options)
    mistral, tokens = mistral_of(model), some_tokens(2, 17)
    same(model(tokens).logits, mistral(tokens).logits)
    assert not torch.allclose(tiny_model(None, **options)(tokens).logits, model(tokens).logits)
    padded = torch.ones_like(tokens)
    padded[0, :6] = 0  # on the left
    ours, theirs = (m(tokens, attention_mask=padded).logits for m in (model, mistral))
    same(ours[0, 6:], theirs[0, 6:])
    same(ours[1], theirs[1])


@pytest.mark.parametrize("build", [tiny_model, paper_like])
def test_a_wide_window_is_none(build):
    tokens = some_tokens(2, 9)
    rows = {"attention_mask": torch.ones_like(tokens)}
    assert torch.equal(
        build(GAINS, sliding_window=9)(tokens, **rows).logits, build(GAINS)(tokens, **rows).logits
    )


def test_a_layer_reaches_one_window_and_layers_add_up():
    """Causality at both ends: 3 layers of window 4 reach 3 x 3 tokens back, and no token more."""
    model, tokens = tiny_model(GAINS, sliding_window=WINDOW), some_tokens(1, 24)
    embedded = model.model.embed_tokens(tokens).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model(inputs_embeds=embedded).logits[0, 20].sum(), embedded)
    is_seen = gradient[0].abs().amax(-1) > 0
    assert is_seen[11:21].all() and not is_seen[:11].any() and not is_seen[21:].any()


def test_the_attention_that_is_shown_has_the_window():
    model, tokens = tiny_model(GAINS, sliding_window=WINDOW), some_tokens(1, 9)
    for kernel in model(tokens, output_attentions=True).attentions:
        rows, columns = kernel[0, 0].nonzero().T
        assert int((rows - columns).max()) == WINDOW - 1 and int((columns - rows).max()) == 0


@pytest.mark.parametrize("gains", [None, GAINS, "xsa"])
@pytest.mark.parametrize("parts", [(3, 2, 7, 1), (1, 11, 1), (9, 1, 3), (4, 4, 5)])
def test_chunks_behind_any_cache_equal_the_whole(gains, parts):
    model, tokens = tiny_model(gains, sliding_window=WINDOW), some_tokens(2, sum(parts))
    with torch.no_grad():
        whole = model(tokens).logits
        sliding = DynamicCache(config=model.config)
        caches = [sliding, DynamicCache()]
        if TAKES_CHUNKS:
            caches.append(StaticCache(config=model.config, max_cache_len=16))
        for cache in caches:
            rows, start = [], 0
            for count in parts:
                part = tokens[:, start : start + count]
                rows.append(model(part, past_key_values=cache).logits)
                start += count
            same(torch.cat(rows, 1), whole)
    assert sliding.layers[0].keys.shape[-2] == WINDOW - 1  # all that is kept of the text


def test_packed_documents_equal_documents_alone():
    model, rows = tiny_model(GAINS, sliding_window=WINDOW), [some_tokens(1, n) for n in (7, 2, 9)]
    places = torch.cat([torch.arange(row.shape[1]) for row in rows])[None]
    alone = torch.cat([model(row).logits for row in rows], 1)
    same(model(torch.cat(rows, 1), position_ids=places).logits, alone)


def test_a_trained_model_is_given_a_window_when_it_is_loaded(tmp_path):
    model, tokens = tiny_model(GAINS), some_tokens(1, 12)
    model.save_pretrained(tmp_path)
    near = PIDformerForCausalLM.from_pretrained(tmp_path, sliding_window=WINDOW).eval()
    same(near(tokens).logits, tiny_model(GAINS, sliding_window=WINDOW)(tokens).logits)
    near.save_pretrained(tmp_path / "near")
    again = PIDformerForCausalLM.from_pretrained(tmp_path / "near")
    assert again.config.sliding_window == WINDOW


@pytest.mark.slow
def test_a_program_of_torch_has_the_window(tmp_path):
    model = tiny_model(GAINS, sliding_window=WINDOW)
    exporting.export(exporting.language_model(model), tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    for count in (3, 11):
        same(program(some_tokens(2, count)), model(some_tokens(2, count)).logits)


def test_a_compiled_model_asks_for_no_more_than_the_window():
    model, tokens = tiny_model(GAINS, sliding_window=WINDOW), some_tokens(2, 11)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        same(compiled(tokens, use_cache=False).logits, model(tokens).logits)


@pytest.mark.parametrize("window", [1, 0, -3])
def test_a_window_of_no_past_is_refused(window):
    with pytest.raises(InputError, match=r"sliding_window must be >= 2 tokens, or None"):
        pf.PIDformerConfig(sliding_window=window)
