"""The control added to a finished attention output by PyTorch's kernels, in as few passes as these
allow: what `ops.epilogue` does where ours cannot run, as on a CPU.

Written as `pid_step` is, every term makes tensors of its own, and on a CPU new memory costs more
than arithmetic. Here p e + i S_l + d (v_{l-1} - v_l) is added term by term in place, and backward

    G_l = i g + G_{l+1},    dv = dv' - G_l - (p + d) g,    dv_0 = dv_0' + beta (G_l + p g),    d g

where G is the gradient of the sum, dv' and dv_0' are those that the layers above send back, and
the last is that of v_{l-1}. Each tensor is written once.
"""
# B batch, H heads, Hkv value heads, N tokens, D head dim

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from pidformer.control.gains import Gains, PIDGains
from pidformer.control.pid import PIDState
from pidformer.ops import dispatch
from pidformer.ops.launch import PLAIN

_WIDE = (torch.float32, torch.float64)
"""Narrower numbers are widened and rounded once, by `pid_step`."""


def takes(out: Tensor, value: Tensor, state: PIDState | None, gains: Gains) -> bool:
    """Whether the formulas here compute this, and nobody looks at, traces or transforms it."""
    if state is None or type(gains) is not PIDGains or out.dtype not in _WIDE:
        return False  # the cheapest first: this is asked in every layer
    if torch.compiler.is_compiling() or is_in_torch_dispatch_mode() or dispatch.is_transformed():
        return False
    shape, dtype = value.shape, out.dtype
    for x in (value, *state):
        if x.dtype is not dtype or x.shape != shape or type(x) not in PLAIN:
            return False
    return True


def control_forward(*inputs: Any, is_ours: bool = False) -> tuple[Tensor, Tensor]:
    """(u, new integral if it `has_sum`), of what `epilogue.control_forward` takes.

    `is_ours`: nobody else holds `out`, so that u may take its place.
    """
    out, value, initial, previous, integral, _gains, p, i, d, beta, has_sum = inputs
    change = torch.sub(value, initial, alpha=beta)  # -e
    total = None
    if has_sum:
        total = change.neg() if integral is None else integral - change
    heads = value.shape[-3]
    grouped = out if out.shape[-3] == heads else out.unflatten(-3, (heads, -1))

    def by_group(x: Tensor) -> Tensor:
        return x if grouped is out else x.unsqueeze(-3)

    u = grouped if is_ours else grouped.clone() if not p else None
    if u is None:
        u = grouped.add(by_group(change), alpha=-p)
    elif p:
        u.add_(by_group(change), alpha=-p)
    if i and total is not None:
        u.add_(by_group(total), alpha=i)
    if d:
        torch.sub(initial if previous is None else previous, value, out=change)
        u.add_(by_group(change), alpha=d)
    return u if grouped is out else u.flatten(-4, -3), total  # type: ignore[return-value]


def control_backward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of value, integral, v_0 and v_{l-1}, of what `epilogue.control_backward` takes."""
    grad, grad_integral, grad_value, grad_initial, _gains, *options = inputs
    is_second, _writes_sum, kv_heads, p, i, d, beta = options
    if grad.shape[-3] != kv_heads:
        shape = grad.shape  # `reshape`, as batches of gradients know no `unflatten`
        grad = grad.reshape(*shape[:-3], kv_heads, -1, *shape[-2:]).sum(-3)
    total = grad_integral
    if i:
        total = grad * i if total is None else torch.add(total, grad, alpha=i)
    d_error = grad * p if total is None else torch.add(total, grad, alpha=p)
    if grad_initial is None:
        d_initial = d_error * beta
    else:
        d_initial = torch.add(grad_initial, d_error, alpha=beta)
    d_previous = None
    if is_second:
        d_initial.add_(grad, alpha=d)
    else:
        d_previous = grad * d
    d_value = d_error.add_(grad, alpha=d).neg_()
    if grad_value is not None:
        d_value.add_(grad_value)
    return d_value, total, d_initial, d_previous  # type: ignore[return-value]
