"""Gains that a network learns, and that cannot leave the region of stability."""
# H (value) heads, T terms that act

import itertools
import math
import warnings
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pidformer.control.feedback import (
    DiscreteGains,
    Feedback,
    FeedbackTensors,
    Law,
    acting_law,
    on_the_way,
)
from pidformer.control.gains import Gains, GainTensors, PIDGains
from pidformer.control.pid import widened
from pidformer.control.stability import check_range, load_of
from pidformer.errors import InputError

TERM_LOAD = {"p": 1.0, "i": 0.5, "d": 2.0}
"""What one unit of each gain adds to the load p + i/2 + 2 d."""
SAFE_SHARE = 0.98
"""Share of the largest load at which gains from outside the region start."""
MIN_START = 1e-4
"""The least a load, as a share of the largest, and a term, as a share of the load, start from."""
# sigmoid rounds to 0 or 1 and softmax to 0 long before parameters overflow. These bounds keep the
# load below its limit, and p large enough that 1 + p > 1 in float64, however far an update goes.
_MAX_LOGIT = 12.0
_MAX_SHARE = 1 / (1 + math.exp(-_MAX_LOGIT))
_MAX_SPREAD = 16.0


class LearnedGains(nn.Module):
    """Gains of one layer, per (value) head, stable whatever the parameters are.

    With p > 0 the recursion over layers is stable for real kernel eigenvalues in [kappa_min, 1]
    exactly when the load b = p + i/2 + 2 d stays below 1 + kappa_min (`control.stability`). So

        b = (1 + kappa_min) sigmoid(raw_load),    w = softmax(raw_split),
        p = b w_p,    i = 2 b w_i,    d = b w_d / 2

    with shares w of the terms that act in `initial`: a P controller stays a P controller, because
    a term of zero has no share to learn. beta is fixed. Gains outside the region start at 98 % of
    the largest load, with a warning.

    The gradient of a gain shrinks with the gain, so a term that is to be learned from nothing is
    given any small number: a load below 1e-4 of the largest and a share below 1e-4 start there.
    Other starts are kept as they are; no term's part in the load moves by more than
    1e-4 (1 + kappa_min).
    """

    def __init__(
        self,
        initial: PIDGains,
        num_heads: int,
        kappa_min: float = 0.0,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_range(kappa_min)
        if kappa_min == -1:
            raise InputError("kappa_min must be > -1: at -1 no gains are stable")
        if num_heads < 1:
            raise InputError(f"num_heads must be >= 1, got {num_heads}")
        if initial.p == 0:
            raise InputError(
                f"learned gains need p > 0, got {initial}: the region they are held in has it"
            )
        self.num_heads = num_heads
        self.kappa_min = kappa_min
        self.max_load = 1 + kappa_min
        self.initial = _inside(initial, kappa_min)
        self.terms = tuple(term for term in TERM_LOAD if getattr(initial, term) > 0)
        self.raw_load = nn.Parameter(torch.empty(num_heads, device=device, dtype=dtype))
        self.raw_split = nn.Parameter(
            torch.empty(num_heads, len(self.terms), device=device, dtype=dtype)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Back to the initial gains, the same in every head."""
        load = load_of(self.initial)
        shares = [TERM_LOAD[term] * getattr(self.initial, term) / load for term in self.terms]
        load = min(max(load, MIN_START * self.max_load), _MAX_SHARE * self.max_load)
        with torch.no_grad():
            self.raw_load.fill_(math.log(load / (self.max_load - load)))
            for column, share in enumerate(shares):
                self.raw_split[:, column] = math.log(max(share, MIN_START))

    def forward(self) -> GainTensors:
        """The gains as tensors (H, 1, 1), in float32 or wider."""
        logit = _bounded(widened(self.raw_load), -_MAX_LOGIT, _MAX_LOGIT)
        load = self.max_load * logit.sigmoid()  # (H,)
        split = widened(self.raw_split)
        split = split - split.detach().amax(-1, keepdim=True)
        shares = _bounded(split, -_MAX_SPREAD, 0.0).softmax(-1)  # (H, T)
        columns = (load[:, None] * shares)[..., None, None].unbind(1)  # T of (H, 1, 1)
        gains: dict[str, Tensor] = dict.fromkeys(TERM_LOAD, torch.zeros_like(columns[0]))
        for term, part in zip(self.terms, columns, strict=True):
            gains[term] = part / TERM_LOAD[term]
        return GainTensors(gains["p"], gains["i"], gains["d"], self.initial.beta)

    def values(self) -> list[PIDGains]:
        """The gains as they stand, one per head."""
        p, i, d, beta = self()
        heads = zip(*(gain.detach().flatten().tolist() for gain in (p, i, d)), strict=True)
        return [PIDGains(p=p, i=i, d=d, beta=beta) for p, i, d in heads]

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, kappa_min={self.kappa_min:g}, initial={self.initial}"


class LearnedFeedback(LearnedGains):
    """The coefficients of a `Feedback` that differ from attention's, learned per (value) head.

    They start at `initial` and go where training takes them: no region bounds them.
    """

    def __init__(
        self,
        initial: Feedback,
        num_heads: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        nn.Module.__init__(self)
        plain = Feedback(beta=initial.beta).to_dict()
        self.num_heads, self.initial = num_heads, initial
        fixed = ("gate", "embedded")  # what they bring learns by itself
        self.terms = tuple(
            k for k, v in initial.to_dict().items() if v != plain[k] and k not in fixed
        )
        if not self.terms:
            raise InputError(f"{initial.kind} has no coefficient to learn; leave learn_gains out")
        shape = len(self.terms), num_heads
        self.raw_terms = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            for row, term in zip(self.raw_terms, self.terms, strict=True):
                row.fill_(getattr(self.initial, term))

    def forward(self) -> FeedbackTensors:  # type: ignore[override]
        learned = widened(self.raw_terms)[..., None, None].unbind(0)  # T of (H, 1, 1)
        parts: dict[str, Any] = dict(self.initial.to_dict())
        return FeedbackTensors(**parts | dict(zip(self.terms, learned, strict=True)))

    def values(self) -> list[PIDGains]:
        heads = self.raw_terms.detach().T.tolist()
        try:
            return [replace(self.initial, **dict(zip(self.terms, h, strict=True))) for h in heads]
        except InputError as error:  # no region bounds them
            raise InputError(f"a coefficient was learned out of its range: {error}") from None

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, initial={self.initial}"


def learned_gains(initial: PIDGains | None, num_heads: int, **place: Any) -> LearnedGains:
    """The gains of one layer as a module that learns them."""
    initial = acting_law(initial)
    kind: Any = LearnedFeedback if isinstance(initial, Feedback) else LearnedGains
    return kind(initial, num_heads, **place)


def gate_layer(gains: Any, width: int, heads_width: int, **place: Any) -> nn.Linear | None:
    """The projection W (heads_width, width) of a law with a gate; None for others."""
    law = gains.initial if isinstance(gains, LearnedGains) else gains
    has_gate = isinstance(law, Feedback) and law.gate != 0
    return nn.Linear(width, heads_width, bias=False, **place) if has_gate else None


def gate_of(attention: Any, x: Tensor) -> dict[str, Any]:
    """sigmoid(W x) by heads (B, H, N, D) as a keyword, if the layer has a gate."""
    if attention.gate is None:
        return {}
    heads = attention.gate(x).sigmoid().unflatten(-1, (-1, attention.head_dim))
    return {"gate": heads.transpose(1, 2)}


def acting_gains(attention: Any) -> Gains | None:
    """The gains with which an attention module acts now: learned or fixed, times its share."""
    gains = attention.gains
    gains = gains() if isinstance(gains, LearnedGains) else acting_law(gains)
    share = attention.gain_share
    if gains is None or share is None:
        return gains
    if isinstance(gains, Law):
        return FeedbackTensors(**on_the_way(gains, share))
    return GainTensors(share * gains.p, share * gains.i, share * gains.d, gains.beta)


def terms_of(block: nn.Module) -> Collection[str]:
    """The controller terms that a block may use; all of them where that is unknown."""
    attention = getattr(block, "attn", None) or getattr(block, "self_attn", None)
    gains = getattr(attention, "gains", "unknown")
    if gains is None:
        return ()
    if isinstance(gains, LearnedGains):
        gains = gains.initial  # a term of zero is not learned
    elif getattr(attention, "reads_whole_state", False):
        return TERM_LOAD
    if type(gains) not in (PIDGains, Feedback, DiscreteGains):
        return TERM_LOAD
    return [term for term in TERM_LOAD if getattr(acting_law(gains), term) != 0]


def controlled_attention(model: nn.Module) -> list[Any]:
    """The attention modules of a model that carry gains, first layer first."""
    return [m for m in model.modules() if hasattr(m, "gains") and hasattr(m, "first_layer")]


def set_gain_share(model: nn.Module, shares: float | Sequence[float] | None) -> None:
    """Let the controllers act with a share of their gains: for all layers, or one per layer.

    None ends it. The share is a buffer outside the state dict, changed in place: a compiled model
    is not compiled again when it moves.
    """
    attention = controlled_attention(model)
    if not isinstance(shares, Sequence):
        shares = [shares] * len(attention)  # type: ignore[list-item]
    if len(shares) != len(attention):
        raise InputError(f"{len(shares)} shares do not fit a model of {len(attention)} layers")
    for module, share in zip(attention, shares, strict=True):
        if share is None or module.gain_share is None:
            place = device_of(module)
            value = None if share is None else torch.tensor(float(share), device=place)
            module.register_buffer("gain_share", value, persistent=False)
        else:
            module.gain_share.fill_(share)


def device_of(module: nn.Module) -> torch.device | None:
    """Where a module is; None if it holds no tensor to tell (packed, quantised weights)."""
    held = next(itertools.chain(module.parameters(), module.buffers()), None)
    return None if held is None else held.device


def _bounded(x: Tensor, least: float, most: float) -> Tensor:
    """x within bounds, with the gradient of x: a clamp has none outside, and x would stay there."""
    return x.clamp(least, most).detach() + (x - x.detach())


def _inside(gains: PIDGains, kappa_min: float) -> PIDGains:
    """The gains, scaled back into the region if they are outside."""
    share = load_of(gains) / (1 + kappa_min)
    if share < 1:
        return gains
    scaled = gains.scaled(SAFE_SHARE / share)
    warnings.warn(
        f"{gains} are not stable for kappa >= {kappa_min:g}; learning starts from {scaled}",
        stacklevel=3,
    )
    return scaled
