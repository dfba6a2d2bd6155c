"""Rows of a benchmark: what is measured, on which images, and what a record says of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from pidformer.data import ImageSource, open_images
from pidformer.data.benchmarks import missing_corruptions, open_corrupted, open_shift
from pidformer.data.imagenet import subset_classes
from pidformer.data.views import restrict
from pidformer.errors import InputError
from pidformer.nn import evaluating
from pidformer.robustness.attack import Attack, logits_of
from pidformer.robustness.bench import Bench
from pidformer.robustness.corruptions import Corruption
from pidformer.robustness.evaluate import accuracy, check_logits
from pidformer.robustness.normalized import Normalized
from pidformer.robustness.ood import confidence, ood_scores
from pidformer.robustness.threat import Threat

Watch = Callable[[int], None]
Found = tuple[dict[str, float], dict[str, Any]]
"""Metrics and details of a record."""


class Row(Protocol):
    """One line of the table."""

    @property
    def name(self) -> str: ...
    def missing(self, bench: Bench) -> str | None:
        """Why it cannot be measured here; None if it can."""
        ...

    def about(self, bench: Bench) -> dict[str, Any]:
        """What its record says beside the model and the data."""
        ...

    def measure(self, bench: Bench, watch: Watch) -> Found: ...


@dataclass(frozen=True)
class UnderThreat:
    """The clean set behind an attack or a corruption; None is the clean set itself."""

    name: str
    threat: Attack | Corruption | None

    def missing(self, bench: Bench) -> str | None:
        return None

    def about(self, bench: Bench) -> dict[str, Any]:
        eps = self.threat.eps if isinstance(self.threat, Attack) else None
        return {"threat": repr(self._threat(bench)), "domain": bench.domain, "eps": eps}

    def measure(self, bench: Bench, watch: Watch) -> Found:
        threat = self._threat(bench)
        return accuracy(bench.model, bench.clean, threat, seed=bench.seed, watch=watch)

    def _threat(self, bench: Bench) -> Threat | Corruption | None:
        if bench.domain == "pixel" or not isinstance(self.threat, Attack):
            return self.threat
        mean, std = bench.scale
        return Normalized(self.threat, mean, std)


@dataclass(frozen=True)
class ShiftedSet:
    """ImageNet-A or -R: other pictures of 200 of the classes; only these outputs count."""

    name: str
    set: str

    def missing(self, bench: Bench) -> str | None:
        return bench.absent(self.set) or bench.foreign(subset_classes(self.set))

    def about(self, bench: Bench) -> dict[str, Any]:
        return {"threat": self.set, "data": str(bench.place(self.set))}

    def measure(self, bench: Bench, watch: Watch) -> Found:
        source = open_shift(bench.place(self.set))
        batches = bench.batches(bench.in_model_classes(source))
        outputs = bench.outputs(source.classes)
        return accuracy(bench.model, batches, classes=outputs, watch=watch)


@dataclass(frozen=True)
class CorruptedSet:
    """One corruption at one severity of a published set, as its files are."""

    set: str
    corruption: str
    severity: int

    @property
    def name(self) -> str:
        return f"{self.set}/{self.corruption}/{self.severity}"

    def missing(self, bench: Bench) -> str | None:
        if (reason := bench.absent(self.set)) is not None:
            return reason
        lacking = missing_corruptions(bench.place(self.set))
        if lacking and not bench.allow_missing:
            raise InputError(
                f"{bench.place(self.set)} lacks {', '.join(lacking)}; complete it, or evaluate "
                "the rest with --allow-missing"
            )
        is_lacking = {self.corruption, f"{self.corruption}/{self.severity}"} & set(lacking)
        return f"{bench.place(self.set)} lacks it" if is_lacking else None

    def about(self, bench: Bench) -> dict[str, Any]:
        return {"threat": self.name, "data": str(bench.place(self.set))}

    def measure(self, bench: Bench, watch: Watch) -> Found:
        source = open_corrupted(bench.place(self.set), self.corruption, self.severity)
        return accuracy(bench.model, bench.batches(bench.in_model_classes(source)), watch=watch)


@dataclass(frozen=True)
class OutOfDistribution:
    """How well low confidence tells images of no class from those of the clean set.

    "ood" takes the split of that name beside the clean set; "imagenet-o" follows its protocol: the
    200 classes of ImageNet-O, on both sides.
    """

    name: str
    set: str

    def missing(self, bench: Bench) -> str | None:
        if self.set == "ood":
            return bench.absent_split("ood")
        return bench.absent(self.set) or bench.foreign(subset_classes(self.set))

    def about(self, bench: Bench) -> dict[str, Any]:
        return {"threat": self.set}

    def measure(self, bench: Bench, watch: Watch) -> Found:
        if self.set == "ood":
            inside, outputs = bench.source, None
            outside: ImageSource = open_images(bench.location, "ood")
        else:
            classes = subset_classes(self.set)
            inside, outputs = restrict(bench.source, classes), bench.outputs(classes)
            outside = open_shift(bench.place(self.set))
        sure_inside = self._confidence(bench, inside, outputs, watch)
        sure_outside = self._confidence(bench, outside, outputs, watch)
        metrics = ood_scores(sure_inside, sure_outside, seed=bench.seed)
        metrics |= {"images": float(len(sure_inside)), "outside": float(len(sure_outside))}
        return metrics, {}

    def _confidence(
        self, bench: Bench, source: ImageSource, outputs: list[int] | None, watch: Watch
    ) -> Tensor:
        found, done = [], 0
        kept = None if outputs is None else torch.tensor(outputs, device=bench.device)
        for images, labels in bench.batches(source):
            with evaluating(bench.model), torch.no_grad():
                logits = logits_of(bench.model, images)
            check_logits(logits, labels.clamp(min=0))
            found.append(confidence(logits, kept).cpu())
            done += len(images)
            watch(done)
        return torch.cat(found)
