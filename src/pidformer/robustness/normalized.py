"""An attack on the model's own input, as older papers report it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pidformer.errors import InputError
from pidformer.robustness.attack import UNBOUNDED, Attack, under_attack
from pidformer.robustness.draws import Draws
from pidformer.robustness.threat import Model, check_images


@dataclass(frozen=True)
class Normalized:
    """`threat` on z = (x - mean) / std, its budget in units of z, without the bounds of a pixel.

    Images go in as pixels in [0, 1] and come out as pixels, z std + mean, but may leave [0, 1]. In
    pixels the budget is eps std: 3/255 is about 0.67/255 with the numbers of ImageNet. So this is
    a much weaker threat than `threat` itself, and no picture could show it; the numbers of the
    paper's Table 1 imply it (docs/attacks.md). `mean` and `std` are those of the model.
    """

    threat: Attack
    mean: Sequence[float]
    std: Sequence[float]

    def __post_init__(self) -> None:
        if not isinstance(self.threat, Attack):
            raise InputError(f"only an attack has a domain to change, got {self.threat!r}")
        if len(self.mean) != len(self.std) or not all(scale > 0 for scale in self.std):
            raise InputError(
                f"mean and std need one number per channel, std > 0; got {self.mean} and {self.std}"
            )
        object.__setattr__(self, "mean", tuple(self.mean))
        object.__setattr__(self, "std", tuple(self.std))

    def __call__(
        self, model: Model, images: Tensor, labels: Tensor, *, seed: int = 0, offset: int = 0
    ) -> Tensor:
        """The attacked images, as pixels that may lie outside [0, 1]."""
        check_images(images, labels)
        if images.shape[1] != len(self.mean):
            raise InputError(f"images must have {len(self.mean)} channels, got {images.shape[1]}")
        if not self.threat.eps:
            return images.clone()
        with under_attack(model), torch.inference_mode(False):
            mean = torch.tensor(self.mean, dtype=images.dtype, device=images.device)[:, None, None]
            std = torch.tensor(self.std, dtype=images.dtype, device=images.device)[:, None, None]

            def inner(z: Tensor) -> Tensor:
                return model(z * std + mean)

            draws = Draws.of_batch(images, seed, offset)
            attacked = self.threat.within(UNBOUNDED, inner, (images - mean) / std, labels, draws)
            return attacked * std + mean
