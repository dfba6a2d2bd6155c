"""The controller of one token that is being decoded: one operation per layer.

A step of decoding is bound by how many operations are sent to the device, not by their size. The
control is linear in the values of the layers so far, with numbers that gains and depth fix:

    u_l = A v_l + sum_m c_lm v_m

So the values of the one token are written by their projection into the rows of one buffer, and
each layer adds a matrix-vector product of the whole buffer. Rows are bounded: when they are used
up, the sum of errors is folded into one of them.
"""
# B batch, H heads, Hkv key/value heads, D head dim, R rows, n = B Hkv D

from functools import lru_cache, partial

import torch
from torch import Tensor, nn

from pidformer.control.gains import PIDGains
from pidformer.control.pid import FirstLayer, PIDState

ROWS = 16
SUM = 1
"""The row of the folded sum, of v_1 before there is one; row 0 is v_0, others the last layers'."""
MAX_NEXT = 8


class TokenControl:
    """The state of one token on its way through the layers, instead of a `PIDState`.

    A layer calls `values`, which makes its values, then `add_`, which adds its control. For
    evaluation only: rows are written in place.
    """

    __slots__ = ("_columns", "_heads", "_is_autocast", "_rows", "_step")

    def __init__(self, rows: int, heads: int, head_dim: int, like: Tensor, first: FirstLayer):
        """For `rows` tokens side by side, each with `heads` values of `head_dim`, as `like` is."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        # Zeros: a row that is not yet written counts with weight 0, and 0 * NaN would be NaN.
        buffer = torch.zeros(ROWS, rows, heads * head_dim, dtype=dtype, device=like.device)
        self._rows = buffer.unbind()
        self._columns = buffer.view(ROWS, -1).t()  # (n, R)
        self._heads = (rows, heads, 1, head_dim)
        self._is_autocast = torch.is_autocast_enabled(like.device.type)
        self._step = _start(first, dtype, like.device)

    def values(self, project: nn.Module, x: Tensor, gains: PIDGains) -> Tensor:
        """`project(x)` of tokens x (B, 1, C) as values (B, Hkv, 1, D), kept for this layer on."""
        step = self._step = self._step.then(gains)
        if step.fold is not None:
            self._rows[SUM].copy_(torch.mv(self._columns, step.fold).view_as(self._rows[SUM]))
        row = self._rows[step.row]
        weight = None if self._is_autocast else plain_weight(project)
        if weight is None or not x.dtype == weight.dtype == row.dtype:
            value = project(x)
            row.copy_(value.view_as(row))
            return value.view(self._heads)
        bias, x = project._parameters["bias"], x.reshape(self._heads[0], -1)
        if bias is None:
            torch.mm(x, weight.t(), out=row)
        else:
            torch.addmm(bias, x, weight.t(), out=row)
        return row.view(self._heads)

    def add_(self, out: Tensor) -> None:
        """Add this layer's control to out (B, H, 1, D), in place; rounded once, to its type."""
        weights = self._step.weights
        if weights is None:
            return
        if out.shape == self._heads and out.dtype == weights.dtype:
            # A product of matrix and vector: no GPU takes a short format (TF32) for it.
            out.view(-1).addmv_(self._columns, weights)
            return
        rows, heads, _, size = self._heads
        control = torch.mv(self._columns, weights).view(self._heads)
        out.view(rows, heads, -1, size).add_(control)  # a value head serves its group of queries

    @property
    def device(self) -> torch.device:
        return self._columns.device

    def state(self) -> PIDState:
        """The same as the controller's own state, for a layer that goes another way."""
        step = self._step
        integral = torch.mv(self._columns, step.sum_weights())
        return PIDState(
            self._rows[0].view(self._heads),
            integral.view(self._heads),
            self._rows[step.row].view(self._heads),
        )


class _Step:
    """What a layer does: the row of its values, and how much of each row its control holds.

    Steps are made once and found again by following the layers' gains, so that a token costs no
    transfer to the device and no arithmetic on the host.
    """

    __slots__ = ("_latest", "_next", "_sums", "device", "dtype", "first", "fold", "row", "weights")

    def __init__(
        self,
        first: FirstLayer,
        dtype: torch.dtype,
        device: torch.device,
        row: int,
        sums: list[float],
        weights: list[float] | None,
        fold: list[float] | None,
    ) -> None:
        self.first, self.dtype, self.device, self.row = first, dtype, device, row
        self._sums = sums
        self.weights = None if weights is None else self._tensor(weights)
        self.fold = None if fold is None else self._tensor(fold)
        self._next: dict[PIDGains, _Step] = {}
        self._latest: tuple[PIDGains | None, _Step] = (None, self)

    def then(self, gains: PIDGains) -> "_Step":
        latest, found = self._latest
        if latest is gains:  # much cheaper than to look it up
            return found
        following = self._next.get(gains)
        if following is None:  # another thread may clear what this one has just put there
            if len(self._next) >= MAX_NEXT:
                self._next.clear()
            following = self._next[gains] = self._following(gains)
        self._latest = (gains, following)
        return following

    def sum_weights(self) -> Tensor:
        return self._tensor(self._sums)

    def _following(self, gains: PIDGains) -> "_Step":
        """e_l = beta v_0 - v_l; control p e_l + i (sums + e_l) + d (v_{l-1} - v_l)."""
        p, i, d, beta = gains.p, gains.i, gains.d, gains.beta
        sums, fold, previous = list(self._sums), None, self.row
        made = partial(_Step, self.first, self.dtype, self.device)
        if previous < 0:  # the first layer
            row, weights = 0, None
            if self.first == "controlled":
                sums[0] = beta - 1
                weights = [(p + i) * (beta - 1), *[0.0] * (ROWS - 1)]
            return made(row, sums, weights, fold)
        row = previous + 1
        if row == ROWS:
            fold, row = sums, SUM + 1
            sums = [0.0] * ROWS
            sums[SUM] = 1.0
        error = [0.0] * ROWS
        error[0], error[row] = beta, -1.0
        sums = [s + e for s, e in zip(sums, error, strict=True)]
        weights = [p * e + i * s for e, s in zip(error, sums, strict=True)]
        weights[previous] += d
        weights[row] -= d
        return made(row, sums, weights, fold)

    def _tensor(self, numbers: list[float]) -> Tensor:
        with torch.inference_mode(False):  # kept for later calls, which may be under other modes
            return torch.tensor(numbers, dtype=self.dtype, device=self.device)


@lru_cache(maxsize=32)
def _start(first: FirstLayer, dtype: torch.dtype, device: torch.device) -> _Step:
    return _Step(first, dtype, device, -1, [0.0] * ROWS, None, None)


def plain_weight(project: nn.Module) -> Tensor | None:
    """The matrix of a projection that is nothing else: no hook, no adapter, no packed weight."""
    if (
        type(project) is not nn.Linear
        or project._forward_hooks
        or project._forward_pre_hooks
        or "forward" in project.__dict__
    ):
        return None
    weight = project._parameters["weight"]
    return weight if type(weight) is nn.Parameter else None
