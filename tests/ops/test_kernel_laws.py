"""Laws beyond PID gains on our kernels against their definitions, in float64."""

import pytest
import torch

from pidformer import pid_attention
from pidformer.control import Feedback, PIDGains, as_feedback
from pidformer.control.feedback import FeedbackTensors, acting_law
from pidformer.control.pid import ReferenceState, first_state, lean_state
from pidformer.nn import PIDBlock, scan_blocks
from pidformer.nn.gains import terms_of
from pidformer.ops import dispatch, kernels
from pidformer.ops.plan import planned
from tests.ops.chains import DEVICE, LIMIT, needs_kernels, ours, placed, relative
from tests.ops.relatives import DEFINITIONS, by_definition
from tests.ops.test_attention import layers

TYPE = torch.float16 if DEVICE == "cuda" else torch.float32
BOTH = pytest.mark.parametrize("way", ["short", "epilogue"])
IMPLICIT, HALF = "0.8,0.5,0.05,0.1,implicit", "0.4,0.1,0.05,1,step=0.5"


def fed(qkvs, law, is_lean=False, **options):
    """Outputs and state of layers in a row; `is_lean`: with no more state than a network keeps."""
    state, outs = None, []
    for q, k, v in qkvs:
        out, state = pid_attention(q, k, v, state, law, **options)
        if is_lean and len(outs) == 0:
            acting = acting_law(as_feedback(law))
            state = lean_state(state, [t for t in "pid" if getattr(acting, t)])
        outs.append(out)
    return outs, state


def pulled(outs, state, qkvs, weights):
    """Gradients of all q, k, v from the outputs and from what the state hands on."""
    loss = sum((out.double().cpu() * w).sum() for out, w in zip(outs, weights, strict=True))
    parts = [] if isinstance(state, ReferenceState) else [state.integral, state.previous]
    for part in parts:
        loss = loss + part.double().cpu().square().sum()
    leaves = [x for layer in qkvs for x in layer]
    return torch.autograd.grad(loss, leaves, allow_unused=True)


@needs_kernels
@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("is_lean", [True, False])
@pytest.mark.parametrize(("kv_heads", "is_causal"), [(2, False), (1, True)])
@pytest.mark.parametrize("law", DEFINITIONS, ids=str)
def test_outputs_and_gradients_are_those_of_the_definition(way, is_lean, kv_heads, is_causal, law):
    drawn = layers(4, heads=2, kv_heads=kv_heads, dim=16, tokens=7, batch=1)
    qkvs = [[x.to(TYPE).double() for x in layer] for layer in drawn]
    given, exact = placed(qkvs, TYPE, True), [[x.requires_grad_() for x in y] for y in qkvs]
    with ours(way):
        outs, state = fed(given, law, is_lean, is_causal=is_causal)
    with kernels("torch"):
        _, wanted_state = fed(exact, law, is_lean, is_causal=is_causal)
    wanted = by_definition(law, exact, is_causal)
    weights = [torch.randn(out.shape, dtype=torch.float64) for out in wanted]
    for out, expected in zip(outs, wanted, strict=True):
        assert relative(out, expected) < 2 * LIMIT[TYPE]
    found = pulled(outs, state, given, weights)
    expected = pulled(wanted, wanted_state, exact, weights)
    for a, b in zip(found, expected, strict=True):
        if b is not None and b.norm() > 1e-6:
            assert relative(a, b) < 4 * LIMIT[TYPE]
        else:
            assert a is None or a.norm() < 1e-2
    for a, b in zip(state, wanted_state, strict=True):
        assert relative(a, b) < 2 * LIMIT[TYPE]


@needs_kernels
@BOTH
@pytest.mark.parametrize(("tokens", "dim", "kv_heads"), [(1, 16, 2), (37, 40, 1), (65, 64, 2)])
def test_exclusion_matches_at_all_sizes_with_a_learned_share(way, tokens, dim, kv_heads):
    drawn = layers(1, heads=2, kv_heads=kv_heads, dim=dim, tokens=tokens, batch=2)
    share = torch.linspace(0.5, 1.5, kv_heads, dtype=torch.float64)[:, None, None]
    found = []
    for dtype, place, name in ((TYPE, DEVICE, "triton"), (torch.float64, "cpu", "torch")):
        (q, k, v), own = placed(drawn, TYPE)[0], share.to(place, dtype).requires_grad_()
        q, k, v = (x.detach().to(place, dtype).requires_grad_() for x in (q, k, v))
        plain = Feedback().to_dict() | {"exclude": own}
        with ours(way) if name == "triton" else kernels(name):
            out, _ = pid_attention(q, k, v, None, FeedbackTensors(**plain))
        weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(0))
        loss = (out.double().cpu() * weight).sum()
        found.append((out, *torch.autograd.grad(loss, (q, k, v, own))))
    for a, b in zip(*found, strict=True):
        if b.norm() > 1e-6:  # with one token, scores do not matter
            assert relative(a, b) < 8 * LIMIT[TYPE]
        else:
            assert a.norm() < 1e-2


@needs_kernels
def test_a_value_of_zeros_excludes_nothing_and_has_a_gradient():
    (q, k, v), *_ = placed(layers(1, dim=16), TYPE)
    v = torch.zeros_like(v).requires_grad_()
    with kernels("triton"):
        out, _ = pid_attention(q, k, v, None, "xsa")
        (grad,) = torch.autograd.grad(out.sum(), v)
    assert torch.equal(out, torch.zeros_like(out)) and grad.isfinite().all()


@needs_kernels
@pytest.mark.parametrize("law", ["xsa", "laplacian", "resformer", IMPLICIT, HALF])
def test_a_network_compiles_without_graph_breaks(law):
    torch.manual_seed(0)
    blocks = torch.nn.ModuleList(PIDBlock(32, 2, law) for _ in range(3)).to(DEVICE)
    x = torch.randn(2, 9, 32, device=DEVICE, requires_grad=True)

    def run(x):
        return scan_blocks(blocks, x, network=blocks)[0]

    found = []
    for name, function in (
        ("torch", run),
        ("triton", run),
        ("triton", torch.compile(run, fullgraph=True, backend="aot_eager")),
    ):
        with kernels(name):
            out = function(x)
            found.append((out, *torch.autograd.grad(out.square().sum(), x)))
    for others in found[1:]:
        for a, b in zip(found[0], others, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@needs_kernels
@pytest.mark.parametrize("law", ["laplacian", "resformer", "gated", "xsa", IMPLICIT, HALF])
def test_where_kernels_are_automatic_new_ones_are_not_taken(law, monkeypatch):
    """What has run on a GPU is the default: all of a law but exclusion."""
    monkeypatch.setattr(dispatch, "route", lambda *_, **given: "short")
    monkeypatch.setattr("pidformer.ops.exclude.exclude_forward", None)
    qkvs = placed(layers(3, heads=2, dim=16, tokens=7), TYPE)
    gate = {"gate": torch.rand_like(qkvs[0][0])} if law == "gated" else {}
    with kernels("auto"):
        outs, _ = fed(qkvs, law, **gate)
    with kernels("torch"):
        wanted, _ = fed(qkvs, law, **gate)
    for a, b in zip(outs, wanted, strict=True):
        assert relative(a, b) < 4 * LIMIT[TYPE]


def plan_of(law, state):
    return planned(acting_law(as_feedback(law)), state, state.initial, "free")


def test_the_search_rows_need_one_multiplication_beside_the_kernels():
    """An implicit derivative: v_0 stands for v_{l-1}, which nothing reads, and takes the rest."""
    state = first_state(torch.randn(1, 2, 5, 16))
    plan = plan_of(IMPLICIT, state)
    assert plan.gains.p == pytest.approx(0.8 - 0.05 / 0.9) and plan.gains.i == 0.5
    assert plan.gains.d == pytest.approx(0.1 * 0.05 / 0.9) and plan.gains.beta == 0.1
    assert not plan.rest.skip and plan.rest.scale == pytest.approx(1 / 1.05)
    plan = plan_of("0.8,0.5,0,0.1,step=0.5", state)
    assert not plan.rest.skip and plan.rest.scale == 0.5
    plan = plan_of("0.8,0.5,0.05,0.1,step=0.5", state)  # sum and derivative: a share of v is left
    assert plan.rest.skip == 1 and plan.rest.scale == 0.5 and plan.gains.d == 0.1


def test_gains_that_would_nearly_cancel_are_not_used():
    state = first_state(torch.randn(1, 2, 5, 16))
    plan = plan_of("0.4,0.1,0,1,step=0.5", state)
    assert plan.gains.p == 0.4 and plan.gains.d == 0 and plan.rest.skip == 1


def test_pid_gains_and_laplacian_leave_nothing_to_pytorch():
    value = torch.randn(1, 2, 5, 16)
    state = ReferenceState(value, first_state(value).integral, value)
    assert plan_of("default", state) == (PIDGains(p=0.6), state, None, True)
    plan = plan_of("laplacian", state)
    assert plan.gains == (1.0, 0.0, 0.0, 0.0) and plan.rest is None
    assert plan_of("resformer", state)[::2] == (None, None)


@pytest.mark.parametrize(
    ("law", "terms"),
    [("xsa", ""), ("laplacian", ""), ("resformer", ""), (IMPLICIT, "pi"), (HALF, "pid")],
)
def test_a_network_keeps_no_more_state_than_its_law_reads(law, terms):
    assert list(terms_of(PIDBlock(16, 2, law))) == list(terms)
