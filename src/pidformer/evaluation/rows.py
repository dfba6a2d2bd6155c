"""Rows of a benchmark: what is measured, on which images, and what a record says of it."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from pidformer.data import ImageSource, open_images
from pidformer.data.benchmarks import missing_corruptions, open_corrupted, open_shift
from pidformer.data.imagenet import subset_classes
from pidformer.data.views import restrict
from pidformer.errors import InputError
from pidformer.evaluation.progress import Watch
from pidformer.evaluation.setup import Setup
from pidformer.ledger import Found
from pidformer.nn import evaluating
from pidformer.results import as_text
from pidformer.robustness.attack import Attack, logits_of
from pidformer.robustness.evaluate import accuracy, check_logits
from pidformer.robustness.normalized import Normalized
from pidformer.robustness.ood import confidence, ood_scores
from pidformer.robustness.threat import Threat


class Row(Protocol):
    """One line of the table."""

    @property
    def name(self) -> str: ...
    def missing(self, setup: Setup) -> str | None:
        """Why it cannot be measured here; None if it can."""
        ...

    def about(self, setup: Setup) -> dict[str, Any]:
        """What its record says beside the model and the data."""
        ...

    def measure(self, setup: Setup, watch: Watch) -> Found: ...


@dataclass(frozen=True)
class UnderThreat:
    """The clean set behind an attack or a corruption; None is the clean set itself."""

    name: str
    threat: Threat | None

    def missing(self, setup: Setup) -> str | None:
        return None

    def about(self, setup: Setup) -> dict[str, Any]:
        eps = self.threat.eps if isinstance(self.threat, Attack) else None
        return {"threat": as_text(self._threat(setup)), "domain": setup.domain, "eps": eps}

    def measure(self, setup: Setup, watch: Watch) -> Found:
        threat = self._threat(setup)
        return accuracy(setup.model, setup.clean, threat, seed=setup.seed, watch=watch)

    def _threat(self, setup: Setup) -> Threat | None:
        if setup.domain == "pixel" or not isinstance(self.threat, Attack):
            return self.threat
        mean, std = setup.scale
        return Normalized(self.threat, mean, std)


@dataclass(frozen=True)
class ShiftedSet:
    """ImageNet-A or -R: other pictures of 200 of the classes; only these outputs count."""

    name: str
    set: str

    def missing(self, setup: Setup) -> str | None:
        return setup.absent(self.set) or setup.foreign(subset_classes(self.set))

    def about(self, setup: Setup) -> dict[str, Any]:
        return {"threat": self.set, "data": str(setup.place(self.set))}

    def measure(self, setup: Setup, watch: Watch) -> Found:
        source = open_shift(setup.place(self.set))
        batches = setup.batches(setup.in_model_classes(source))
        outputs = setup.outputs(source.classes)
        return accuracy(setup.model, batches, classes=outputs, watch=watch)


@dataclass(frozen=True)
class CorruptedSet:
    """One corruption at one severity of a published set, as its files are."""

    set: str
    corruption: str
    severity: int

    @property
    def name(self) -> str:
        return f"{self.set}/{self.corruption}/{self.severity}"

    def missing(self, setup: Setup) -> str | None:
        if (reason := setup.absent(self.set)) is not None:
            return reason
        lacking = missing_corruptions(setup.place(self.set))
        if lacking and not setup.allow_missing:
            raise InputError(
                f"{setup.place(self.set)} lacks {', '.join(lacking)}; complete it, or evaluate "
                "the rest with --allow-missing"
            )
        is_lacking = {self.corruption, f"{self.corruption}/{self.severity}"} & set(lacking)
        return f"{setup.place(self.set)} lacks it" if is_lacking else None

    def about(self, setup: Setup) -> dict[str, Any]:
        return {"threat": self.name, "data": str(setup.place(self.set))}

    def measure(self, setup: Setup, watch: Watch) -> Found:
        source = open_corrupted(setup.place(self.set), self.corruption, self.severity)
        return accuracy(setup.model, setup.batches(setup.in_model_classes(source)), watch=watch)


@dataclass(frozen=True)
class OutOfDistribution:
    """How well low confidence tells images of no class from those of the clean set.

    "ood" takes the split of that name beside the clean set; "imagenet-o" follows its protocol: the
    200 classes of ImageNet-O, on both sides.
    """

    name: str
    set: str

    def missing(self, setup: Setup) -> str | None:
        if self.set == "ood":
            return setup.absent_split("ood")
        return setup.absent(self.set) or setup.foreign(subset_classes(self.set))

    def about(self, setup: Setup) -> dict[str, Any]:
        return {"threat": self.set}

    def measure(self, setup: Setup, watch: Watch) -> Found:
        if self.set == "ood":
            inside, outputs = setup.source, None
            outside: ImageSource = open_images(setup.location, "ood")
        else:
            classes = subset_classes(self.set)
            inside, outputs = restrict(setup.source, classes), setup.outputs(classes)
            outside = open_shift(setup.place(self.set))
        sure_inside = self._confidence(setup, inside, outputs, watch)
        sure_outside = self._confidence(setup, outside, outputs, watch)
        metrics = ood_scores(sure_inside, sure_outside, seed=setup.seed)
        metrics |= {"images": float(len(sure_inside)), "outside": float(len(sure_outside))}
        return metrics, {}

    def _confidence(
        self, setup: Setup, source: ImageSource, outputs: list[int] | None, watch: Watch
    ) -> Tensor:
        found, done = [], 0
        kept = None if outputs is None else torch.tensor(outputs, device=setup.device)
        for images, labels in setup.batches(source):
            with evaluating(setup.model), torch.no_grad():
                logits = logits_of(setup.model, images)
            check_logits(logits, labels.clamp(min=0))
            found.append(confidence(logits, kept).cpu())
            done += len(images)
            watch(done)
        return torch.cat(found)
