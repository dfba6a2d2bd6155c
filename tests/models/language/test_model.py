import math
import warnings
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForCausalLM

import pidformer as pf
from pidformer.errors import InputError
from pidformer.models.causal_lm import PIDformerConfig, PIDformerForCausalLM
from tests.models.language.conftest import paper_like, some_tokens, tiny_model


def test_the_papers_model_has_its_parameters_to_the_unit():
    with torch.device("meta"):
        models = [PIDformerForCausalLM(PIDformerConfig.paper(gains=g)) for g in (None, "lm")]
    for model in models:
        assert sum(p.numel() for p in model.parameters()) == 44_018_394
        assert sum(p.numel() for p in model.model.layers.parameters()) == 9_480_192
    config = models[1].config
    assert (config.vocab_size, config.cutoffs) == (267_735, [20_000, 40_000, 200_000])
    assert (config.num_hidden_layers, config.hidden_size, config.head_dim) == (16, 128, 16)
    assert models[1].gains == pf.PIDGains.paper("lm")
    assert models[0].state_dict().keys() == models[1].state_dict().keys()


def direct_paper_forward(model, tokens):
    """The paper's network from its definition, layer by layer, in float64."""
    w = {k: v.double() for k, v in model.state_dict().items()}
    config, gains = model.config, model.gains
    heads, size = config.num_attention_heads, config.head_dim
    (count,) = tokens.shape
    width = config.hidden_size
    x = w["model.embed_tokens.weight"][tokens] * math.sqrt(width)
    for row in range(count):
        index = count - 1 - row  # the last token has index 0
        for k in range(width // 2):
            angle = index / 10000 ** (2 * k / width)
            x[row, k] += math.sin(angle)
            x[row, width // 2 + k] += math.cos(angle)
    errors, first = [], None
    for layer in range(config.num_hidden_layers):
        at = f"model.layers.{layer}."
        q, k, v = (
            (x @ w[f"{at}self_attn.{n}_proj.weight"].T).view(count, heads, size) for n in "qkv"
        )
        if first is None:
            first = v
        e = gains.beta * first - v
        out = torch.zeros_like(v)
        for h in range(heads):
            for i in range(count):
                scores = torch.stack([q[i, h] @ k[j, h] / math.sqrt(size) for j in range(i + 1)])
                out[i, h] = scores.softmax(0) @ v[: i + 1, h]
        if layer > 0:
            out = out + gains.p * e + gains.i * (sum(errors) + e)
            before = errors[-1] if errors else (gains.beta - 1) * first
            out = out + gains.d * (e - before)
            errors.append(e)
        mixed = out.reshape(count, width) @ w[f"{at}self_attn.o_proj.weight"].T
        norm = f"{at}attention_norm."
        x = F.layer_norm(x + mixed, (width,), w[norm + "weight"], w[norm + "bias"], 1e-5)
        up = (x @ w[f"{at}mlp.up_proj.weight"].T + w[f"{at}mlp.up_proj.bias"]).relu()
        down = up @ w[f"{at}mlp.down_proj.weight"].T + w[f"{at}mlp.down_proj.bias"]
        norm = f"{at}mlp_norm."
        x = F.layer_norm(x + down, (width,), w[norm + "weight"], w[norm + "bias"], 1e-5)
    table, bias = w["model.embed_tokens.weight"], w["lm_head.bias"]
    edges = [*config.cutoffs, config.vocab_size]
    head_weight = torch.cat([table[: edges[0]], w["lm_head.cluster_weight"]])
    head = torch.cat([bias[: edges[0]], w["lm_head.cluster_bias"]]) + x @ head_weight.T
    head = head.softmax(-1)
    parts = [head[:, : edges[0]]]
    for cluster, (low, high) in enumerate(pairwise(edges)):
        tail = (x @ table[low:high].T + bias[low:high]).softmax(-1)
        parts.append(head[:, [edges[0] + cluster]] * tail)
    return torch.cat(parts, -1)


def test_the_papers_architecture_equals_its_definition():
    model = paper_like("0.4,0.5,0.1,0.3").double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name:  # zero at the start, and then not seen
                parameter.normal_()
    (tokens,) = some_tokens(1, 7)
    with torch.no_grad():
        found = model(tokens[None]).logits[0].exp()
    torch.testing.assert_close(found, direct_paper_forward(model, tokens), rtol=1e-5, atol=1e-8)
    assert found.sum(-1) == pytest.approx(torch.ones(7).tolist(), abs=1e-6)


@pytest.mark.parametrize("options", [{}, {"norm_order": "post", "position_type": "sinusoidal"}])
def test_zero_gains_equal_softmax(options):
    twin, zero = tiny_model(None, **options), tiny_model(pf.PIDGains(), **options)
    zero.load_state_dict(twin.state_dict())
    tokens = some_tokens()
    torch.testing.assert_close(zero(tokens).logits, twin(tokens).logits, rtol=1e-5, atol=1e-6)
    other = tiny_model("0.4,0.3,0.1,0.5", **options)
    other.load_state_dict(twin.state_dict())
    assert not torch.allclose(other(tokens).logits, twin(tokens).logits, atol=1e-2)


@pytest.mark.parametrize("build", [tiny_model, paper_like])
def test_no_token_sees_a_later_one(build, gains):
    model, tokens = build(gains), some_tokens(1, 10)
    changed = tokens.clone()
    changed[0, 6:] = 60 - changed[0, 6:]
    with torch.no_grad():
        before, after = model(tokens).logits, model(changed).logits
    torch.testing.assert_close(before[:, :6], after[:, :6], rtol=0, atol=1e-5)
    assert not torch.allclose(before[:, 6:], after[:, 6:], atol=1e-2)


OPTIONS = [
    {},
    {"num_key_value_heads": 2},
    {"position_type": "learned", "max_position_embeddings": 32},
    {"position_type": "sinusoidal", "norm_type": "layer", "norm_order": "post"},
    {"mlp_type": "gelu", "mlp_bias": True, "attention_bias": True, "output_bias": True},
    {"tie_word_embeddings": False, "cutoffs": [20, 40]},
    {"learn_gains": True, "gains": "0.3,0.1,0.05"},
    {"gains": ["0.1,0,0", "0.2,0,0", "0.3,0,0"]},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: ",".join(o) or "defaults")
def test_save_and_load_give_the_same_model(options, tmp_path):
    model = tiny_model(**({"gains": "0.4,0.3,0.1,0.5"} | options))
    with torch.no_grad():  # no parameter at its starting value
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokens = some_tokens()
    assert type(loaded) is PIDformerForCausalLM and not loaded.training
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)
    assert loaded.gains == model.gains
    assert (tmp_path / "model.safetensors").exists()
    assert AutoConfig.from_pretrained(tmp_path).to_dict()["gains"] == model.config.gains


def test_other_gains_at_load_warn_with_both(tmp_path):
    model = tiny_model("0.4,0.3,0.1,0.5")
    model.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=r"trained with gains .*0\.4.*loaded with .*0\.2"):
        other = AutoModelForCausalLM.from_pretrained(tmp_path, gains="0.2,0,0")
    assert other.gains == pf.PIDGains(p=0.2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        AutoModelForCausalLM.from_pretrained(tmp_path, gains="0.4,0.3,0.1,0.5")


def test_labels_are_shifted_and_targets_are_not():
    model, tokens = tiny_model("0.4,0.3,0.1"), some_tokens()
    labels = tokens.clone()
    labels[0, 3] = -100
    out = model(tokens, labels=labels)
    expected = F.cross_entropy(out.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    torch.testing.assert_close(out.loss, expected)
    same = model(tokens, targets=F.pad(labels[:, 1:], (0, 1), value=-100))
    torch.testing.assert_close(same.loss, expected)
    assert same.logits is None and same.past_key_values is None
    each = model(tokens, targets=labels[:, -2:], reduction="none").loss
    direct = -out.logits[:, -2:].log_softmax(-1).gather(-1, labels[:, -2:, None])[..., 0]
    torch.testing.assert_close(each, direct)
    torch.testing.assert_close(
        model(tokens, labels=labels, num_items_in_batch=5).loss, expected * 15 / 5
    )


def test_hidden_states_and_attention_can_be_looked_at():
    model, tokens = tiny_model("0.4,0.3,0.1", num_key_value_heads=2), some_tokens()
    out = model(tokens, output_hidden_states=True, output_attentions=True)
    assert len(out.hidden_states) == 4 and len(out.attentions) == 3
    kernel = out.attentions[1]
    assert kernel.shape == (2, 4, 9, 9)
    torch.testing.assert_close(kernel.sum(-1), torch.ones(2, 4, 9))
    assert torch.equal(kernel, kernel.tril())
    layer = model.model.layers[1].self_attn
    x = model.model.layers[1].attention_norm(out.hidden_states[1])
    assert layer.v_proj(x).shape == (2, 9, 16)
    assert model(tokens, return_dict=False)[0].shape == (2, 9, 61)


def test_checkpointing_keeps_gradients(gains):
    grads = []
    for is_checkpointing in (False, True):
        model = tiny_model(gains).train()
        if is_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            assert model.model.gradient_checkpointing
        model(some_tokens(), labels=some_tokens()).loss.backward()
        grads.append([p.grad for p in model.parameters()])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


def test_positions_count_down_to_the_last_token():
    """The paper's model is the same text read with a shorter past: index 0 is always the last."""
    model = paper_like("lm", num_hidden_layers=1)
    tokens = some_tokens(1, 8)
    # Without attention to the past, a token's output depends on its own index alone.
    with torch.no_grad():
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        long, short = model(tokens).logits[0, -3:], model(tokens[:, -3:]).logits[0]
        up = paper_like("lm", num_hidden_layers=1, position_order="ascending")
        up.load_state_dict(model.state_dict())
        begin, whole = up(tokens[:, :3]).logits[0], up(tokens).logits[0, :3]
    torch.testing.assert_close(long, short)
    torch.testing.assert_close(begin, whole)


def test_learned_positions_refuse_longer_texts():
    model = tiny_model(position_type="learned", max_position_embeddings=8)
    assert model(some_tokens(1, 8)).logits.shape[1] == 8
    with pytest.raises(InputError, match=r"9 tokens are more than the 8 positions"):
        model(some_tokens(1, 9))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_attention_heads": 5}, "multiple of num_attention_heads"),
        ({"num_key_value_heads": 3}, "multiple of num_key_value_heads"),
        ({"cutoffs": [40, 20]}, "cutoffs must rise"),
        ({"cutoffs": [61]}, "below vocab_size 61"),
        ({"norm_order": "sandwich"}, "known: post, pre"),
        ({"position_order": "descending"}, "sinusoidal"),
        ({"mlp_type": "swigl"}, "did you mean 'swiglu'"),
        ({"gains": "0.1,0.1"}, "P,I,D"),
        ({"gains": ["0.1,0,0"]}, "gains for 1 layers do not fit a model of 3"),
        ({"first_layer": "fre"}, "did you mean 'free'"),
    ],
)
def test_configurations_that_cannot_be_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        tiny_model(**options)


def test_half_precision_stays_near(gains):
    model, tokens = tiny_model(gains), some_tokens(2, 30)
    with torch.no_grad():
        exact = model(tokens).logits
        rounded = model.bfloat16()(tokens).logits.float()
    assert (rounded - exact).abs().max() < 0.15 * exact.abs().max()


def test_rotary_positions_see_distances_alone(gains):
    """Queries and keys moved together by any number of places give the same attention."""
    model, tokens = tiny_model(gains), some_tokens(1, 8)
    with torch.no_grad():
        here = model(tokens).logits
        there = model(tokens, position_ids=torch.arange(8)[None] + 37).logits
        stretched = model(tokens, position_ids=torch.arange(8)[None] * 3).logits
    torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(here, stretched, atol=1e-2)


@pytest.mark.parametrize("is_trained", [False, True])
def test_rotary_positions_equal_llamas(is_trained):
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    from pidformer.models.language.positions import rotated, rotation

    x, positions = torch.randn(2, 3, 5, 8, requires_grad=is_trained), torch.arange(5)[None]
    turn = rotation(positions, 8, 10000.0)
    powers = 10000.0 ** -(torch.arange(0, 8, 2) / 8)
    angles = positions[..., None] * torch.cat([powers, powers])
    expected, _ = apply_rotary_pos_emb(x, x, angles.cos(), angles.sin())
    torch.testing.assert_close(rotated(x, turn), expected)


@pytest.mark.parametrize("build", [tiny_model, paper_like])
@pytest.mark.parametrize("options", [{}, {"num_hidden_layers": 1}, {"learn_gains": True}])
@pytest.mark.parametrize("scored", [1, 4, 9])
def test_scoring_the_last_tokens_alone_equals_scoring_all(build, options, scored, gains):
    if gains is None and "learn_gains" in options:
        pytest.skip("no gains to learn")
    model, tokens = build(gains, **options), some_tokens(3, 9)
    targets, mask = some_tokens(3, 9, seed=2), torch.ones(3, 9, dtype=torch.long)
    mask[1, :5] = 0
    for attention_mask in (None, mask):
        given = {"attention_mask": attention_mask, "reduction": "none"}
        whole = model(tokens, targets=targets, **given).loss[:, -scored:]
        found = model(tokens, targets=targets[:, -scored:], **given).loss
        torch.testing.assert_close(found, whole, rtol=1e-5, atol=1e-5)
        grads = [torch.autograd.grad(loss.sum(), model.parameters()) for loss in (found, whole)]
        for mine, theirs in zip(*grads, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_only_the_last_layers_last_token_goes_through_its_mlp():
    model, rows = paper_like("0.4,0.3,0.1,0.5"), []
    for layer in model.model.layers:
        layer.mlp.register_forward_pre_hook(lambda module, args: rows.append(args[0].shape[1]))
    with torch.no_grad():
        model(some_tokens(2, 9), targets=some_tokens(2, 1))
    assert rows == [9, 9, 1]


def test_relu_inside_the_product_equals_relu_after_it():
    model, tokens = paper_like("0.4,0.3,0.1,0.5"), some_tokens(1)
    with torch.no_grad():
        inside = model(tokens).logits
    torch.testing.assert_close(inside, model(tokens).logits.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [tiny_model, paper_like])
@torch.no_grad()
def test_a_batch_of_no_rows_has_no_losses(make):
    """A text shorter than a long window has no further ones to score."""
    none = torch.zeros(0, 12, dtype=torch.long)
    found = make().eval()(input_ids=none, targets=none[:, -4:], reduction="none").loss
    assert found.shape == (0, 4)
