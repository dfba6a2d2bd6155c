"""What a visitor can turn: one frozen value, its limits, and its address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pidformer.control import PIDGains, design_gains, discretised
from pidformer.errors import InputError
from pidformer.fields import read_yaml
from pidformer.lab.address import from_query, to_query


class Limits(NamedTuple):
    """A slider: from, to, step, and what it says."""

    low: float
    high: float
    step: float
    label: str
    help: str


VIEWS = read_yaml(Path(__file__).with_name("views.yaml"), "views")
"""What each view says of itself."""
SLIDERS: Mapping[str, Mapping[str, Limits]] = {
    view: {name: Limits(*given) for name, given in about.get("sliders", {}).items()}
    for view, about in VIEWS.items()
}
LIMITS = SLIDERS["controller"]


def check_sliders(knobs: Any, view: str) -> None:
    """Refuse a number that its slider does not have; the others get the type of their default."""
    for name, (low, high, *_) in SLIDERS[view].items():
        given = getattr(knobs, name)
        try:
            value = float(given)
        except (TypeError, ValueError):
            raise InputError(f"{name} must be a number, got {given!r}") from None
        if not low <= value <= high:
            raise InputError(f"{name} must be in [{low:g}, {high:g}], got {value:g}")
        object.__setattr__(knobs, name, type(getattr(type(knobs), name))(value))


NOBODY = "(none)"
"""Stands for no second model."""


@dataclass(frozen=True, kw_only=True)
class TwoModels:
    """The models that a visitor puts side by side."""

    first: str = ""
    second: str = ""

    @property
    def models(self) -> list[str]:
        """Both, or the first alone where there is no other."""
        return [self.first] if self.second in (NOBODY, self.first) else [self.first, self.second]

    def present(self, names: Sequence[str], pair: tuple[str, str]) -> tuple[str, str]:
        """The chosen models that are among `names`; those of `pair` for any that are not."""
        first = self.first if self.first in names else pair[0]
        return first, self.second if self.second in (NOBODY, *names) else pair[1]


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """The sliders of the Controller view."""

    p: float = 0.5
    i: float = 0.3
    d: float = 0.05
    beta: float = 1.0
    step: float = 1.0
    implicit: bool = False
    kappa_min: float = 0.0
    tokens: int = 10
    sharpness: float = 1.0
    causal: bool = False
    depth: int = 12
    seed: int = 0

    def __post_init__(self) -> None:
        check_sliders(self, "controller")
        for box in VIEWS["controller"]["boxes"]:
            object.__setattr__(self, box, bool(getattr(self, box)))

    @property
    def _form(self) -> dict[str, Any]:
        return {"derivative": "implicit" if self.implicit else "explicit", "step": self.step}

    @property
    def gains(self) -> PIDGains:
        return discretised(PIDGains(p=self.p, i=self.i, d=self.d, beta=self.beta), **self._form)

    def designed(self, kind: str) -> Knobs:
        """The fastest gains of this kind, rounded to the sliders; a D keeps the slider's d."""
        d = self.d if "D" in kind and self.d > 0 else None
        gains = design_gains(kind, self.kappa_min, beta=self.beta, d=d, **self._form)
        shown = {}
        for name in ("p", "i", "d", "beta"):
            _, high, step, *_ = LIMITS[name]
            shown[name] = min(high, round(step * round(getattr(gains, name) / step), 6))
        return replace(self, **shown)

    def to_query(self) -> str:
        return to_query("controller", self)

    @classmethod
    def from_query(cls, query: str) -> Knobs:
        """Read an address; what it does not name, or what is out of range, keeps its default."""
        return from_query(cls, query)

    def command(self) -> str:
        """The same judgement on the command line."""
        beta = "" if self.beta == 1 else f",{self.beta:g}"
        form = " --derivative implicit" * self.implicit
        form += "" if self.step == 1 else f" --step {self.step:g}"
        return (
            f"pidformer stability --gains {self.p:g},{self.i:g},{self.d:g}{beta} "
            f"--kappa-min {self.kappa_min:g}{form}"
        )

    def python(self) -> str:
        """The same numbers in Python."""
        given = ", ".join(f"{name}={value!r}" for name, value in asdict(self).items())
        return (
            "from pidformer import analysis, control\n"
            "from pidformer.lab.controller import kernel_of, start\n"
            "from pidformer.lab.knobs import Knobs\n\n"
            f"knobs = Knobs({given})\n"
            "print(control.stability_report(knobs.gains, knobs.kappa_min))\n"
            "kernel, (_, first) = kernel_of(knobs), start(knobs)\n"
            "values = control.simulate(kernel, first, knobs.gains, knobs.depth)\n"
            "print(analysis.mean_cosine(values))  # by layer, with control\n"
        )


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "softmax": {"p": 0.0, "i": 0.0, "d": 0.0, "beta": 1.0},
    "NeuTRENO": {"p": 0.6, "i": 0.0, "d": 0.0, "beta": 1.0},
    "DeiT": PIDGains.paper("deit").to_dict(),
    "Segmenter": PIDGains.paper("segmenter").to_dict(),
    "LM": PIDGains.paper("lm").to_dict(),
}
"""Gains by name: none, NeuTRENO's, and the paper's three."""
