"""Learned gains start where they are told and never leave the region of stability."""

import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call

from pidformer import InputError, LearnedGains, PIDAttention, PIDGains, pid_attention
from pidformer.control import is_stable
from pidformer.nn.gains import MIN_START, TERM_LOAD

STABLE = PIDGains(p=0.4, i=0.1, d=0.05, beta=0.5)


def close(one: PIDGains, other: PIDGains) -> bool:
    return one.to_dict() == pytest.approx(other.to_dict(), rel=1e-5)


@pytest.mark.parametrize("kappa_min", [-0.3, 0.0, 0.5])
@pytest.mark.parametrize("kind", ["P", "PI", "PD", "PID"])
def test_gains_inside_the_region_are_kept(kind, kappa_min):
    fields = {"p": 0.3, "i": 0.2, "d": 0.1, "beta": 0.7}
    gains = PIDGains(
        **{name: value for name, value in fields.items() if name in f"{kind}beta".lower()}
    )
    learned = LearnedGains(gains, 3, kappa_min)
    assert all(close(head, gains) for head in learned.values())
    assert len(learned.values()) == 3


def test_gains_outside_the_region_are_scaled_with_a_warning_that_names_both():
    with pytest.warns(UserWarning, match=r"p=0\.8.*not stable.*starts from.*p=0\.68") as caught:
        learned = LearnedGains(PIDGains.paper("deit"), 2)
    assert len(caught) == 1
    head = learned.values()[0]
    assert head.p + head.i / 2 + 2 * head.d == pytest.approx(0.98, rel=1e-5)
    assert head.p / head.i == pytest.approx(0.8 / 0.5, rel=1e-5)
    assert head.beta == 0.1


def test_gains_inside_the_region_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LearnedGains(STABLE, 2)


@pytest.mark.parametrize("kappa_min", [-0.5, 0.0, 0.3])
def test_only_gains_on_or_past_the_edge_are_called_not_stable(kappa_min):
    """The region p + i/2 + 2 d < 1 + kappa_min is open."""
    edge = 1 + kappa_min
    with pytest.warns(UserWarning, match="not stable"):
        learned = LearnedGains(PIDGains(p=edge), 1, kappa_min).double()
    assert learned.values()[0].p == pytest.approx(0.98 * edge)
    for part in (1e-4, 1e-6, 1e-9, 1e-12):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            learned = LearnedGains(PIDGains(p=(1 - part) * edge), 1, kappa_min).double()
        learned.reset_parameters()
        assert learned.values()[0].p == pytest.approx((1 - part) * edge, rel=1e-5)
        learned.raw_load.data -= 1  # no start so far out that a step changes nothing
        kept = part / (1 - part) * math.e if part > 7e-6 else math.exp(1 - 12)
        assert learned.values()[0].p == pytest.approx(edge / (1 + kept), rel=1e-9)


raw = st.floats(-1e6, 1e6, width=32)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["p", "pi", "pd", "pid"]),
    kappa_min=st.sampled_from([-0.9, -0.3, 0.0, 0.7, 1.0]),
    dtype=st.sampled_from([torch.bfloat16, torch.float32, torch.float64]),
    data=st.data(),
)
def test_no_update_leaves_the_region(kind, kappa_min, dtype, data):
    start = PIDGains(**dict.fromkeys(kind, 0.01))
    learned = LearnedGains(start, 2, kappa_min, dtype=dtype)
    with torch.no_grad():
        for parameter in learned.parameters():
            update = data.draw(
                st.lists(raw, min_size=parameter.numel(), max_size=parameter.numel())
            )
            parameter += torch.tensor(update).view_as(parameter)
    for head in learned.values():
        assert is_stable(head, kappa_min)
        assert head.kind.lower() == kind


def test_reset_returns_to_the_initial_gains():
    learned = LearnedGains(STABLE, 2)
    with torch.no_grad():
        learned.raw_load.fill_(3)
        learned.raw_split.normal_()
    learned.reset_parameters()
    assert all(close(head, STABLE) for head in learned.values())


def test_tensors_broadcast_over_heads_and_half_precision_is_widened():
    gains = LearnedGains(STABLE, 3, dtype=torch.bfloat16)()
    assert {tensor.shape for tensor in gains[:3]} == {(3, 1, 1)}
    assert {tensor.dtype for tensor in gains[:3]} == {torch.float32}
    assert gains.beta == 0.5


def test_attention_registers_gains_only_when_they_are_learned():
    fixed = PIDAttention(8, 2, STABLE)
    learned = PIDAttention(8, 2, LearnedGains(STABLE, 2))
    assert set(learned.state_dict()) - set(fixed.state_dict()) == {
        "gains.raw_load",
        "gains.raw_split",
    }
    assert "LearnedGains(num_heads=2, kappa_min=0, initial=PIDGains(p=0.4" in repr(learned)


def test_learned_gains_act_like_the_fixed_gains_they_start_from():
    torch.manual_seed(0)
    fixed, learned = PIDAttention(8, 2, STABLE), PIDAttention(8, 2, LearnedGains(STABLE, 2))
    learned.load_state_dict(fixed.state_dict(), strict=False)
    x = torch.randn(2, 5, 8)
    for first_layer in ("free", "controlled"):
        fixed.first_layer = learned.first_layer = first_layer
        (a, one), (b, two) = fixed(x), learned(x)
        torch.testing.assert_close(fixed(a, one)[0], learned(b, two)[0])


def test_gradients_reach_every_raw_parameter():
    torch.manual_seed(0)
    attention = PIDAttention(8, 2, LearnedGains(STABLE, 2))
    x, state = attention(torch.randn(2, 5, 8))
    x, state = attention(x, state)
    x.square().sum().backward()
    assert (attention.gains.raw_load.grad != 0).all()
    assert (attention.gains.raw_split.grad != 0).all()


TINY = {
    "p": PIDGains(p=1e-9),
    "all": PIDGains(p=1e-7, i=1e-7, d=1e-7),
    "p of pid": PIDGains(p=1e-12, i=0.1, d=0.05),
    "i": PIDGains(p=0.4, i=1e-9),
    "d": PIDGains(p=0.4, i=0.1, d=1e-12),
}


def learn(learned, target, steps=400):
    """The gains after Adam has brought them towards the target."""
    optimizer = torch.optim.Adam(learned.parameters(), lr=0.05)
    for _ in range(steps):
        gains = learned()
        loss = sum((getattr(gains, term) - getattr(target, term)).square().sum() for term in "pid")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return learned.values()


@pytest.mark.slow
@pytest.mark.parametrize("case", TINY)
def test_gains_that_start_tiny_are_learned(case):
    start = TINY[case]
    target = PIDGains(**dict.fromkeys(start.kind.lower(), 0.1))
    for head in learn(LearnedGains(start, 2), target):
        assert head.to_dict() == pytest.approx(target.to_dict(), rel=0.02)


@pytest.mark.parametrize("kappa_min", [-0.3, 0.0])
@pytest.mark.parametrize("case", TINY)
def test_a_tiny_start_is_kept_to_within_a_ten_thousandth_of_the_load(case, kappa_min):
    start = TINY[case]
    head = LearnedGains(start, 1, kappa_min, dtype=torch.float64).values()[0]
    assert head.kind == start.kind
    for term, unit in TERM_LOAD.items():
        moved = unit * abs(getattr(head, term) - getattr(start, term))
        assert moved <= 1.0001 * MIN_START * (1 + kappa_min)


@pytest.mark.parametrize("past", [1, -1])
@pytest.mark.parametrize(("name", "place"), [("raw_load", (0,)), ("raw_split", (0, 1))])
def test_gains_that_were_driven_to_a_bound_are_led_back(name, place, past):
    """Where parameters pass what is represented, their gradient does not end."""
    learned = LearnedGains(STABLE, 1)
    parameter = getattr(learned, name)
    with torch.no_grad():
        parameter[place] = past * 20.0
    gains = learned()
    sum((getattr(gains, x) - getattr(STABLE, x)).square().sum() for x in "pid").backward()
    assert past * parameter.grad[place] > 0


raw_of_checkpoints = st.floats(-60, 60, width=32)


@settings(max_examples=60, deadline=None)
@given(load=raw_of_checkpoints, split=st.tuples(*[raw_of_checkpoints] * 3))
def test_parameters_mean_the_gains_that_they_meant(load, split):
    """By the formula of the class, with the bounds that checkpoints were written under."""
    learned = LearnedGains(STABLE, 1, 0.3, dtype=torch.float64)
    learned.load_state_dict({"raw_load": torch.tensor([load]), "raw_split": torch.tensor([split])})
    b = 1.3 / (1 + math.exp(-min(max(load, -12), 12)))
    w = [math.exp(max(part - max(split), -16)) for part in split]
    p, i, d = (b * part / sum(w) for part in w)
    expected = PIDGains(p=p, i=2 * i, d=d / 2, beta=0.5).to_dict()
    assert learned.values()[0].to_dict() == pytest.approx(expected, rel=1e-12)


def test_terms_that_start_at_zero_have_no_parameter_and_stay_zero():
    learned = LearnedGains(PIDGains(p=0.4), 2)
    assert learned.raw_split.shape == (2, 1)
    for head in learn(learned, PIDGains(p=0.2, i=0.1, d=0.1), steps=50):
        assert head.p < 0.3 and head.i == head.d == 0


def definition(load, split, values, q, k, kappa_min):
    """Definition 1 over lists of past values, with the gains written out from the parameters."""
    b = (1 + kappa_min) / (1 + torch.exp(-load))
    w = torch.exp(split) / torch.exp(split).sum(-1, keepdim=True)
    p, i, d = b * w[:, 0], 2 * b * w[:, 1], b * w[:, 2] / 2
    outputs = []
    for depth, value in enumerate(values):
        mixing = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
        errors = [0.5 * values[0] - past for past in values[: depth + 1]]
        out = mixing @ value
        if depth > 0:
            terms = zip(
                (p, i, d), (errors[-1], sum(errors[1:]), errors[-1] - errors[-2]), strict=True
            )
            out = out + sum(gain[:, None, None] * term for gain, term in terms)
        outputs.append(out)
    return torch.stack(outputs)


def test_values_and_gradients_match_the_direct_definition_in_float64():
    torch.manual_seed(0)
    kappa_min = -0.2
    learned = LearnedGains(STABLE, 2, kappa_min, dtype=torch.float64)
    q, k, *values = torch.randn(5, 1, 2, 3, 4, dtype=torch.float64)
    load, split = torch.randn(2, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)

    def ours(load, split, *values):
        gains = functional_call(learned, {"raw_load": load, "raw_split": split}, ())
        state, outputs = None, []
        for value in values:
            out, state = pid_attention(q, k, value, state, gains)
            outputs.append(out)
        return torch.stack(outputs)

    inputs = [x.requires_grad_() for x in (load, split, *values)]
    direct = definition(load, split, values, q, k, kappa_min)
    torch.testing.assert_close(ours(*inputs), direct, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(direct)
    for one, two in zip(
        torch.autograd.grad((ours(*inputs) * weights).sum(), inputs),
        torch.autograd.grad((direct * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)
    assert torch.autograd.gradcheck(ours, inputs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((PIDGains(i=0.1), 2), "need p > 0"),
        ((PIDGains(), 2), "need p > 0"),
        ((STABLE, 0), "num_heads must be >= 1"),
        ((STABLE, 2, -1.0), "kappa_min must be > -1"),
        ((STABLE, 2, 1.5), "kappa range"),
    ],
)
def test_bad_gains_are_refused_in_one_line(arguments, message):
    with pytest.raises(InputError, match=message) as caught:
        LearnedGains(*arguments)
    assert "\n" not in str(caught.value)


def test_gains_for_another_number_of_heads_are_refused():
    with pytest.raises(InputError, match="gains for 3 heads do not fit 2 value heads"):
        PIDAttention(8, 4, LearnedGains(STABLE, 3), num_kv_heads=2)
