"""Operations at which the host waits for what a device has computed, counted on any device."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "is_nonzero"}


class Waits(TorchDispatchMode):
    """`names` of all operations, and the `waits` among them, picking by a mask included."""

    def __init__(self):
        super().__init__()
        self.names, self.waits = set(), []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        picks = args[1] if name in ("index", "index_put", "index_put_") else ()
        is_by_mask = any(pick is not None and pick.dtype == torch.bool for pick in picks)
        if is_by_mask or name in WAITING:
            self.waits.append(name)
        self.names.add(name)
        return function(*args, **(kwargs or {}))
