"""GELU of x + bias in one pass, forward and backward, with the bias's gradient in the same one.

In tensors of x's size, forward reads x and writes the output (2); backward reads g and x and writes
dx (3). A sum over all rows of dx, which a linear layer with a bias needs, would read it again (1).
No GPU has run it yet, so it is taken only where our kernels are asked for by name ("triton").
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from pidformer.ops import dispatch
from pidformer.ops.dispatch import Tiles, power_of_two
from pidformer.ops.launch import KernelOp, launch

CHUNK = 128
"""Rows of a program: their sum is one row of what is left to add for the bias's gradient."""
TILES = Tiles(rows=16, keys=256, warps=4, stages=2)
"""Rows and columns a step."""


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """gelu(x + bias) in the type of x, for x (..., C) and bias (C); on our kernel if asked for."""
    if not _takes(x):
        return F.gelu(x + bias).to(x.dtype)
    if not dispatch.needs_grad(x, bias):
        return gelu_forward(x, bias)
    return _BiasGelu.apply(x, bias)


def _takes(x: Tensor) -> bool:
    """Whether our kernel is asked for, and takes such a tensor: two bytes a number."""
    if dispatch.selected() != "triton" or x.dtype not in (torch.bfloat16, torch.float16):
        return False
    if not torch.compiler.is_compiling() and is_traceable_wrapper_subclass(x):
        return False
    return x.numel() > 0 and dispatch.is_usable(x)


class _BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, bias)
        return gelu_forward(x, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, bias = ctx.saved_tensors
        d_x, parts = gelu_backward(grad, x, bias)
        return d_x, parts.sum(0).to(bias.dtype)


@partial(KernelOp, "gelu")
def gelu_forward(x: Tensor, bias: Tensor) -> Tensor:
    """gelu(x + bias); without autograd, which `bias_gelu` adds."""
    from pidformer.ops import gelu_kernels

    x = x.contiguous()
    out = torch.empty_like(x)
    _launch(gelu_kernels.gelu_forward, x, (x, bias, out))
    return out


@partial(KernelOp, "gelu_backward")
def gelu_backward(grad: Tensor, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of x, and parts (chunks, C) of the bias's."""
    from pidformer.ops import gelu_kernels

    x = x.contiguous()
    width = x.shape[-1]
    chunks = -(-(x.numel() // width) // CHUNK)
    d_x, parts = torch.empty_like(x), x.new_empty((chunks, width), dtype=torch.float32)
    _launch(gelu_kernels.gelu_backward, x, (grad.contiguous(), x, bias, d_x, parts))
    return d_x, parts


def _launch(kernel: Any, x: Tensor, tensors: tuple[Tensor, ...]) -> None:
    width = x.shape[-1]
    rows, columns = x.numel() // width, min(TILES.keys, power_of_two(width))
    programs = -(-rows // CHUNK) * -(-width // columns)
    constants = (width, CHUNK, TILES.rows, columns)
    launch(kernel, programs, tensors, (), (), (rows,), constants, TILES)
