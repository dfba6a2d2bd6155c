"""Laws beyond PID gains on the kernels of PID gains: which numbers to give them, and what is left.

A law's own share `skip v` is linear in what the control reads anyway, so other gains compute it:

    no term looks back           p' = -skip,                      beta' = 0
    no sum is kept               p' = p - skip,                   beta' = beta p / p'
    nothing reads v_{l-1}        p' = p - skip / (1 - beta),      d' = beta skip / (1 - beta)

In the last v_0 stands for v_{l-1}, as d' (v_0 - v). Values are mixed (`first`, `own`) before
attention. What no gains hold (`scale`, a gate, `skip` beside a sum and a derivative) is one pass of
PyTorch behind the kernels.
"""

from typing import Any, NamedTuple

from torch import Tensor

from pidformer.control.feedback import Feedback, FeedbackTensors, Law
from pidformer.control.gains import Gains, GainTensors, acts
from pidformer.control.pid import (
    FirstLayer,
    PIDState,
    ReferenceState,
    SumlessState,
    first_state,
    next_state,
)

MOST_BETA = 0.9
"""Above it 1 / (1 - beta) would cost digits: gains that nearly cancel."""

_NOTHING = FeedbackTensors(**Feedback().to_dict())


class LawPlan(NamedTuple):
    """What the kernels compute, `gains` on `state` (None: attention alone), and what is left."""

    gains: Gains | None
    state: PIDState | None
    rest: FeedbackTensors | None = None
    is_possible: bool = True

    def after(self, found: PIDState | None, state: PIDState | None, value: Tensor) -> PIDState:
        """The state for the next layer: the kernels' own, if they looked back at layers before."""
        if state is None:
            return first_state(value)
        if found is None or self.state is None or self.state.initial is not state.initial:
            return next_state(state, state.initial, state.integral, value)
        return found


def planned(
    law: Gains | None, state: PIDState | None, value: Tensor, first_layer: FirstLayer
) -> LawPlan:
    """How our kernels compute a law; PID gains as they are."""
    if not isinstance(law, Law):
        return LawPlan(law, state)
    looks_back = any(acts(gain) for gain in (law.p, law.i, law.d))
    if state is None and looks_back and first_layer == "controlled":
        return LawPlan(None, None, is_possible=False)
    gains: Gains | None = None
    given, skip = state, law.skip
    if state is not None and (looks_back or not isinstance(state, SumlessState)):
        gains, given, skip = _linear(law, state)
    elif acts(skip):
        own = value.detach()  # times beta' = 0: whatever is there to read
        zero = first_state(own).integral if state is None else state.integral
        gains, given, skip = GainTensors(-skip, 0.0, 0.0, 0.0), ReferenceState(own, zero, own), 0.0  # type: ignore[arg-type]
    return LawPlan(gains, given, _rest(law, skip))


def _linear(law: Any, state: PIDState) -> tuple[Gains, PIDState, Any]:
    """Gains and state for the control's kernels, and what of `skip` they leave out."""
    p, i, d, beta, skip = law.p, law.i, law.d, law.beta, law.skip
    has_numbers = not isinstance(p, Tensor) and not isinstance(skip, Tensor)
    if acts(skip) and isinstance(state, SumlessState) and has_numbers and p != skip:
        p, beta, skip = p - skip, beta * p / (p - skip), 0.0
    elif acts(skip) and not isinstance(state, SumlessState) and not acts(d) and beta <= MOST_BETA:
        p, d, skip = p - skip / (1 - beta), beta * skip / (1 - beta), 0.0
        state = type(state)(state.initial, state.integral, state.initial)
    return GainTensors(p, i, d, beta), state, skip


def _rest(law: Law, skip: Any) -> FeedbackTensors | None:
    if not (acts(skip) or acts(law.scale - 1) or acts(law.gate)):
        return None
    return _NOTHING._replace(skip=skip, scale=law.scale, gate=law.gate)
