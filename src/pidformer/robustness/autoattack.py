"""AutoAttack (Croce & Hein 2020): four attacks without a knob, each on what is left."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import Tensor

from pidformer.errors import InputError, shortened
from pidformer.robustness.apgd import APGD
from pidformer.robustness.attack import Attack, Bounds, Run, on_survivors
from pidformer.robustness.draws import Draws
from pidformer.robustness.fab import FAB
from pidformer.robustness.geometry import Norm, check_ball
from pidformer.robustness.square import Square
from pidformer.robustness.threat import Model


@dataclass(frozen=True, kw_only=True, repr=False)
class AutoAttack(Attack):
    """APGD on the cross entropy, APGD on the targeted DLR loss, targeted FAB, Square.

    Each attacks the images that are still classified right, so the accuracy left is that under the
    worst of the four for every image. The version "standard" has 100 steps, 9 targets and 5000
    queries, in either norm. Images that nothing breaks come back unchanged.
    """

    eps: float = 3 / 255
    norm: Norm = "Linf"
    version: Literal["standard"] = "standard"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ball(self.eps, self.norm)
        if self.version != "standard":
            raise InputError(
                f"AutoAttack has the version 'standard' only, got {shortened(self.version)}"
            )

    @property
    def stages(self) -> tuple[Attack, ...]:
        """The attacks, in their order."""
        return (
            APGD(eps=self.eps, norm=self.norm, loss="ce"),
            APGD(eps=self.eps, norm=self.norm, loss="dlr", targets=9),
            FAB(eps=self.eps, norm=self.norm, targets=9),
            Square(eps=self.eps, norm=self.norm),
        )

    def perturb(
        self, model: Model, images: Tensor, labels: Tensor, draws: Draws, bounds: Bounds
    ) -> Tensor:
        """Each stage on the images that the stages before did not break."""

        def run(stage: Attack, images: Tensor, labels: Tensor, draws: Draws) -> Tensor:
            return stage.perturb(model, images, labels, draws, bounds)

        runs: list[Run] = [partial(run, stage) for stage in self.stages]
        return on_survivors(model, images, labels, draws, runs)
