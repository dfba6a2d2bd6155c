"""PID control's relatives: names, fields, steps of the discretisation, stability."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pidformer.control import (
    RELATIVES,
    Feedback,
    PIDGains,
    as_feedback,
    discretised,
    gain_margin,
    is_stable,
    poles,
    simulate,
    spectral_radius,
    stability_report,
    stable_interval,
    steady_state,
)
from pidformer.control.feedback import DiscreteGains, acting_law, token_bound
from pidformer.control.gains import as_gains
from pidformer.errors import InputError
from pidformer.ops.attention import feed_back

gain = st.just(0.0) | st.floats(1e-6, 1.2)
any_gains = st.builds(PIDGains, p=gain, i=gain, d=gain, beta=st.floats(0.05, 1))
steps = st.sampled_from([1.0, 0.5, 0.1])
kappas = st.floats(-1, 1)


def mode(law, kappa, depth, start=1.0):
    """v_1 .. v_depth of one eigenvector, by the network's own layer: v_{l+1} = u(kappa v_l)."""
    value = torch.full((1, 1, 1, 1), start, dtype=torch.float64)
    state, values = None, []
    law = acting_law(law)
    for _ in range(depth):
        mixed = law.own * value if isinstance(law, Feedback) else value
        value, state = feed_back(kappa * mixed, value, state, law, "free")
        values.append(float(value))
    return values


def recursion(gains, kappa, depth, derivative, step):
    """The discretised equation as it is printed, in plain numbers; the first layer is free."""
    p, i, d, beta = gains.p, gains.i, gains.d, gains.beta
    initial = value = 1.0
    slow = 1 + d if derivative == "implicit" else 1.0
    value, last = value + step / slow * (kappa - 1) * value, value
    values, total = [value], 0.0
    for _ in range(depth - 1):
        error = beta * initial - value
        total += error
        change = step / slow * ((kappa - 1) * value + p * error + i * step * total)
        if derivative == "explicit":
            change += d * (last - value)
        value, last = value + change, value
        values.append(value)
    return values


@settings(max_examples=60, deadline=None)
@given(any_gains, kappas, st.sampled_from(["explicit", "implicit"]), steps)
def test_every_discretisation_is_a_layer_of_the_network(gains, kappa, derivative, step):
    law = discretised(gains, derivative=derivative, step=step)
    assert mode(law, kappa, 6) == pytest.approx(
        recursion(gains, kappa, 6, derivative, step), rel=1e-9, abs=1e-9
    )


@settings(max_examples=60, deadline=None)
@given(any_gains, kappas, st.sampled_from(["explicit", "implicit"]), steps)
def test_poles_are_those_of_the_printed_recursion(gains, kappa, derivative, step):
    """Against the companion matrix of (w_l, S_{l-1}, w_{l-1}), written out by hand."""
    p, i, d = gains.p, gains.i, gains.d
    h = step / (1 + d) if derivative == "implicit" else step
    own = 1 + h * (kappa - 1 - p - i * step)
    d = 0.0 if derivative == "implicit" else d
    matrix = np.array([[own - d, h * i * step, d], [-1, 1, 0], [1, 0, 0]])
    if i == 0:
        matrix = matrix[np.ix_([0, 2], [0, 2])]
    expected = np.abs(np.linalg.eigvals(matrix)).max()
    law = discretised(gains, derivative=derivative, step=step)
    assert float(spectral_radius(law, kappa)) == pytest.approx(expected, rel=1e-6, abs=1e-6)
    if step == 1:
        assert float(spectral_radius(gains, kappa, derivative=derivative)) == pytest.approx(
            float(spectral_radius(law, kappa)), rel=1e-9, abs=1e-9
        )


@pytest.mark.parametrize("name", ["deit", "segmenter", "lm"])
def test_at_half_a_step_the_published_gains_are_stable_on_the_unit_disc(name):
    law = discretised(name, step=0.5)
    angle = torch.linspace(0, 2 * math.pi, 181, dtype=torch.float64)
    size = torch.linspace(0, 1, 21, dtype=torch.float64)[:, None]
    disc = torch.polar(*torch.broadcast_tensors(size, angle)).flatten()
    assert stability_report(law, kappas=disc).stable
    assert not stability_report(name, kappas=disc).stable


@settings(max_examples=60, deadline=None)
@given(any_gains, st.floats(-2, 2), st.floats(-1, 2), st.floats(-1.5, 1.5), st.floats(-1, 1))
def test_the_stable_interval_of_a_linear_law_is_where_its_poles_are_inside(
    gains, skip, own, scale, kappa
):
    try:
        law = Feedback(**gains.to_dict(), skip=skip, own=own, scale=scale)
        interval = stable_interval(law)
    except InputError:
        assert scale < 0 and max(gains.p, gains.i, gains.d) > 0  # gains of the other sign
        return
    radius = float(spectral_radius(law, kappa))
    if abs(radius - 1) > 1e-6:
        inside = interval is not None and interval[0] < kappa < interval[1]
        assert inside == (radius < 1)


@pytest.mark.parametrize(
    ("law", "interval"),
    [
        (Feedback(skip=-1), (0, 2)),  # laplacian: A - 1, on the border at kappa = 0
        (Feedback(first=0.5, own=0.5), (-2, 2)),
        (Feedback(skip=0.5, scale=0.5), (-2.5, 1.5)),
        (Feedback(own=0, skip=0.9), (-math.inf, math.inf)),
        (Feedback(own=0, skip=1), None),
    ],
)
def test_regions_in_closed_form(law, interval):
    found = stable_interval(law)
    assert found == (interval if interval is None else pytest.approx(interval))


def test_laplacian_heads_are_on_the_border_at_zero():
    report = stability_report("laplacian", 0.0)
    assert not report.stable and report.worst_radius == 1 and report.worst_kappa == 0
    assert is_stable("laplacian", 0.1) and not is_stable("laplacian", 0.0)
    assert gain_margin("laplacian", 0.0) == math.inf  # it has no p, i or d
    assert torch.equal(
        poles("laplacian", 0.3), poles(PIDGains(p=1.0), 0.3)
    )  # with beta = 0 it would be P control


def test_what_is_not_linear_has_no_poles():
    for ask in (poles, spectral_radius):
        with pytest.raises(InputError, match="xsa is not linear"):
            ask("xsa", 0.5)
    with pytest.raises(InputError, match="xsa is not linear"):
        stability_report("xsa")


@settings(max_examples=40, deadline=None)
@given(st.floats(0, 2), st.floats(-1, 1), st.floats(-1, 1), st.integers(0, 1000))
def test_a_law_that_is_not_linear_keeps_its_bound(exclude, skip, own, seed):
    """No token of the output is longer than the bound times the longest value; reached by none."""
    law = Feedback(exclude=exclude, skip=skip, own=own)
    draw = torch.Generator().manual_seed(seed)
    kernel = torch.randn(5, 5, generator=draw, dtype=torch.float64).mul(3).softmax(-1)
    v0 = torch.randn(5, 3, generator=draw, dtype=torch.float64)
    before, after = simulate(kernel, v0, law, 1).norm(dim=-1).amax(-1)
    assert float(after) <= token_bound(law) * float(before) + 1e-9
    assert token_bound(Feedback(exclude=1)) == token_bound(Feedback(gate=1)) == 1
    assert token_bound(Feedback(exclude=1, p=0.1)) is None


def test_names_fields_and_what_is_refused():
    assert as_feedback("xsa") == Feedback(exclude=1)
    assert as_feedback({"skip": -1}) == as_feedback("laplacian")
    assert as_feedback(Feedback(skip=2).to_dict()) == Feedback(skip=2)
    assert as_feedback("0.4,0.1,0") == PIDGains(p=0.4, i=0.1)
    assert as_feedback("deit") == PIDGains.preset("deit")
    assert [law.kind for law in RELATIVES.values()] == [
        "P", "P", "PID", "xsa", "laplacian", "resformer", "skipinit", "value_embedding", "gated",
    ]  # fmt: skip
    assert Feedback(skip=0.1).kind == "feedback"
    for wrong, words in (
        ("twicing", "twicing is not offered: .* attends twice"),
        ("shaped", "shaped is not offered: .* skipinit is"),
        ("xsaa", "did you mean 'xsa'"),
        ("0.6", "gains must be P,I,D or P,I,D,BETA"),
        ({"skip": 1, "p": -1}, "gain p must be >= 0"),
        ({"skip": "much"}, "gain skip must be a number"),
        ({"skip": 1, "q": 1}, "gain 'q'"),
        ({"skip": math.nan}, "gain skip must be finite"),
        ({"skipp": 1}, "unknown gain 'skipp'; did you mean 'skip'"),
    ):
        with pytest.raises(InputError, match=words):
            as_feedback(wrong)
    for other in (Feedback(skip=1), discretised("deit", step=0.5)):
        with pytest.raises(InputError, match="plain PID gains are needed here"):
            as_gains(other)
    with pytest.raises(InputError, match="unknown preset 'xsa'"):
        as_gains("xsa")
    for step in (0, 1.5, math.nan, "x"):
        with pytest.raises(InputError, match="step must be"):
            discretised("deit", step=step)


@given(st.floats(0, 1))
def test_a_share_of_a_law_lies_between_attention_and_the_law(share):
    law = Feedback(p=0.5, skip=-1, exclude=1, first=0.5, own=0.5, scale=2, beta=0.3)
    found = law.scaled(share)
    assert found.p == share * 0.5 and found.skip == -share and found.beta == 0.3
    assert found.own == pytest.approx(1 - share / 2) and found.scale == 1 + share


def test_gains_say_their_discretisation_in_text_and_fields():
    expected = DiscreteGains(p=0.8, i=0.5, d=0.05, beta=0.1, derivative="implicit", step=0.5)
    for given_as in (
        "0.8,0.5,0.05,0.1,implicit,step=0.5",
        "0.8, 0.5, 0.05, 0.1, step=0.5, implicit",
        "deit,implicit,step=0.5",
        expected.to_dict(),
        {"p": 0.8, "i": 0.5, "d": 0.05, "beta": 0.1, "derivative": "implicit", "step": 0.5},
        expected,
    ):
        assert as_feedback(given_as) == expected
    assert (
        expected.kind == "PID" and expected.scaled(0.5).p == 0.4 and expected.scaled(2).step == 0.5
    )
    assert type(as_feedback("deit,step=1")) is PIDGains  # Definition 1
    assert type(as_feedback({"p": 0.4, "derivative": "explicit"})) is PIDGains
    for wrong, words in (
        ("0.8,0.5,0.05,implict", "gain beta must be a number"),
        ("deit,step=0", r"step must be in \(0, 1\]"),
        ("deit,step=half", "step must be a number"),
        ("deit,implicit,implicit", "derivative twice"),
        ("xsa,implicit", "terms beyond"),
        ({"p": 0.1, "derivative": "both"}, "unknown derivative 'both'"),
        ({"skip": 0.1, "step": 0.5}, "terms beyond"),
        ("implicit", "holds no gains; put them in front"),
        ("step=0.5", "holds no gains; put them in front"),
    ):
        with pytest.raises(InputError, match=words):
            as_feedback(wrong)


def test_a_discretisation_is_said_once():
    with pytest.raises(InputError, match="say their discretisation; leave out another"):
        discretised("deit,implicit", derivative="implicit")


def test_what_takes_plain_gains_knows_the_names_of_the_family():
    kernel, v0 = torch.full((2, 2), 0.5, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    assert torch.equal(steady_state(kernel, v0, "pid"), v0)
    assert PIDGains.preset("neutreno") == RELATIVES["p"]
    for other in ("laplacian", "deit,step=0.5"):
        with pytest.raises(InputError, match="plain PID gains are needed here"):
            steady_state(kernel, v0, other)


@settings(max_examples=20, deadline=None)
@given(any_gains, st.sampled_from(["explicit", "implicit"]), steps)
def test_simulate_follows_the_discretisation(gains, derivative, step):
    """On a kernel with eigenvalues 1 and 0.5, whose eigenvectors are known."""
    kernel = torch.tensor([[0.75, 0.25], [0.25, 0.75]], dtype=torch.float64)
    law = discretised(gains, derivative=derivative, step=step)
    for vector, kappa in (([1.0, 1.0], 1.0), ([1.0, -1.0], 0.5)):
        v0 = torch.tensor(vector, dtype=torch.float64)[:, None]
        found = simulate(kernel, v0, law, 5)[1:, 0, 0].tolist()
        assert found == pytest.approx(recursion(gains, kappa, 5, derivative, step), abs=1e-9)


def test_simulate_takes_the_relatives():
    kernel = torch.tensor([[0.7, 0.3], [0.2, 0.8]], dtype=torch.float64)
    v0 = torch.tensor([[1.0, 2.0], [-1.0, 0.5]], dtype=torch.float64)
    found = simulate(kernel, v0, "laplacian", 2)
    torch.testing.assert_close(found[2], (kernel - torch.eye(2)) @ (kernel - torch.eye(2)) @ v0)
    residual = simulate(kernel, v0, "resformer", 2)
    torch.testing.assert_close(residual[2], kernel @ (v0 + kernel @ v0) / 2)
    for law in ("gated", "value_embedding"):
        with pytest.raises(InputError, match="reads the input of a network"):
            simulate(kernel, v0, law, 2)


@pytest.mark.parametrize("d", [0.7, 50.0])
def test_a_margin_without_end_is_found_for_short_steps(d):
    """The law of a layer holds d / step: the search ends before that is too large to be a gain."""
    gains = discretised(PIDGains(p=0.2, d=d), derivative="implicit", step=0.25)
    report = stability_report(gains)
    assert report.stable and report.gain_margin == math.inf


@pytest.mark.parametrize("d", np.linspace(0.05, 2, 20).tolist())
@pytest.mark.parametrize("step", [1.0, 0.5, 0.25])
def test_a_mode_that_neither_grows_nor_decays_is_not_called_stable(d, step):
    """Without p the mode at kappa = 1 stays as it is, whatever rounding says."""
    gains = discretised(PIDGains(d=d), derivative="implicit", step=step)
    report = stability_report(gains)
    assert not report.stable and report.verdict.startswith("marginal")


@pytest.mark.parametrize(
    ("law", "words"),
    [
        (Feedback(skip=-1.0), "no factor on p, i and d changes that"),
        (Feedback(skip=0.9, p=0.03), "smaller p, i and d leave one outside too"),
        (Feedback(skip=0.43, p=1.41, own=0.8, scale=1.25), "smaller p, i and d leave one outside"),
        (Feedback(skip=-0.2, p=1.5), "scale the gains by less than 0.5333"),
    ],
)
def test_the_advice_for_an_unstable_law_holds(law, words):
    report = stability_report(law, kappas=[1.0, -1.0] if law.p == 0 else None)
    assert not report.stable and words in report.verdict
    if "less than" in words:
        for factor in (1e-3, 0.3, 0.999):
            assert is_stable(law.__class__(skip=law.skip, p=factor * report.gain_margin * law.p))


def test_a_coefficient_far_below_zero_is_refused():
    with pytest.raises(InputError, match="skip must be at most 1e"):
        Feedback(skip=-1e300)
