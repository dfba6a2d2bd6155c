import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from pidformer.control import PIDController, PIDGains
from pidformer.control.pid import FirstState, PIDState, pid_step
from pidformer.errors import InputError

gain = st.floats(0, 2)
any_gains = st.builds(PIDGains, p=gain, i=gain, d=gain, beta=st.floats(0.05, 1))


def direct_controls(values, gains, first_layer):
    """Definition 1 with every past error kept in a list, both readings."""
    initial = values[0]
    controls = []
    errors = [gains.beta * initial - v for v in values]
    for depth in range(len(values)):
        if first_layer == "free":
            past = errors[1 : depth + 1]
            previous = errors[depth - 1] if depth else None
        else:
            past = errors[: depth + 1]
            previous = errors[depth - 1] if depth else errors[0]
        if not past:
            controls.append(torch.zeros_like(initial))
            continue
        error = errors[depth]
        controls.append(gains.p * error + gains.i * sum(past) + gains.d * (error - previous))
    return controls


@pytest.mark.parametrize("first_layer", ["free", "controlled"])
@given(gains=any_gains, seed=st.integers(0, 2**20), depth=st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_state_matches_direct_sum_of_definition_1(first_layer, gains, seed, depth):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(depth, 2, 3, 5, 4, generator=generator, dtype=torch.float64)
    controller, state = PIDController(gains, first_layer), None
    for value, expected in zip(values, direct_controls(values, gains, first_layer), strict=True):
        control, state = controller(value, state)
        torch.testing.assert_close(control, expected, rtol=1e-12, atol=1e-12)


def test_readings_agree_for_beta_one_and_differ_below():
    values = torch.randn(6, 3, 4, dtype=torch.float64)
    for beta, same in ((1.0, True), (0.1, False)):
        gains = PIDGains(p=0.8, i=0.5, d=0.05, beta=beta)
        controls = []
        for first_layer in ("free", "controlled"):
            controller, state = PIDController(gains, first_layer), None
            for value in values:
                control, state = controller(value, state)
            controls.append(control)
        assert torch.allclose(*controls, atol=1e-12) is same


def test_first_layer_is_free_of_control_by_default():
    value = torch.randn(2, 3)
    control, state = PIDController(PIDGains(p=1, i=1, d=1, beta=0.5))(value, None)
    assert torch.equal(control, torch.zeros_like(value))
    assert state.initial is value and state.previous is value


def test_only_the_state_behind_a_free_first_layer_promises_a_sum_of_zero():
    value = torch.randn(2, 3)
    first = pid_step(value, None, PIDGains(p=0.4, beta=0.5))[1]
    assert type(first) is FirstState and not first.integral.any()
    assert type(first._replace(integral=value)) is PIDState
    assert first._replace(previous=value)[1:] == (first.integral, value)
    for state, reading in ((None, "controlled"), (first, "free")):
        assert type(pid_step(value, state, PIDGains(beta=0.5), reading)[1]) is PIDState


@pytest.mark.slow
def test_a_compiler_keeps_the_promise_and_takes_it_back():
    gains, value = PIDGains(), torch.randn(2, 3)

    @torch.compile(fullgraph=True, backend="eager")
    def run(value):
        first = pid_step(value, None, gains)[1]
        return first, first._replace(integral=value)

    first, other = run(value)
    assert type(first) is FirstState and type(other) is PIDState
    assert torch.equal(other.integral, value)


def test_state_stays_three_tensors_at_any_depth():
    controller, state = PIDController(PIDGains(p=1, i=1, d=1)), None
    for _ in range(50):
        _, state = controller(torch.randn(2, 3), state)
    assert len(state) == 3 and all(part.shape == (2, 3) for part in state)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_integral_is_float32_or_wider(dtype):
    controller, state = PIDController(PIDGains(p=1, i=1)), None
    for _ in range(2):
        control, state = controller(torch.randn(2, 3).to(dtype), state)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert control.dtype == wide and state.integral.dtype == wide


@pytest.mark.parametrize("term", ["p", "i", "d"])
def test_a_gain_of_zero_reads_nothing(term):
    value, initial, integral, previous = (
        torch.randn(2, 3, requires_grad=True, dtype=torch.float64) for _ in range(4)
    )
    state = PIDState(initial, integral, previous)
    control, _ = pid_step(value, state, PIDGains(**{term: 0.5}))
    used = torch.autograd.grad(control.sum(), [integral, previous], allow_unused=True)
    assert [grad is not None for grad in used] == [term == "i", term == "d"]


class _Counted(TorchDispatchMode):
    """How many operations run."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_a_term_that_does_not_act_costs_no_operation():
    def operations(gains):
        _, state = pid_step(torch.ones(1, 2, 3, 4), None, gains)
        with _Counted() as seen:
            pid_step(torch.ones(1, 2, 3, 4), state, gains)
        return seen.count

    alone = operations(PIDGains(p=0.6))
    assert operations(PIDGains(p=0.6, i=0.1)) == alone + 2  # times i, plus
    assert operations(PIDGains(p=0.6, d=0.1)) == alone + 3  # the difference, times d, plus


def test_a_state_of_another_batch_is_refused_with_both_shapes():
    controller = PIDController(PIDGains(p=1))
    _, state = controller(torch.randn(2, 3), None)
    with pytest.raises(InputError, match=r"\(2, 3\).*\(4, 3\)"):
        controller(torch.randn(4, 3), state)


def test_unknown_first_layer_is_refused():
    with pytest.raises(InputError, match="controlled, free"):
        PIDController(PIDGains(), "literal")
