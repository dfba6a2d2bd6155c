"""The way that inputs take: the same when compiled as when not."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

from pidformer.control import PIDGains
from pidformer.devices import tf32
from pidformer.nn import PIDBlock
from pidformer.nn.depth import scan_blocks
from pidformer.ops import dispatch, kernels, pid_attention
from tests.ops.chains import DEVICE, GAINS, LIMIT, chain, needs_kernels, placed, relative
from tests.ops.test_attention import direct, layers, run


@pytest.mark.slow
@pytest.mark.parametrize("gains", [None, PIDGains(p=0.4, i=0.1, d=0.05)])
@pytest.mark.parametrize("name", ["torch", "triton"])
def test_a_compiled_network_takes_the_kernels_asked_for(monkeypatch, gains, name):
    """Only traced, so that no interpreter is needed."""
    monkeypatch.setitem(dispatch._checked, ("cpu", None), None)  # as if Triton ran here
    blocks = torch.nn.ModuleList(PIDBlock(32, 2, gains) for _ in range(3))
    found: list[str] = []

    def look(module, _):
        graphs = [part.graph for part in module.modules() if hasattr(part, "graph")]
        found.extend(str(node.target) for graph in graphs for node in graph.nodes)
        return _stop

    torch.compiler.reset()
    run = torch.compile(lambda x: scan_blocks(blocks, x)[0], backend=look)
    with kernels(name), pytest.raises(StopIteration):
        run(torch.randn(2, 9, 32))
    assert any("pidformer.short_attention" in target for target in found) == (name == "triton")
    assert any("scaled_dot_product" in target for target in found) == (name == "torch")


@pytest.mark.parametrize("dim", [16, 32, 64, 128])
def test_the_tiles_of_the_backward_hold_all_keys(dim):
    for tokens in range(1, dispatch.LONGEST + 1):
        tiles = dispatch.backward_tiles(tokens, dim)
        single = max(16, dispatch.power_of_two(tokens))
        assert tokens <= tiles.keys + tiles.tail <= single
        if tiles.tail:  # the first tile has no mask, and the tail is made transposed
            assert tiles.keys <= tokens and tiles.turned
            assert 16 <= tiles.tail == dispatch.power_of_two(tiles.tail)


def test_which_sizes_have_a_tail():
    tails = {n: dispatch.backward_tiles(n, 64).tail for n in (17, 64, 65, 81, 97, 129, 145, 161)}
    assert tails == {17: 0, 64: 0, 65: 16, 81: 32, 97: 0, 129: 16, 145: 32, 161: 0}
    assert dispatch.backward_tiles(65, 32).tail == dispatch.backward_tiles(65, 128).tail == 0
    for tokens in (197, 256):
        tiles = dispatch.Tiles(rows=32, keys=256, warps=8, stages=2)
        assert dispatch.backward_tiles(tokens, 64) == tiles


def _stop(*_):
    raise StopIteration


@pytest.mark.parametrize(
    ("generation", "is_plain", "way"),
    [
        (9, False, "short"),
        (9, True, "short"),
        (8, False, "epilogue"),
        (12, False, "epilogue"),
        (8, True, "torch"),
    ],
)
def test_auto_takes_short_attention_on_the_generation_it_was_timed_on(
    monkeypatch, generation, is_plain, way
):
    with FakeTensorMode():
        q = torch.empty(2, 3, 65, 64, device="cuda", dtype=torch.bfloat16)
    index = q.device.index
    monkeypatch.setitem(dispatch._checked, ("cuda", index), None)  # as if Triton ran there
    device = SimpleNamespace(major=generation, shared_memory_per_block_optin=163 * 1024)
    monkeypatch.setattr(dispatch, "_properties", lambda index: device)
    with dispatch.kernels("auto"):
        found = dispatch.route(
            q, q, q, is_plain=is_plain, has_mask=False, dropout_p=0.0, scale=None, state=None
        )
    assert found == way


@pytest.mark.parametrize(
    ("batch", "heads", "tokens", "is_training", "way"),
    [
        (1, 16, 256, True, "epilogue"),
        (1, 16, 128, True, "short"),  # one tile of keys: SDPA has no more programs
        (1, 16, 256, False, "short"),  # forward, each 64 queries are a program
        (11, 12, 256, True, "short"),  # 132 programs
        (11, 11, 256, True, "epilogue"),
        (256, 3, 197, True, "short"),
    ],
)
def test_auto_asks_for_work_for_all_multiprocessors(
    monkeypatch, batch, heads, tokens, is_training, way
):
    with FakeTensorMode():
        q = torch.empty(batch, heads, tokens, 64, device="cuda", dtype=torch.bfloat16)
    q.requires_grad_(is_training)
    monkeypatch.setitem(dispatch._checked, ("cuda", q.device.index), None)
    device = SimpleNamespace(
        major=9, shared_memory_per_block_optin=227 * 1024, multi_processor_count=132
    )
    monkeypatch.setattr(dispatch, "_properties", lambda index: device)
    with dispatch.kernels("auto"):
        found = dispatch.route(
            q, q, q, is_plain=False, has_mask=False, dropout_p=0.0, scale=None, state=None
        )
    assert found == way


@pytest.mark.parametrize(
    ("asked", "precision", "is_training", "way"),
    [
        ("1", "tf32", False, "short"),
        ("1", "tf32", True, "epilogue"),  # gradients stay as exact as SDPA's
        ("1", "fp32", False, "epilogue"),
        ("0", "tf32", False, "epilogue"),
    ],
)
def test_float32_has_its_own_attention_where_tf32_is_allowed_and_asked_for(
    monkeypatch, asked, precision, is_training, way
):
    monkeypatch.setenv("PIDFORMER_TF32", asked)
    with FakeTensorMode():
        q = torch.empty(2, 8, 256, 16, device="cuda")
    q.requires_grad_(is_training)
    monkeypatch.setitem(dispatch._checked, ("cuda", q.device.index), None)
    device = SimpleNamespace(
        major=9, shared_memory_per_block_optin=227 * 1024, multi_processor_count=1
    )
    monkeypatch.setattr(dispatch, "_properties", lambda index: device)
    with dispatch.kernels("auto"), tf32() if precision == "tf32" else nullcontext():
        found = dispatch.route(
            q, q, q, is_plain=False, has_mask=False, dropout_p=0.0, scale=None, state=None
        )
    assert found == way


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dim", [16, 32])
def test_float32_attention_in_tf32_is_off_by_what_tf32_rounds(monkeypatch, dim):
    monkeypatch.setenv("PIDFORMER_TF32", "1")
    qkv = torch.randn(3, 3, 4, 8, 256, dim, device="cuda")
    found = []
    for dtype, name in ((torch.float32, "triton"), (torch.float64, "torch")):
        state = None
        with torch.no_grad(), tf32(), kernels(name):
            for q, k, v in qkv.to(dtype):
                out, state = pid_attention(q, k, v, state, GAINS, is_causal=True)
        found.append(out)
    assert 1e-5 < relative(*found) < 2e-3


def test_threads_may_leave_their_blocks_in_any_order():
    before = dispatch.selected()
    first, second = kernels("torch"), kernels("triton")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert dispatch.selected() == "triton"
    second.__exit__(None, None, None)
    assert dispatch.selected() == before


def test_a_tensor_in_parts_goes_to_pytorch():
    """As a DTensor does, for which our operators have no rule."""
    whole = TwoTensor(torch.zeros(1, 2, 4, 16), torch.zeros(1, 2, 4, 16))
    assert "plain tensors, got TwoTensor" in dispatch._obstacle(whole, whole, None)


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="triton"), kernels("tritn"):
        pass


@needs_kernels
@pytest.mark.skipif(DEVICE == "cuda", reason="a device multiplies bfloat16 as it should")
def test_the_interpreter_is_not_asked_to_multiply_bfloat16():
    """It multiplies such matrices as if they were integers; the control alone it computes well."""
    qkvs = placed(layers(3, heads=2, tokens=5, dim=16), torch.bfloat16)
    found, _ = chain(qkvs, GAINS, "epilogue")
    with kernels("triton"):
        outs = run(qkvs, GAINS)
    for out, same, expected in zip(outs, found, direct(qkvs, GAINS), strict=True):
        assert torch.equal(out, same) and relative(out, expected) < LIMIT[torch.bfloat16]
