"""Rows of a benchmark, what their records say, and suites of them in YAML (docs/robustness.md)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from pidformer import ranks
from pidformer.data import ImageSource, open_images
from pidformer.data.benchmarks import missing_corruptions, open_corrupted, open_shift
from pidformer.data.imagenet import subset_classes
from pidformer.data.views import restrict
from pidformer.errors import InputError, check_known, cut, shortened, unknown
from pidformer.evaluation.progress import Watch
from pidformer.evaluation.setup import Setup
from pidformer.fields import number_range, read_yaml, typed
from pidformer.ledger import Found
from pidformer.nn import evaluating
from pidformer.results import as_text
from pidformer.robustness.attack import Attack
from pidformer.robustness.attacks import Normalized
from pidformer.robustness.corruptions import CORRUPTIONS, SEVERITIES, Corruption
from pidformer.robustness.evaluate import accuracy, check_logits
from pidformer.robustness.ood import confidence, ood_scores
from pidformer.robustness.queries import logits_of
from pidformer.robustness.registry import THREATS, threat_from
from pidformer.robustness.threat import Threat, pixel_text


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
    200 classes of ImageNet-O, on both sides. A limit takes as large a share of those outside:
    precision depends on how many of all they are.
    """

    name: str
    set: str

    def missing(self, setup: Setup) -> str | None:
        if self.set == "ood":
            return setup.absent_split("ood")
        return setup.absent(self.set) or setup.foreign(subset_classes(self.set))

    def about(self, setup: Setup) -> dict[str, Any]:
        return {"threat": self.set if setup.limit is None else f"{self.set}, sampled"}

    def measure(self, setup: Setup, watch: Watch) -> Found:
        if self.set == "ood":
            inside, outputs = setup.source, None
            outside: ImageSource = open_images(setup.location, "ood")
        else:
            classes = subset_classes(self.set)
            inside, outputs = restrict(setup.source, classes), setup.outputs(classes)
            outside = open_shift(setup.place(self.set))
        outside = setup.sampled_alike(outside)
        sure_inside = self._confidence(setup, inside, outputs, watch)
        sure_outside = self._confidence(setup, outside, outputs, watch)
        metrics = ood_scores(sure_inside, sure_outside, seed=setup.seed)
        metrics |= {"images": float(len(sure_inside)), "outside": float(len(sure_outside))}
        return metrics, {}

    def _confidence(
        self, setup: Setup, source: ImageSource, outputs: list[int] | None, watch: Watch
    ) -> Tensor:
        kept = None if outputs is None else torch.tensor(outputs, device=setup.device)

        def sure(batch: tuple[Tensor, Tensor], place: int) -> Tensor:
            images, labels = batch
            with evaluating(setup.model), torch.no_grad():
                logits = logits_of(setup.model, images)
            check_logits(logits, labels.clamp(min=0))
            watch(place + len(images))
            return confidence(logits, kept).cpu()

        return torch.cat(ranks.spread(setup.batches(source), sure))


SHIPPED = Path(__file__).parent / "suites"
_SHIFTED = ("imagenet-a", "imagenet-r")
_CORRUPTED = ("imagenet-c", "tiny-imagenet-c", "cifar-10-c", "cifar-100-c")
_OUTSIDE = ("ood", "imagenet-o")
KINDS = ("clean", *THREATS, "corruptions", *_SHIFTED, *_CORRUPTED, *_OUTSIDE)
"""What a row may be."""


@dataclass(frozen=True)
class Suite:
    name: str
    description: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class _SuiteFile:
    """A suite as its file says it."""

    rows: tuple[Any, ...] = ()
    description: str = ""


@dataclass(frozen=True)
class _Corruptions:
    """The settings of a suite's corruptions; those of the image are `Corruption`'s."""

    names: tuple[str, ...] = CORRUPTIONS
    severities: tuple[int, ...] = SEVERITIES
    constants: int | None = None
    jpeg_quality: int | None = None


def shipped_suites() -> list[str]:
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def load_suite(where: str | Path) -> Suite:
    """A suite from a YAML file, or one of those shipped by name."""
    path = Path(where) if Path(where).is_file() else SHIPPED / f"{where}.yaml"
    if not path.is_file():
        if Path(where).suffix in (".yaml", ".yml"):
            raise InputError(f"no suite at {where}; shipped are {', '.join(shipped_suites())}")
        raise unknown("suite", str(where), shipped_suites())
    fields = read_yaml(path, "suite")
    if not isinstance(fields, Mapping) or not fields.get("rows"):
        raise InputError(f"suite {path} must hold a list of `rows`; see docs/robustness.md")
    given = typed(_SuiteFile, fields, key_of=f"key of suite {path}")
    rows = tuple(row for item in given.rows for row in _rows(item, path))
    if not rows:
        raise InputError(f"suite {path} has no rows: a row of corruptions names none")
    names = [row.name for row in rows]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InputError(
            f"{path} has two rows {sorted(twice)[0]!r}; rename one: - pgd: {{name: pgd-50, ...}}"
        )
    return Suite(path.stem, given.description, rows)


def curve_suite(attacks: Sequence[str], budgets: Sequence[float]) -> Suite:
    """The clean set, and each attack at each budget: rows "fgsm@2/255"."""
    rows: list[Row] = [UnderThreat("clean", None)]
    for attack in attacks:
        for eps in budgets:
            rows.append(UnderThreat(f"{attack}@{pixel_text(eps)}", threat_from(attack, eps=eps)))
    return Suite("curve", "accuracy over the budget", tuple(rows))


MOST_BUDGETS = 1000


def read_budgets(text: str) -> list[float]:
    """Budgets in 1/255: "0:8:1" is 0, 1, ... 8; "1,2,4" a list.

    >>> [round(255 * eps) for eps in read_budgets("0:4:2")]
    [0, 2, 4]
    """
    levels = number_range(text, MOST_BUDGETS)
    if not levels or not all(0 <= level <= 255 for level in levels):
        raise InputError(
            "budgets must be FIRST:LAST:STEP or a list, in units of 1/255 (0:8:1), got "
            f"{shortened(text)}"
        )
    if len(levels) > MOST_BUDGETS:
        raise InputError(f"at most {MOST_BUDGETS} budgets can be shown, got {shortened(text)}")
    return [level / 255 for level in levels]


def _rows(item: Any, path: Path) -> Iterator[Row]:
    kind: Any = item
    settings: Any = {}
    if isinstance(item, Mapping) and len(item) == 1:
        ((kind, settings),) = item.items()
    if not isinstance(kind, str) or not isinstance(settings, Mapping | None):
        raise InputError(
            f"a row of {path} must be NAME or NAME: {{settings}}, got {shortened(item)}"
        )
    kind, settings = kind.lower(), {str(key): value for key, value in (settings or {}).items()}
    check_known(f"row of suite {path}", kind, KINDS)
    name = str(settings.pop("name", kind))
    if kind == "corruptions":
        yield from _corruptions(settings)
    elif kind in THREATS:
        yield UnderThreat(name, threat_from(kind, **settings))
    elif settings:
        given = cut(", ".join(map(str, settings)))
        raise InputError(f"row {kind} of {path} takes no settings, got {given}")
    elif kind == "clean":
        yield UnderThreat(name, None)
    elif kind in _SHIFTED:
        yield ShiftedSet(name, kind)
    elif kind in _CORRUPTED:
        yield from (CorruptedSet(kind, c, s) for c in CORRUPTIONS for s in SEVERITIES)
    else:
        yield OutOfDistribution(name, kind)


def _corruptions(settings: dict[str, Any]) -> Iterator[Row]:
    given = typed(_Corruptions, settings, "corruptions", key_of="setting")
    for name in given.names:
        for severity in given.severities:
            corruption = Corruption(
                name=name,
                severity=severity,
                constants=given.constants,
                jpeg_quality=given.jpeg_quality,
            )
            yield UnderThreat(f"corruption/{name}/{severity}", corruption)
