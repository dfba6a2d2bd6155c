import pytest
import torch
from timm.models.vision_transformer import Block

from pidformer import PIDAttention, PIDBlock, PIDGains, scan_blocks
from pidformer.errors import InputError

GAINS = PIDGains(p=0.5, i=0.3, d=0.05, beta=0.5)


def blocks(depth=4, gains=GAINS, seed=0, **options):
    torch.manual_seed(seed)
    return torch.nn.ModuleList(PIDBlock(16, 2, gains, **options) for _ in range(depth)).double()


@pytest.fixture
def x():
    return torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("init_values", [None, 0.1])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_zero_gains_equal_timms_block(x, init_values, qk_norm):
    ours = blocks(1, PIDGains(), init_values=init_values, qk_norm=qk_norm)[0]
    theirs = Block(
        16,
        2,
        qkv_bias=True,
        init_values=init_values,
        qk_norm=qk_norm,
        norm_layer=torch.nn.LayerNorm,
    ).double()
    theirs.load_state_dict(ours.state_dict(), strict=True)
    torch.testing.assert_close(ours(x)[0], theirs(x), rtol=1e-12, atol=1e-12)


def test_the_controller_adds_no_parameters():
    controlled, plain = blocks(2, GAINS), blocks(2, None)
    assert controlled.state_dict().keys() == plain.state_dict().keys()


def test_control_acts_from_the_second_block_on(x):
    controlled, plain = blocks(2, GAINS), blocks(2, None)
    assert torch.equal(controlled[0](x)[0], plain[0](x))
    assert not torch.allclose(scan_blocks(controlled, x)[0], scan_blocks(plain, x)[0])


def test_three_lines_put_it_into_a_model(x):
    attention = torch.nn.ModuleList(PIDAttention(16, 2, GAINS) for _ in range(3)).double()
    state = None
    for layer in attention:
        x, state = layer(x, state)
    assert x.shape == (3, 7, 16)


def test_without_the_residual_the_block_is_attention_alone(x):
    block = blocks(1, None, attention_residual=False)[0]
    mixed, _ = block.attn(block.norm1(x))
    torch.testing.assert_close(block(x), mixed + block.mlp(block.norm2(mixed)))


def test_without_residual_softmax_collapses_and_control_does_not():
    x = torch.randn(1, 12, 16, dtype=torch.float64)
    spread = {}
    for name, gains in (("softmax", None), ("pid", GAINS)):
        torch.manual_seed(0)
        layers = torch.nn.ModuleList(PIDAttention(16, 2, gains) for _ in range(12)).double()
        y = scan_blocks(layers, x)[0].detach()
        spread[name] = float((y - y.mean(1, keepdim=True)).norm() / y.norm())
    assert spread["softmax"] < 1e-4 < 0.01 < spread["pid"]


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_grouped_query_heads_and_causality(kv_heads):
    torch.manual_seed(0)
    layer = PIDAttention(16, 4, GAINS, num_kv_heads=kv_heads, is_causal=True).double()
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    longer = torch.cat([x, torch.randn(2, 2, 16, dtype=torch.float64)], 1)
    y, state = scan_blocks([layer, layer], x)
    z, _ = scan_blocks([layer, layer], longer)
    torch.testing.assert_close(y, z[:, :6])
    assert state.initial.shape == (2, kv_heads, 6, 4)


def loss_and_gradients(layers, x, **options):
    out, _ = scan_blocks(layers, x, **options)
    return torch.autograd.grad(out.square().sum(), list(layers.parameters()))


def test_checkpointing_keeps_gradients(x):
    layers = blocks(5)
    for a, b in zip(
        loss_and_gradients(layers, x),
        loss_and_gradients(layers, x, checkpointing=True),
        strict=True,
    ):
        assert torch.equal(a, b)


def test_checkpointing_keeps_gradients_with_dropout(x):
    layers = blocks(4, attn_drop=0.2, proj_drop=0.2, drop_path=0.3).train()
    results = []
    for checkpointing in (False, True):
        torch.manual_seed(3)
        results.append(loss_and_gradients(layers, x, checkpointing=checkpointing))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_the_observer_sees_every_block_once(x):
    layers, seen = blocks(4), []
    y, _ = scan_blocks(layers, x, observe=lambda depth, x, state: seen.append((depth, x, state)))
    assert [depth for depth, _, _ in seen] == [0, 1, 2, 3]
    assert torch.equal(seen[-1][1], y)
    z, _ = scan_blocks(layers[2:], seen[1][1], seen[1][2])  # it may go on from any depth
    assert torch.equal(z, y)


@pytest.mark.slow
def test_a_stack_compiles_without_graph_breaks(x):
    layers, x = blocks(3).float(), x.float()
    compiled = torch.compile(scan_blocks, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(layers, x)[0], scan_blocks(layers, x)[0])


def test_half_precision_state_is_wide():
    layers = blocks(3).bfloat16()
    y, state = scan_blocks(layers, torch.randn(1, 4, 16).bfloat16())
    assert y.dtype == torch.bfloat16 and state.integral.dtype == torch.float32


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dim": 10, "num_heads": 4}, "multiple of num_heads, got 10 and 4"),
        ({"dim": 16, "num_heads": 4, "num_kv_heads": 3}, "num_kv_heads, got 4 and 3"),
        ({"dim": 16, "num_heads": 0}, "multiple of num_heads"),
    ],
)
def test_sizes_that_do_not_fit_are_named(arguments, words):
    with pytest.raises(InputError, match=words):
        PIDAttention(**arguments)
