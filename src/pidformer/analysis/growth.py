"""Transient growth: the idealised recursion under the attention matrices a model really has.

A radius below one says what a layer repeated for ever would do. A network has a few layers, each
with its own matrix, and those matrices are far from normal: what a perturbation of v_0 becomes in
between is the norm of a product.
"""
# B images, H heads, N tokens, L layers

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from pidformer.analysis.controllers import Controllers
from pidformer.control.feedback import acting_law
from pidformer.control.pid import PIDState, pid_step
from pidformer.control.stability import closed_loop
from pidformer.errors import InputError


class Growth(NamedTuple):
    """Infinity norms by depth: the largest change of any token for a change of size one."""

    values: Tensor
    """|T_l| with v_l = T_l v_0 in the recursion, l = 1 .. L: (B, H, L)."""
    state: Tensor
    """|M_l ... M_1|, closed-loop matrices from the first controlled layer on: (B, H, layers)."""
    bound: Tensor
    """|M_l| ... |M_1|, what the layers' own norms allow: (B, H, layers)."""


def transient_growth(matrices: Iterable[Tensor], controllers: Controllers) -> Growth:
    """Growth under `matrices`, one (B, H, N, N) per layer. Without control every norm is 1."""
    values: list[Tensor] = []
    states: list[Tensor] = []
    bounds: list[Tensor] = []
    value: Tensor | None = None
    state: PIDState | None = None
    product: Tensor | None = None
    kept = {  # the part of the state that some gain reads
        "has_integral": any(law.i > 0 for law in controllers.acting),
        "has_previous": any(acting_law(law).d > 0 for law in controllers.acting),
    }
    for depth, matrix in enumerate(matrices):
        matrix = matrix.double()
        if value is None:
            eye = torch.eye(matrix.shape[-1], dtype=torch.float64, device=matrix.device)
            value = eye.expand_as(matrix)
        if matrix.shape != value.shape:
            raise InputError(
                f"layers with attention {tuple(value.shape)} and {tuple(matrix.shape)} are not one "
                "recursion; certify the parts of the model (encoder, decoder) by themselves"
            )
        if controllers.layers:
            kernel, gains, initial = controllers.loop(depth, matrix)
            control, state = pid_step(value, state, gains, controllers.first_layer)
            value = kernel @ value + control + initial
            step = closed_loop(kernel, gains, **kept)
        else:
            value, step = matrix @ value, matrix
        values.append(_norm(value))
        if controllers.layers and depth == 0 and not controllers.acts(0):
            continue  # it sets the reference; the loop closes with the next layer
        product = step if product is None else step @ product
        states.append(_norm(product))
        bounds.append(_norm(step) * (bounds[-1] if bounds else 1))
    shape = (*values[0].shape, 0)
    return Growth(
        torch.stack(values, -1),
        torch.stack(states, -1) if states else values[0].new_empty(shape),
        torch.stack(bounds, -1) if bounds else values[0].new_empty(shape),
    )


def _norm(matrix: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(matrix, ord=torch.inf)
