import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache, StaticCache

from pidformer.control.gains import PIDGains
from tests.models.language.conftest import paper_like, some_tokens, tiny_model

GREEDY = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
VARIANTS = {
    "rope": {},
    "grouped": {"num_key_value_heads": 2},
    "post-norm": {
        "position_type": "sinusoidal",
        "norm_order": "post",
        "norm_type": "layer",
        "mlp_type": "relu",
        "cutoffs": [20, 40],
        "tie_word_embeddings": False,  # tied random weights repeat one word for ever
        "scale_embedding": True,
    },
    "learned": {"position_type": "learned", "max_position_embeddings": 64},
    "sliding": {"sliding_window": 5},
}


@pytest.fixture(params=list(VARIANTS))
def model(request, gains):
    return tiny_model(gains, **VARIANTS[request.param])


def by_hand(model, tokens, count):
    """Greedy continuation by whole forward passes: nothing of Hugging Face, nothing cached."""
    for _ in range(count):
        with torch.no_grad():
            best = model(tokens, use_cache=False).logits[:, -1].argmax(-1)
        tokens = torch.cat([tokens, best[:, None]], dim=1)
    return tokens


def test_greedy_with_a_cache_equals_whole_forwards(model):
    tokens = some_tokens()
    expected = by_hand(model, tokens, 12)
    assert len(set(expected[:, 9:].flatten().tolist())) > 1
    assert torch.equal(model.generate(tokens, **GREEDY), expected)
    assert torch.equal(model.generate(tokens, use_cache=False, **GREEDY), expected)


def test_a_static_cache_gives_the_same(model):
    tokens = some_tokens()
    found = model.generate(tokens, cache_implementation="static", **GREEDY)
    assert torch.equal(found, by_hand(model, tokens, 12))


def test_beam_search_with_a_cache_equals_without(model):
    options = GREEDY | {"num_beams": 4, "num_return_sequences": 3}
    with_cache = model.generate(some_tokens(), **options)
    assert torch.equal(with_cache, model.generate(some_tokens(), use_cache=False, **options))
    assert with_cache.shape == (6, 21)


def test_a_left_padded_batch_writes_what_each_row_writes_alone(model):
    rows = [some_tokens(1, n, seed=n)[0] for n in (3, 9, 6)]
    width = max(map(len, rows))
    tokens = torch.full((3, width), 60)
    mask = torch.zeros(3, width, dtype=torch.long)
    for k, row in enumerate(rows):
        tokens[k, width - len(row) :] = row
        mask[k, width - len(row) :] = 1
    expected = [by_hand(model, row[None], 12)[0, len(row) :] for row in rows]
    for options in ({}, {"use_cache": False}, {"cache_implementation": "static"}):
        found = model.generate(tokens, attention_mask=mask, **options, **GREEDY)
        assert torch.equal(found[:, width:], torch.stack(expected)), options


def test_a_padded_forward_without_position_ids_counts_from_the_first_word(model):
    tokens = some_tokens(1, 6)
    padded = torch.cat([torch.full((1, 4), 60), tokens], dim=1)
    mask = torch.tensor([[0] * 4 + [1] * 6])
    with torch.no_grad():
        found = model(padded, attention_mask=mask).logits[:, 4:]
        torch.testing.assert_close(found, model(tokens).logits, rtol=1e-4, atol=1e-4)


def test_sampling_with_a_cache_equals_without(model):
    options = {"max_new_tokens": 12, "do_sample": True, "top_k": 20, "eos_token_id": None}
    drawn = []
    for use_cache in (True, False):
        torch.manual_seed(5)
        drawn.append(model.generate(some_tokens(), use_cache=use_cache, **options))
    assert torch.equal(*drawn)


def test_assisted_decoding_equals_greedy(model, gains):
    tokens = some_tokens(1)
    helper = tiny_model(gains, seed=7, num_hidden_layers=1)
    found = model.generate(tokens, assistant_model=helper, **GREEDY)
    assert torch.equal(found, by_hand(model, tokens, 12))


def test_prompt_lookup_decoding_equals_greedy(model):
    tokens = some_tokens(1, 4).repeat(1, 3)
    expected = by_hand(model, tokens, 12)
    # transformers 4 wants an end for its candidates: one that does not come up.
    end = next(token for token in range(61) if token not in expected)
    options = GREEDY | {"eos_token_id": end}
    found = model.generate(tokens, prompt_lookup_num_tokens=3, **options)
    assert torch.equal(found, expected)


def test_logits_with_a_cache_equal_those_without_in_chunks(model):
    tokens = some_tokens(2, 12)
    with torch.no_grad():
        whole = model(tokens).logits
        cache, parts = DynamicCache(), []
        for part in tokens.split((5, 1, 4, 2), dim=1):
            parts.append(model(part, past_key_values=cache, use_cache=True).logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_the_cache_holds_not_one_byte_more_than_the_softmax_twins(options):
    sizes = []
    for gains in (None, "0.4,0.3,0.1,0.5"):
        model, tokens = tiny_model(gains, **options), some_tokens(2, 7)
        for cache in (DynamicCache(), StaticCache(config=model.config, max_cache_len=16)):
            with torch.no_grad():
                model(tokens, past_key_values=cache, use_cache=True)
            sizes.append(tensor_bytes(cache))
    twin = len(sizes) // 2
    assert sizes[:twin] == sizes[twin:]
    size = model.config.num_key_value_heads * model.config.head_dim
    assert sizes[0] == 2 * 3 * 2 * 7 * size * 4  # keys and values, layers, rows, tokens, float32


def tensor_bytes(value, seen=None) -> int:
    """Bytes of all tensors that can be reached from an object."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        return value.untyped_storage().nbytes()
    if isinstance(value, dict):
        return sum(tensor_bytes(v, seen) for v in value.values())
    if isinstance(value, list | tuple):
        return sum(tensor_bytes(v, seen) for v in value)
    return tensor_bytes(vars(value), seen) if hasattr(value, "__dict__") else 0


@pytest.mark.slow
def test_a_compiled_static_step_equals_eager_and_compiles_once(gains):
    model, tokens = tiny_model(gains, num_hidden_layers=2), some_tokens()
    expected, graphs = by_hand(model, tokens, 6), []
    model.forward = torch.compile(
        model.forward, backend=lambda graph, _: graphs.append(graph) or graph, fullgraph=True
    )
    for _ in range(2):
        found = model.generate(
            tokens, cache_implementation="static", **(GREEDY | {"max_new_tokens": 6})
        )
        assert torch.equal(found, expected)
    assert len(graphs) == 2  # the prompt, and a step
    inputs = [node for node in graphs[1].graph.nodes if node.op == "placeholder"]
    assert all(isinstance(node.meta["example_value"], torch.Tensor) for node in inputs)


class Dispatches(TorchDispatchMode):
    """Counts the operations that a device is sent, views among them."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += 1
        return operation(*args, **(kwargs or {}))


def dispatches_a_layer(gains, **options):
    """Operations that one more layer costs a step of decoding."""
    counts = []
    for depth in (4, 6):
        model = paper_like(gains, position_order="ascending", num_hidden_layers=depth, **options)
        cache = DynamicCache()
        with torch.no_grad():
            model(some_tokens(), past_key_values=cache, use_cache=True)
            model(some_tokens(2, 1), past_key_values=cache, use_cache=True)  # makes constants
            with Dispatches() as seen:
                model(some_tokens(2, 1), past_key_values=cache, use_cache=True)
        counts.append(seen.count)
    return (counts[1] - counts[0]) / 2


def test_a_controlled_layer_decodes_with_one_operation_more_than_its_twin():
    softmax = dispatches_a_layer(None)
    assert dispatches_a_layer("0.4,0.3,0.1,0.5") <= softmax + 1
    assert dispatches_a_layer("0.4,0.3,0.1,0.5", num_key_value_heads=2) <= softmax + 3
    assert softmax <= 36


@pytest.mark.slow
def test_layers_of_other_kinds_hand_the_state_on():
    """Learned gains, gains that differ by layer, gains at a share: whatever goes which way."""
    by_layer = [PIDGains(p=0.4, i=k / 10, d=0.1, beta=0.5) for k in range(3)]
    models = [tiny_model(by_layer), tiny_model("0.4,0.3,0.1,0.5", learn_gains=True)]
    models.append(tiny_model("0.4,0.3,0.1,0.5"))
    models[-1].model.layers[2].self_attn.gain_share = torch.tensor(0.5)
    models.append(tiny_model("0.4,0.3,0.1,0.5", first_layer="controlled"))
    for model in models:
        tokens = some_tokens()
        assert torch.equal(model.generate(tokens, **GREEDY), by_hand(model, tokens, 12))


def test_half_precision_decodes_as_whole_forwards_do():
    model = tiny_model("0.4,0.3,0.1,0.5", num_hidden_layers=6).bfloat16()
    tokens = some_tokens(2, 12)
    with torch.no_grad():
        whole = model(tokens, use_cache=False).logits
        cache, parts = DynamicCache(), []
        for part in tokens.split(1, dim=1):
            parts.append(model(part, past_key_values=cache, use_cache=True).logits)
    error = (torch.cat(parts, 1) - whole).float().norm() / whole.float().norm()
    assert error < 2e-2


@torch.no_grad()
def test_a_step_with_a_static_cache_asks_the_host_nothing(gains):
    """Or no CUDA graph could hold it."""

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            assert "_local_scalar_dense" not in str(func), "a number is read from the device"
            return func(*args, **(kwargs or {}))

    model, tokens = tiny_model(gains), some_tokens()
    cache = StaticCache(config=model.config, max_cache_len=32)
    model(tokens, past_key_values=cache, use_cache=True)
    with Watch():
        model(tokens[:, :1], past_key_values=cache, use_cache=True)
