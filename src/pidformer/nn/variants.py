"""Variants that are compared with the controller: other integrals, and values mixed with the first.

They act on what a layer takes over from the one before, so the operator stays as it is.
`PIDAttention` knows none of them: a model builder asks `take_variant` which attention to build.
"""
# B batch, H value heads, N tokens, D head dim

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pidformer.control.pid import PIDState, first_state
from pidformer.errors import InputError
from pidformer.nn.attention import PIDAttention, attend

VARIANTS: dict[str, Any] = {"integral_leak": 1.0, "integral_limit": None, "value_residual": None}
"""The keywords of `VariantAttention`, with the values at which it is `PIDAttention`."""
ValueMix = float | Literal["learned"] | None
"""Share of v_0 in a layer's values, "learned", or None: values as they are."""


class VariantAttention(PIDAttention):
    """`PIDAttention` with another integral (see `relaxed`) or mixed values (`ValueResidual`)."""

    reads_whole_state = True

    def __init__(
        self,
        *arguments: Any,
        integral_leak: float = 1.0,
        integral_limit: float | None = None,
        value_residual: ValueMix = None,
        **options: Any,
    ) -> None:
        check_integral(integral_leak, integral_limit)
        super().__init__(*arguments, **options)
        self.integral_leak, self.integral_limit = integral_leak, integral_limit
        self.value_residual: ValueResidual | None = None
        if value_residual is not None:
            # Before qkv: an optimiser's state counts the parameters.
            later = {k: self._modules.pop(k) for k in list(self._modules) if k != "gains"}
            self.value_residual = ValueResidual(value_residual, device=options.get("device"))
            self._modules.update(later)

    def attend(
        self, packed: Tensor, state: PIDState | None, **options: Any
    ) -> tuple[Tensor, PIDState | None]:
        if state is not None:
            state = relaxed(state, self.integral_leak, self.integral_limit)
        if self.value_residual is None:
            return super().attend(packed, state, **options)
        q, k, v = self.split(packed)
        if state is not None:
            v = self.value_residual(v, state.initial)
        out, after = attend(self, q, k, v, state, **options)
        if self.gains is None:  # plain attention has no state: nothing but v_0 is handed on
            after = first_state(v) if state is None else state
        return out, after

    @property
    def carries_state(self) -> bool:
        return super().carries_state or self.value_residual is not None


def take_variant(options: dict[str, Any]) -> Callable[[int], Callable[..., PIDAttention]]:
    """Take the keywords of `VARIANTS` out of a model's options: what builds attention by depth."""
    asked = {name: options.pop(name, usual) for name, usual in VARIANTS.items()}
    if asked == VARIANTS:
        return lambda depth: PIDAttention
    # The first layer has nothing to mix, only v_0 to hand on.
    first = asked | ({} if asked["value_residual"] is None else {"value_residual": 0.0})
    return lambda depth: partial(VariantAttention, **(asked if depth else first))


def relaxed(state: PIDState, leak: float, limit: float | None) -> PIDState:
    """The state with an integral that forgets, S_l = leak S_{l-1} + e_l, or that cannot wind up.

    `limit` scales the sum that is taken over back, for each token and head, to at most so many
    times the norm of v_0.
    """
    integral = state.integral
    if leak != 1:
        integral = leak * integral
    if limit is not None:
        reference = state.initial.to(integral.dtype).norm(dim=-1, keepdim=True)
        length = integral.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(integral.dtype).tiny)
        integral = integral * (limit * reference / length).clamp(max=1)
    return state._replace(integral=integral)


class ValueResidual(nn.Module):
    """Value residual (ResFormer): v = a v_0 + b v_l before attention mixes the tokens.

    `share` s fixes a = s and b = 1 - s (0.5 and 0.5 in the source); "learned" trains both scalars,
    from 0.5. The state holds v_0; with a controller, e = beta v_0 - v takes the mixed values.
    """

    def __init__(
        self, share: float | Literal["learned"], *, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        is_number = isinstance(share, float | int) and not isinstance(share, bool)
        if share != "learned" and not (is_number and 0 <= share <= 1):
            raise InputError(f'value_residual must be in [0, 1] or "learned", got {share!r}')
        self.share = share
        if share == "learned":
            self.mix = nn.Parameter(torch.full((2,), 0.5, device=device))

    def forward(self, value: Tensor, initial: Tensor) -> Tensor:
        if self.share == "learned":
            first, own = self.mix.to(value.dtype).unbind()
            return first * initial + own * value
        share = float(self.share)
        return share * initial + (1 - share) * value if share else value


def check_integral(leak: float, limit: float | None) -> None:
    """Refuse an integral that grows by itself, or a limit that is none."""
    if not (isinstance(leak, float | int) and 0 <= leak <= 1):
        raise InputError(f"integral_leak must be in [0, 1] (1 keeps the whole sum), got {leak!r}")
    if limit is not None and not (isinstance(limit, float | int) and limit > 0):
        raise InputError(f"integral_limit must be positive, got {limit!r}")
