"""The Triton kernels against float64: on CUDA where there is a device, else in the interpreter."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from pidformer import LearnedGains, PIDAttention, PIDGains, PIDState, pid_attention, scan_blocks
from pidformer.control.gains import GainTensors
from pidformer.errors import InputError
from pidformer.nn import PIDBlock
from pidformer.ops import dispatch, epilogue, kernels, short
from tests.ops.test_attention import direct, layers

triton = pytest.importorskip("triton", reason="the kernels need triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def has_interpreter():
    """Older interpreters take arrays of one number for numbers, which newer numpy refuses."""
    try:
        int(np.array([1]))
    except TypeError:
        return tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 7)
    return True


pytestmark = pytest.mark.skipif(
    DEVICE == "cpu" and not has_interpreter(),
    reason="this Triton's interpreter does not work with this numpy",
)
GAINS = PIDGains(p=0.8, i=0.5, d=0.05, beta=0.1)
LIMIT = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
if DEVICE == "cuda":
    LIMIT[torch.float32] = 1e-5


def relative(found, expected):
    found, expected = found.detach().double().cpu(), expected.detach().double().cpu()
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))


def chain(qkvs, gains, way, **options):
    """Outputs of all layers, by name of the way: which must be the one that runs."""
    state, outs, taken = None, [], set()
    real = dispatch.route

    def watched(*arguments, **keywords):
        found = real(*arguments, **keywords)
        taken.add(found)
        return found

    with pytest.MonkeyPatch.context() as patch, kernels("triton"):
        patch.setattr(dispatch, "route", watched)
        if way == "epilogue":
            patch.setattr(dispatch, "LONGEST", 0)
        for q, k, v in qkvs:
            out, state = pid_attention(q, k, v, state, gains, **options)
            outs.append(out)
    assert way in taken and taken <= {way, "torch"}
    return outs, state


def placed(qkvs, dtype, needs_grad=False):
    return [[x.to(DEVICE, dtype).requires_grad_(needs_grad) for x in layer] for layer in qkvs]


CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "grouped": {"kv_heads": 1},
    "grouped causal": {"kv_heads": 2, "is_causal": True},
    "one token": {"tokens": 1},
    "odd": {"tokens": 37},
    "dim 80": {"dim": 80},
    "tail": {"tokens": 65, "dim": 64, "heads": 1},
    "grouped causal tail": {"tokens": 81, "dim": 40, "kv_heads": 1, "is_causal": True},
    "dim 16": {"dim": 16, "tokens": 16},
    "controlled first": {"first_layer": "controlled"},
    # The interpreter multiplies bfloat16 matrices as if they were integers.
    "half": {"dtype": torch.bfloat16 if DEVICE == "cuda" else torch.float16, "tokens": 20},
}


@pytest.mark.parametrize("way", ["short", "epilogue"])
@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_match_definition_1(way, case):
    options = dict(CASES[case])
    dtype = options.pop("dtype", torch.float32)
    if way == "short" and DEVICE == "cuda" and dtype == torch.float32:
        dtype = torch.float16  # float32 is left to SDPA
    sizes = {"heads": 2, "tokens": 7, "dim": 16, "batch": 1}
    sizes |= {name: options.pop(name) for name in list(options) if name in (*sizes, "kv_heads")}
    qkvs = [[x.to(dtype).double() for x in layer] for layer in layers(3, **sizes)]
    given = placed(qkvs, dtype, needs_grad=True)
    outs, state = chain(given, GAINS, way, **options)
    exact = [[x.requires_grad_() for x in layer] for layer in qkvs]
    expected = direct(exact, GAINS, **options)
    is_wide = options.get("first_layer") == "controlled"  # the sum then starts in `pid_step`
    assert state.integral.dtype == (torch.float32 if is_wide else dtype)
    for out, wanted in zip(outs, expected, strict=True):
        assert out.dtype == dtype and out.shape == wanted.shape
        assert relative(out, wanted) < LIMIT[dtype]
    pull = [torch.randn_like(out) for out in expected]
    found = torch.autograd.grad(
        sum((out.double() * g.to(out.device)).sum() for out, g in zip(outs, pull, strict=True)),
        [x for layer in given for x in layer],
    )
    wanted = torch.autograd.grad(
        sum((out * g).sum() for out, g in zip(expected, pull, strict=True)),
        [x for layer in exact for x in layer],
    )
    for a, b in zip(found, wanted, strict=True):
        if b.norm() > 1e-6:  # with one token, scores do not matter
            assert relative(a, b) < 2 * LIMIT[dtype]
        else:
            assert a.norm() < 1e-2


ZEROS = {
    "p": ["0.6,0,0,1"],
    "pd": ["0.6,0,0.2,0.5"],
    "pi": ["0.4,0.3,0,0.5"],
    "i, then p": ["0,0.3,0,1", "0.6,0,0,1"],
    "p, then pid": ["0.6,0,0,1", "0.6,0,0,1", "0.4,0.3,0.2,0.5"],
    "d, then p": ["0,0,0.2,1", "0.6,0,0,1"],
}


@pytest.mark.parametrize("way", ["short", "epilogue"])
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("case", ZEROS)
def test_what_a_gain_of_zero_leaves_out_changes_nothing(way, with_state, case):
    """Neither what is read less, nor what later layers and a loss on the state still need."""
    gains = [PIDGains.parse(text) for text in ZEROS[case]]
    dtype = torch.float16 if DEVICE == "cuda" else torch.float32
    qkvs = [[x.to(dtype).double() for x in layer] for layer in layers(4, heads=2, dim=16, tokens=7)]
    given, exact = placed(qkvs, dtype, True), [[x.requires_grad_() for x in y] for y in qkvs]

    def run(inputs):
        state, loss = None, 0
        for layer, (q, k, v) in enumerate(inputs):
            out, state = pid_attention(q, k, v, state, gains[min(layer, len(gains) - 1)])
            loss = loss + (out.double() * weights[layer].to(out.device)).sum()
        if with_state:
            loss = loss + (state.integral.double() * weights[-1].to(out.device)).square().sum()
            loss = loss + state.previous.double().square().sum()
        return torch.autograd.grad(loss, [x for layer in inputs for x in layer])

    torch.manual_seed(0)
    weights = [torch.randn(qkvs[0][0].shape, dtype=torch.float64) for _ in range(5)]
    with pytest.MonkeyPatch.context() as patch, kernels("triton"):
        if way == "epilogue":
            patch.setattr(dispatch, "LONGEST", 0)
        found = run(given)
    with kernels("torch"):
        wanted = run(exact)
    for a, b in zip(found, wanted, strict=True):
        assert relative(a, b) < 2 * LIMIT[dtype]


@pytest.mark.parametrize("way", ["short", "epilogue"])
def test_heads_merge_without_a_copy(way):
    qkvs = placed(layers(2, heads=2, dim=16, dtype=torch.float64), torch.float16)
    out = chain(qkvs, GAINS, way)[0][-1]
    assert out.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("way", ["short", "epilogue"])
@pytest.mark.parametrize("kv_heads", [2, 1])
def test_learned_gains_and_their_gradients(way, kv_heads):
    dtype = torch.float16 if DEVICE == "cuda" else torch.float32
    qkvs = layers(3, heads=2, kv_heads=kv_heads, dim=16, dtype=torch.float64)
    exact = [[x.to(dtype).double() for x in layer] for layer in qkvs]

    def run(inputs, wide, through):
        torch.manual_seed(0)
        device = inputs[0][0].device
        raw = [(torch.rand(3, kv_heads, 1, 1).to(device, wide) / 2).requires_grad_() for _ in "ab"]
        gains = [GainTensors(*raw[0], 0.3), GainTensors(*raw[1], 0.3)]
        loss = 0
        state = None
        for inputs_of, own in zip(inputs, (gains[0], *gains), strict=True):
            out, state = through(*inputs_of, state, own)
            loss = loss + out.double().square().sum()
        loss = loss + state.integral.double().sum()
        return torch.autograd.grad(loss, [*raw, *[x for layer in inputs for x in layer]])

    def fused(*arguments):
        with kernels("triton"), pytest.MonkeyPatch.context() as patch:
            if way == "epilogue":
                patch.setattr(dispatch, "LONGEST", 0)
            return pid_attention(*arguments)

    for layer in exact:
        for x in layer:
            x.requires_grad_()
    found = run(placed(qkvs, dtype, True), torch.float32, fused)
    wanted = run(exact, torch.float64, pid_attention)
    for a, b in zip(found, wanted, strict=True):
        assert relative(a, b) < 4 * LIMIT[dtype]


def test_zero_gains_equal_softmax_attention():
    qkvs = placed(layers(3, heads=2, dim=16), torch.float16)
    for (q, k, v), out in zip(qkvs, chain(qkvs, PIDGains(), "short")[0], strict=True):
        plain, _ = chain([(q, k, v)], None, "short")
        assert torch.equal(out, plain[0])


def network(kv_heads=None, **options):
    torch.manual_seed(0)
    blocks = [PIDBlock(32, 2, GAINS, **options) for _ in range(3)]
    return torch.nn.ModuleList(blocks).to(DEVICE)


@pytest.mark.parametrize("learned", [False, True])
def test_a_network_has_the_same_gradients_on_both_kernels(learned):
    """The packed projection, three layers deep, with everything that the state carries."""
    blocks = network()
    if learned:
        for block in blocks:
            block.attn.gains = LearnedGains(PIDGains(p=0.4, i=0.1, d=0.05), 2).to(DEVICE)
    x = torch.randn(2, 9, 32, device=DEVICE)
    found = {}
    for name in ("torch", "triton"):
        with kernels(name), torch.autocast(DEVICE, torch.float16, enabled=DEVICE == "cuda"):
            out, _ = scan_blocks(blocks, x)
            blocks.zero_grad()
            out.float().square().sum().backward()
        found[name] = [p.grad.clone() for p in blocks.parameters() if p.grad is not None]
    limit = 1e-2 if DEVICE == "cuda" else 1e-5
    assert len(found["torch"]) == len(found["triton"]) > 20
    for a, b in zip(found["triton"], found["torch"], strict=True):
        assert relative(a, b) < limit


def test_the_state_alone_has_gradients():
    qkvs = layers(2, heads=2, dim=16, dtype=torch.float32)
    grads = {}
    for name in ("torch", "triton"):
        inputs = placed(qkvs, torch.float32, True)
        with kernels(name):
            _, state = pid_attention(*inputs[0], None, GAINS)
            _, state = pid_attention(*inputs[1], state, GAINS)
            loss = state.integral.square().sum() + (state.previous * state.initial).sum()
            grads[name] = torch.autograd.grad(loss, [inputs[0][2], inputs[1][2]])
    for a, b in zip(grads["triton"], grads["torch"], strict=True):
        assert relative(a, b) < 1e-6


def test_masks_and_dropout_take_the_epilogue():
    (q, k, v), second = placed(layers(2, heads=2, dim=16, tokens=5), torch.float32)
    keep = torch.ones(5, 5, device=DEVICE).tril().bool()
    with kernels("triton"):
        _, state = pid_attention(q, k, v, None, GAINS, attn_mask=keep)
        out, _ = pid_attention(*second, state, GAINS, attn_mask=keep)
    _, state = pid_attention(q, k, v, None, GAINS, is_causal=True)
    expected, _ = pid_attention(*second, state, GAINS, is_causal=True)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("keys", [5, 9])
def test_a_state_of_another_shape_is_never_read_as_if_it_fitted(keys):
    """Not by a kernel, which would read beyond it; also while decoding, with more keys."""
    q, k, v = (torch.randn(2, 2, n, 16, device=DEVICE) for n in (5, keys, keys))
    other = torch.randn(1, 2, 5, 16, device=DEVICE)
    with kernels("triton"), pytest.raises(InputError, match=r"\(1, 2, 5, 16\).*\(2, 2, 5, 16\)"):
        pid_attention(q, k, v, PIDState(other, other, other), GAINS)
    broadcast = PIDState(torch.randn_like(q), other, other)
    found = []
    for name in ("torch", "triton"):
        with kernels(name):
            found.append(pid_attention(q, k, v, broadcast, GAINS)[0])
    assert torch.equal(*found)


@pytest.mark.parametrize("masked", [False, True])
def test_a_layer_that_nothing_used_has_no_gradient(masked):
    """A sum that is carried on and not read leaves the layer below without any."""
    qkvs = placed(layers(3, heads=2, dim=16, tokens=5), torch.float32, True)
    mask = torch.ones(5, 5, dtype=torch.bool, device=DEVICE) if masked else None
    state, gains = None, PIDGains(p=0.5)
    with kernels("triton"):
        for q, k, v in qkvs:
            if state is not None:
                state = PIDState(state.initial.detach(), state.integral, state.previous.detach())
            out, state = pid_attention(q, k, v, state, gains, attn_mask=mask)
    found = torch.autograd.grad(out.sum(), [x for y in qkvs for x in y], allow_unused=True)
    assert all(x is None for x in found[:6]) and all(x is not None for x in found[6:])


def test_a_narrow_integral_is_kept_narrow():
    (_, _, v), second = placed(layers(2, heads=2, dim=16), torch.float16)
    state = PIDState(v, torch.randn_like(v), v)
    with kernels("triton"):
        _, after = pid_attention(*second, state, GAINS)
    assert after.integral.dtype == torch.float16
    expected = state.integral.double() + GAINS.beta * v.double() - second[2].double()
    assert relative(after.integral, expected) < 1e-3


def one_number(v):
    return torch.tensor(0.7, device=v.device).expand(v.shape)


MADE = {
    "one number": lambda v, first: PIDState(v, one_number(v), v.flip(-1)),
    "one number for v_0 twice": lambda v, first: PIDState(v, one_number(v), v),
    "one number, put into a first state": lambda v, first: first._replace(integral=one_number(v)),
    "put together again": lambda v, first: PIDState(*first),
    "mapped": lambda v, first: tree_map(lambda x: x + 0.3, first),
    "one number a head": lambda v, first: PIDState(v, v[:, :, :1, :1].expand(v.shape), v),
}


@pytest.mark.parametrize("way", ["short", "epilogue"])
@pytest.mark.parametrize("made", MADE)
def test_a_state_made_by_hand_is_read_as_it_is(made, way, monkeypatch):
    """An integral that is one number everywhere takes no memory, as the zeros of a first layer."""
    dtype = torch.float16 if DEVICE == "cuda" else torch.float32
    (q, k, v), second = placed(layers(2, heads=2, dim=16, tokens=5), dtype)
    state = MADE[made](v, pid_attention(q, k, v, None, GAINS)[1])
    if way == "epilogue":
        monkeypatch.setattr(dispatch, "LONGEST", 0)
    with kernels("triton"):
        out, after = pid_attention(*second, state, GAINS)
    with kernels("torch"):
        expected, then = pid_attention(*second, state, GAINS)
    assert relative(out, expected) < LIMIT[dtype]
    assert relative(after.integral, then.integral) < LIMIT[dtype]


@pytest.mark.parametrize("way", ["short", "epilogue"])
@pytest.mark.parametrize("cut", [False, True])
def test_the_zeros_of_a_first_layer_are_not_read(cut, way, monkeypatch):
    (q, k, v), second = placed(layers(2, heads=2, dim=16, tokens=5), torch.float16)
    module, name = (short, "short_forward") if way == "short" else (epilogue, "control_forward")
    real, given = getattr(module, name), []

    def watched(*arguments):
        given.append(arguments[5 if way == "short" else 4])
        return real(*arguments)

    monkeypatch.setattr(module, name, watched)
    if way == "epilogue":
        monkeypatch.setattr(dispatch, "LONGEST", 0)
    with kernels("triton"):
        _, state = pid_attention(q, k, v, None, GAINS)
        if cut:
            state, second = tree_map(lambda x: x[..., 2:, :], (state, second))
        _, state = pid_attention(*second, state, GAINS)
        pid_attention(*second, state, GAINS)
    assert [x is None for x in given[-2:]] == [True, False]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x.double(), "float64"),
        (lambda x: x[..., :8], "head dims"),
        (lambda x: x[0], "batch, heads"),
    ],
)
def test_what_the_kernels_cannot_take_is_said_once_and_computed(change, words, monkeypatch):
    monkeypatch.setattr(dispatch, "_warned", set())
    qkvs = [
        [change(x) for x in layer] for layer in placed(layers(2, heads=2, dim=16), torch.float32)
    ]
    with kernels("triton"), pytest.warns(UserWarning, match=words):
        _, state = pid_attention(*qkvs[0], None, GAINS)
    with kernels("triton"), warnings.catch_warnings():
        warnings.simplefilter("error")
        out, _ = pid_attention(*qkvs[1], state, GAINS)
    with kernels("torch"):
        _, state = pid_attention(*qkvs[0], None, GAINS)
        expected, _ = pid_attention(*qkvs[1], state, GAINS)
    assert torch.equal(out, expected)


def test_a_broken_triton_warns_and_gives_the_same_numbers(monkeypatch):
    def broken(*_):
        raise OSError("no compiler")

    monkeypatch.setattr(dispatch, "_warned", set())
    monkeypatch.setattr(dispatch, "_checked", {})
    monkeypatch.setattr(epilogue, "control_forward", broken)
    q, k, v = placed(layers(1, heads=2, dim=16), torch.float32)[0]
    with kernels("triton"), pytest.warns(UserWarning, match="no compiler"):
        out, _ = pid_attention(q, k, v, None, GAINS)
    with kernels("torch"):
        assert torch.equal(out, pid_attention(q, k, v, None, GAINS)[0])


def test_transforms_and_watchers_see_pytorch():
    from torch.overrides import TorchFunctionMode

    class Watch(TorchFunctionMode):
        seen = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            Watch.seen += func is torch.nn.functional.scaled_dot_product_attention
            return func(*args, **(kwargs or {}))

    q, k, v = placed(layers(1, heads=2, dim=16), torch.float32)[0]
    with kernels("triton"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Watch():
            pid_attention(q, k, v, None, GAINS)
        torch.func.grad(lambda v: pid_attention(q, k, v, None, GAINS)[0].sum())(v)
    assert Watch.seen == 1


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="triton"), kernels("tritn"):
        pass


@pytest.mark.slow
def test_compiles_without_graph_breaks():
    blocks = network()
    x = torch.randn(2, 9, 32, device=DEVICE, requires_grad=True)

    def run(x):
        return scan_blocks(blocks, x)[0]

    found = []
    with kernels("triton"):
        for function in (run, torch.compile(run, fullgraph=True, backend="aot_eager")):
            out = function(x)
            found.append((out, *torch.autograd.grad(out.square().sum(), x)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_operators_pass_opcheck():
    torch.manual_seed(0)
    q, k, v, initial, previous = (
        torch.randn(2, 2, 20, 16, device=DEVICE, dtype=torch.float16) for _ in range(5)
    )
    integral = torch.randn(2, 2, 20, 16, device=DEVICE)
    state, numbers = (initial, previous, integral, None), (0.4, 0.1, 0.05, 0.5)
    check = torch.library.opcheck
    check(epilogue.control_forward.op, (q, v, *state, *numbers))
    check(epilogue.control_backward.op, (q, integral, v, k, None, False, 2, *numbers))
    check(epilogue.gain_gradient.op, (q, v, initial, previous, integral, 0.5))
    check(short.short_forward.op, (q, k, v, *state, *numbers, 0.25, False, True))
    _, _, lse = short.short_forward(q, k, v, *state, *numbers, 0.25, False, True)
    check(short.short_backward.op, (q, k, v, lse, q, v, 0.25, False))


class Watch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.add(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("masked", [False, True])
def test_the_registered_operators_are_for_those_who_look(masked):
    """Others get the same numbers without the dispatcher's detour."""
    (q, k, v), second = placed(layers(2, heads=2, dim=16, tokens=5), torch.float16)
    mask = torch.ones(5, 5, dtype=torch.bool, device=DEVICE) if masked else None
    op = epilogue.control_forward if masked else short.short_forward
    with kernels("triton"), pytest.MonkeyPatch.context() as patch:
        _, state = pid_attention(q, k, v, None, GAINS)
        with Watch() as watch:
            seen, _ = pid_attention(*second, state, GAINS, attn_mask=mask)
        patch.setattr(op, "op", None)
        out, _ = pid_attention(*second, state, GAINS, attn_mask=mask)
    name = "control" if masked else "short_attention"
    assert f"pidformer.{name}.default" in watch.seen
    assert torch.equal(out, seen)


@pytest.mark.parametrize("masked", [False, True])
def test_second_derivatives_are_refused_not_made_up(masked):
    (q, k, v), second = placed(layers(2, heads=2, dim=16, tokens=5), torch.float16)
    mask = torch.ones(5, 5, dtype=torch.bool, device=DEVICE) if masked else None
    q2, k2, v2 = (x.requires_grad_() for x in second)
    with kernels("triton"):
        _, state = pid_attention(q, k, v.requires_grad_(), None, GAINS)
        out, _ = pid_attention(q2, k2, v2, state, GAINS, attn_mask=mask)
        (first,) = torch.autograd.grad(out.float().square().sum(), v2, create_graph=True)
        with pytest.raises(RuntimeError, match=r"no autograd formula|not implemented"):
            torch.autograd.grad(first.float().square().sum(), v2)


def test_plain_attention_module_is_packed():
    """The gradient of the projection is made by the kernel in one piece."""
    torch.manual_seed(0)
    attention = PIDAttention(32, 2, GAINS).to(DEVICE)
    x = torch.randn(1, 5, 32, device=DEVICE)
    with kernels("triton"), torch.autocast(DEVICE, torch.float16, enabled=DEVICE == "cuda"):
        out, state = attention(x)
    whole = state.previous.untyped_storage().nbytes() // state.previous.element_size()
    assert whole == 3 * x.numel() and not state.previous.is_contiguous()
    assert out.shape == x.shape


@pytest.mark.slow
def test_the_compiler_takes_every_kernel():
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("hopper.py")
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 24


@pytest.mark.parametrize("masked", [False, True])
def test_gradients_may_be_asked_for_in_a_batch(masked):
    (q, k, v), second = placed(layers(2, heads=2, dim=16, tokens=5), torch.float32, True)
    mask = torch.ones(5, 5, dtype=torch.bool, device=DEVICE) if masked else None
    with kernels("triton"):
        _, state = pid_attention(q, k, v, None, GAINS, attn_mask=mask)
        out, _ = pid_attention(*second, state, GAINS, attn_mask=mask)
    pulls = torch.randn(3, *out.shape, device=DEVICE)

    def pulled(pull, **options):
        return torch.autograd.grad(out, (v, *second), pull, retain_graph=True, **options)

    wanted = [torch.stack(each) for each in zip(*map(pulled, pulls), strict=True)]
    for found in (pulled(pulls, is_grads_batched=True), torch.vmap(pulled)(pulls)):
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("around", ["torch", "triton"])
def test_a_checkpointed_block_is_recomputed_on_its_kernels(around):
    """The backward may run outside the block of code that chose them."""
    blocks, x = network(), torch.randn(2, 9, 32, device=DEVICE, requires_grad=True)
    found = []
    for checkpointing in (False, True):
        with kernels(around), torch.autocast(DEVICE, torch.float16, enabled=DEVICE == "cuda"):
            out, _ = scan_blocks(blocks, x, checkpointing=checkpointing)
        with kernels("triton" if around == "torch" else "torch"):
            found.append(torch.autograd.grad(out.float().square().sum(), x)[0])
    assert torch.equal(*found)
