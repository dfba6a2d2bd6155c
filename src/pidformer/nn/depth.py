"""The one loop over depth, and evaluation mode for a while."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pidformer.control.pid import FirstState, PIDState, lean_state
from pidformer.nn.gains import terms_of
from pidformer.ops.dispatch import Kernels, kernels, selected

Observer = Callable[[int, Tensor, PIDState | None], None]


def scan_blocks(
    blocks: Iterable[nn.Module],
    x: Tensor,
    state: PIDState | None = None,
    *,
    checkpointing: bool = False,
    observe: Observer | None = None,
    network: Iterable[nn.Module] | None = None,
    **block_options: Any,
) -> tuple[Tensor, PIDState | None]:
    """Run `x, state = block(x, state)` over all blocks; every model and analysis goes through here.

    A block without a controller returns x alone, and the state passes through.

    `checkpointing` recomputes each block in the backward pass (non-reentrant, so the state is an
    ordinary input and gradients stay right). `observe(depth, x, state)` sees each block's output.
    `network` are all blocks that the state will meet: what none of them reads is then not kept, no
    sum where none has an integral. An observer is shown all of it.
    """
    terms = None
    if network is not None and observe is None:
        terms = {term for block in network for term in terms_of(block)}
    checkpointed: Callable[..., Any] = checkpoint
    if checkpointing and not torch.compiler.is_compiling():
        # Recomputed on the same kernels, even where the backward runs after a block of `kernels`.
        checkpointed = partial(checkpoint, context_fn=partial(_same_kernels, selected()))
    for depth, block in enumerate(blocks):
        if terms is not None and type(state) is FirstState:
            state = lean_state(state, terms)
        if checkpointing:
            out = checkpointed(block, x, state, use_reentrant=False, **block_options)
        else:
            out = block(x, state, **block_options)
        x, state = out if isinstance(out, tuple) else (out, state)
        if observe is not None:
            observe(depth, x, state)
    return x, state


def _same_kernels(name: Kernels) -> tuple[AbstractContextManager[None], ...]:
    """What `checkpoint` enters around a block, and around its recomputation."""
    return nullcontext(), kernels(name)


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    """Put every module of `model` in evaluation mode, and each back in its own mode at the end.

    Anything callable may be given; what is not a module has no mode and is left alone.
    """
    were_training = [m for m in modules_of(model) if m.training]  # setting one takes a while
    try:
        for module in were_training:
            module.training = False
        yield
    finally:
        for module in were_training:
            module.training = True


def modules_of(model: object) -> list[nn.Module]:
    """`model.modules()`, but faster: a one-step attack would notice."""
    found: dict[nn.Module, None] = {}
    ahead: list[Any] = [model] if isinstance(model, nn.Module) else []
    while ahead:
        module = ahead.pop()
        if module is not None and module not in found:
            found[module] = None
            ahead += module._modules.values()
    return list(found)
