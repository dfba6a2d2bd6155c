"""Variants that are compared with the controller: other integrals, and values mixed with the first.

They act on what a layer takes over from the one before, so the operator stays as it is.
"""
# B batch, H value heads, N tokens, D head dim

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from pidformer.control.pid import PIDState
from pidformer.errors import InputError

ValueMix = float | Literal["learned"] | None
"""Share of v_0 in a layer's values, "learned", or None: values as they are."""


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
        self,
        share: float | Literal["learned"],
        *,
        device: torch.device | str | None = None,
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
