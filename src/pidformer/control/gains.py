"""The four numbers of the controller."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Literal, NamedTuple, Protocol

from torch import Tensor

from pidformer.errors import InputError, check_known

Kind = Literal["softmax", "P", "I", "D", "PI", "PD", "ID", "PID"]
Derivative = Literal["explicit", "implicit"]


class Gains(Protocol):
    """What the controller reads: four numbers, or tensors that broadcast with the values."""

    @property
    def p(self) -> float | Tensor: ...
    @property
    def i(self) -> float | Tensor: ...
    @property
    def d(self) -> float | Tensor: ...
    @property
    def beta(self) -> float | Tensor: ...


class GainTensors(NamedTuple):
    """Learned gains, each of shape (H, 1, 1); fixed ones are `PIDGains`."""

    p: Tensor
    i: Tensor
    d: Tensor
    beta: float


MAX_GAIN = 1e6
"""Far beyond any use; products of larger gains overflow and break eigenvalue solvers."""


@dataclass(frozen=True, kw_only=True)
class PIDGains:
    """Gains of the control p e + i sum(e) + d (e - e_previous) with e = beta v_0 - v.

    All zero is softmax attention; i = d = 0 with beta = 1 is NeuTRENO.

    >>> PIDGains(p=0.4, i=0.1, d=0.05)
    PIDGains(p=0.4, i=0.1, d=0.05, beta=1.0)
    """

    p: float = 0.0
    i: float = 0.0
    d: float = 0.0
    beta: float = 1.0

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self) if field.type in (float, "float")):
            value = getattr(self, name)
            try:
                number = float(value)
            except (TypeError, ValueError, OverflowError):
                raise InputError(f"gain {name} must be a number, got {value!r}") from None
            if not math.isfinite(number):
                raise InputError(f"gain {name} must be finite, got {number}")
            if abs(number) > MAX_GAIN:
                raise InputError(f"gain {name} must be at most {MAX_GAIN:g}, got {number:g}")
            object.__setattr__(self, name, number)
        for name in ("p", "i", "d"):
            if getattr(self, name) < 0:
                raise InputError(
                    f"gain {name} must be >= 0, got {getattr(self, name)}; "
                    "a negative gain feeds the error away from the reference"
                )
        if not 0 < self.beta <= 1:
            raise InputError(
                f"beta must be in (0, 1], got {self.beta}; the paper uses 0.1 for ImageNet"
            )

    @property
    def kind(self) -> Kind:
        """Which terms act: "softmax" for none, else their letters in the order P, I, D."""
        letters = "".join(letter for letter in "PID" if getattr(self, letter.lower()) > 0)
        return letters or "softmax"  # type: ignore[return-value]

    @classmethod
    def paper(cls, task: str) -> "PIDGains":
        """The paper's gains: "deit" (ImageNet), "segmenter" (ADE20K) or "lm" (WikiText-103)."""
        check_known("preset", task, PAPER_GAINS)
        return PAPER_GAINS[task]

    @classmethod
    def preset(cls, name: str) -> "PIDGains":
        """Gains by name: "default" (also "p", "neutreno"), "pid", the paper's "deit", ..."""
        check_known("preset", name, PRESETS)
        return PRESETS[name]

    @classmethod
    def parse(cls, text: str) -> "PIDGains":
        """Read "P,I,D" or "P,I,D,BETA", as in "0.8,0.5,0.05,0.1"."""
        parts = [part.strip() for part in text.split(",")]
        if len(parts) not in (3, 4):
            raise InputError(
                f"gains must be P,I,D or P,I,D,BETA (as 0.8,0.5,0.05,0.1), got {text!r}"
            )
        return cls(**dict(zip(("p", "i", "d", "beta"), parts, strict=False)))  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, float]:
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, float]) -> "PIDGains":
        for key in fields:
            check_known("gain", key, cls.__dataclass_fields__)
        return cls(**fields)

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> "PIDGains":
        try:
            fields = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"gains are not JSON ({error}): {text!r}") from None
        if not isinstance(fields, dict):
            raise InputError(f"gains must be a JSON object with p, i, d, beta, got {text!r}")
        return cls.from_dict(fields)

    def scaled(self, factor: float) -> "PIDGains":
        """p, i and d times `factor`; beta stays."""
        return replace(self, p=self.p * factor, i=self.i * factor, d=self.d * factor)


PAPER_GAINS: Mapping[str, PIDGains] = {
    "deit": PIDGains(p=0.8, i=0.5, d=0.05, beta=0.1),
    "segmenter": PIDGains(p=0.5, i=0.3, d=0.05, beta=1.0),
    "lm": PIDGains(p=0.4, i=0.5, d=0.1, beta=0.3),
}
PRESETS: Mapping[str, PIDGains] = {
    **dict.fromkeys(("default", "p", "neutreno"), PIDGains(p=0.6)),
    "pid": PIDGains(p=0.4, i=0.1, d=0.05),
    **PAPER_GAINS,
}
"""`default` is what the study of docs/study.md supports; docs/control.md has the reason."""

GainsLike = PIDGains | str | Mapping[str, float] | Sequence[float]
"""Gains, "P,I,D[,BETA]", (p, i, d[, beta]), a preset ("default", "deit", ...) or fields."""


def is_numbers(given: object) -> bool:
    """Whether this is a row of numbers: (p, i, d[, beta]) of one controller, not its layers."""
    return isinstance(given, Sequence) and all(isinstance(x, int | float) for x in given)


def is_name(text: str) -> bool:
    """Whether this is a preset's name, right or not, rather than "P,I,D"."""
    return "," not in text and text.strip()[:1] not in {*"+-.0123456789"}


def as_gains(given: GainsLike) -> PIDGains:
    """One controller's gains, however they are written.

    >>> as_gains("0.4,0.1,0") == as_gains((0.4, 0.1, 0)) == as_gains({"p": 0.4, "i": 0.1})
    True
    """
    if isinstance(given, PIDGains):
        if type(given) is not PIDGains:
            raise InputError(f"plain PID gains are needed here, got {given}")
        return given
    if isinstance(given, str):
        return PIDGains.preset(given) if is_name(given) else PIDGains.parse(given)
    if isinstance(given, Mapping):
        return PIDGains.from_dict(given)
    if is_numbers(given) and len(given) in (3, 4):
        return PIDGains(**dict(zip(("p", "i", "d", "beta"), given, strict=False)))
    raise InputError(
        f"gains must be PIDGains, P,I,D,BETA (text or numbers), a preset or a mapping, got "
        f"{given!r}; PIDGains() is a layer without control"
    )


def acts(gain: float | Tensor) -> bool:
    """Whether a gain may change anything: a number other than zero, or a tensor."""
    return isinstance(gain, Tensor) or gain != 0
