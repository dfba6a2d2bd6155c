"""The controller in the state dict of a converted timm model, so that no plain one takes it."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pidformer.control.feedback import DiscreteGains, Feedback, as_feedback
from pidformer.control.gains import PIDGains
from pidformer.convert.conversion import Conversion

MARK = "pidformer._extra_state"
"""The key that a converted model's state dict has beside those of timm."""
_PLAIN = DiscreteGains().to_dict() | Feedback().to_dict()
_FORMS = ("explicit", "implicit")


class Mark(nn.Module):
    """One row per layer: the numbers of its law, then 1 if the first layer is controlled.

    Written with the weights and compared where they are loaded, but no weight itself: what casts,
    averages or broadcasts weights cannot change a model's gains.
    """

    def __init__(self, conversion: Conversion) -> None:
        super().__init__()
        self.conversion = conversion

    def get_extra_state(self) -> Tensor:
        first = float(self.conversion.first_layer == "controlled")
        laws = [_PLAIN | gains.to_dict() for gains in self.conversion.gains]
        rows = [
            [_FORMS.index(x) if isinstance(x, str) else x for x in law.values()] for law in laws
        ]
        return torch.tensor([[*row, first] for row in rows], dtype=torch.float32, device="cpu")

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        """Compare; a warning names both controllers, and the model's own stays."""
        own, saved = self.get_extra_state(), state_dict.get(f"{prefix}_extra_state")
        if saved is None:
            warnings.warn(
                "these weights do not say which controller they were trained with; the model that "
                f"takes them keeps {self.conversion.model_gains}",
                stacklevel=2,
            )
        elif not isinstance(saved, Tensor) or saved.shape != own.shape:
            *_, errors = rest
            errors.append(f"{prefix}_extra_state is no controller of {len(own)} layers")
        elif (differs := _differing(saved.detach().cpu(), own)).any():
            layer = int(differs.nonzero()[0])
            warnings.warn(
                f"these weights were saved with {_shown(saved[layer])} in layer {layer}; the model "
                f"that takes them has {_shown(own[layer])}, and keeps it",
                stacklevel=2,
            )

    def extra_repr(self) -> str:
        return f"first_layer={self.conversion.first_layer!r}"


def marks(state: Mapping[str, Any]) -> dict[str, Any]:
    """What of a state dict names a controller and is no weight."""
    return {name: value for name, value in state.items() if name.endswith(MARK)}


def unmarked(state: Mapping[str, Any]) -> dict[str, Any]:
    """The rest of it: the weights."""
    return {name: value for name, value in state.items() if not name.endswith(MARK)}


def _differing(saved: Tensor, own: Tensor) -> Tensor:
    """Layers whose rows differ by more than the rounding of a cast."""
    rounding = 4 * torch.finfo(saved.dtype).eps if saved.is_floating_point() else 0.0
    return ~torch.isclose(saved.float(), own, rtol=rounding).all(1)


def _shown(row: Tensor) -> str:
    *numbers, first = (float(f"{number:.3g}") for number in row.tolist())
    law: dict[str, Any] = dict(zip(_PLAIN, numbers, strict=True))
    law["derivative"] = _FORMS[round(law["derivative"])]
    fields = {k: v for k, v in law.items() if v != _PLAIN[k] or k in PIDGains().to_dict()}
    return f"{as_feedback(fields)}{' (first layer controlled)' if first else ''}"
