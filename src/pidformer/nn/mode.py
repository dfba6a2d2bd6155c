"""Evaluation mode for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    """Put every module of `model` in evaluation mode, and each back in its own mode at the end.

    Anything callable may be given; what is not a module has no mode and is left alone.
    """
    modules = model.modules() if isinstance(model, nn.Module) else ()
    were_training = [module for module in modules if module.training]  # setting one takes a while
    try:
        for module in were_training:
            module.training = False
        yield
    finally:
        for module in were_training:
            module.training = True
