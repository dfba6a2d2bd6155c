"""What the fields of a study may hold: measures, hypotheses, the choice of a row.

Anything else gets one line.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pidformer.errors import InputError, shortened, unknown

Pair = tuple[str, str]
"""A row, and the row that is subtracted from it."""
_NAME = re.compile(r"\w[\w.-]*")  # part of a file's name
_CHOICE = ("groups", "without", "metrics")
_HYPOTHESIS = ("text", "pairs", "against", "correlation", "expects", "note")
EXPECTED = ("better", "worse", "more", "less", "level", None)
"""What a hypothesis may expect of a difference; None: it has no direction."""
CORRELATES = (
    "largest radius",
    "measured radius",
    "control's size at first",
    "control's size, trained",
)
"""What a hypothesis may set beside the differences of all rows."""
_MEASURE = ("limit", "domain", "seeds", "curve", "eps")
_DOMAINS = ("pixel", "normalized")


def mapping(what: str, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise InputError(
            f"{what} must be `key: value` pairs, got {shortened(given)}; see docs/study.md"
        )
    return given


def check_keys(what: str, given: Any, known: Sequence[str], needs: Sequence[str] = ()) -> None:
    for key in mapping(what, given):
        if key not in known:
            raise unknown(f"key of {what}", key, known)
    for key in needs:
        if key not in given:
            raise InputError(f"{what} has no `{key}`; it needs {', '.join(needs)}")


def text(what: str, given: Any) -> str:
    if not isinstance(given, str):
        raise InputError(f"{what} must be text, got {shortened(given)}")
    return given


def texts(what: str, given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(entry, str) for entry in given):
        raise InputError(
            f"{what} must be a list of texts, got {shortened(given)}; see docs/study.md"
        )
    return tuple(given)


def row_name(given: Any) -> str:
    """A row's name, which its runs' folders get."""
    if not isinstance(given, str) or not _NAME.fullmatch(given):
        raise InputError(
            f"a row is named by letters, digits, dots, _ and -, got {shortened(given)}"
        )
    return given


def seeds(what: str, given: Any) -> tuple[int, ...]:
    is_list = isinstance(given, list) and given
    if not is_list or not all(type(seed) is int and seed >= 0 for seed in given):
        raise InputError(f"seeds of {what} must be a list of numbers, got {shortened(given)}")
    return tuple(given)


def half(group: str, given: Any) -> int | None:
    """1 for images with odd places, 0 for even ones, None for all."""
    halves: dict[Any, int | None] = {"odd": 1, "even": 0, "all": None}
    if not isinstance(given, str) or given not in halves:
        raise InputError(
            f"images of group {group} must be odd, even or all, got {shortened(given)}"
        )
    return halves[given]


def layers(group: str, given: Any) -> int:
    if type(given) is not int or given < 1:
        raise InputError(
            f"depth of group {group} must be a number of layers, got {shortened(given)}"
        )
    return given


def pairs(what: str, given: Any) -> tuple[Pair, ...]:
    try:
        found = [texts(what, pair) for pair in given]
        return tuple((row, other) for row, other in found)
    except (TypeError, ValueError):  # an InputError is one too
        raise InputError(
            f"{what} must be a list of [row, other row], got {shortened(given)}"
        ) from None


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One evaluation of a run: a suite by its name or file, or a curve."""

    suite: str
    limit: int | None = None
    """Images to measure on; None: all."""
    domain: str = "pixel"
    seeds: tuple[int, ...] | None = None
    """The seeds whose runs are measured; None: all."""
    curve: str | None = None
    """Attacks whose accuracy is measured at each budget of `eps`, in place of a suite."""
    eps: str | None = None

    def covers(self, seed: int) -> bool:
        """Whether the run of `seed` is measured."""
        return self.seeds is None or seed in self.seeds


def read_measures(given: Any) -> dict[str, Measure]:
    """Measures by name; their jobs are told apart by the file names of their suites."""
    found = {
        name: _measure(text("a suite", name), own) for name, own in mapping("suites", given).items()
    }
    stems = [Path(name).stem for name in found]
    for stem in stems:
        if stems.count(stem) > 1:
            raise InputError(f"two suites are called {stem}; rename one of their files")
    return found


def _measure(name: str, given: Any) -> Measure:
    """A number of images, null for all of them, or `key: value` pairs."""
    own: Mapping[str, Any] = given if isinstance(given, Mapping) else {"limit": given}
    check_keys(f"suite {name}", own, _MEASURE)
    limit = own.get("limit")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise InputError(
            f"suite {name} takes a number of images, or null: all; got {shortened(limit)}"
        )
    domain = own.get("domain", "pixel")
    if domain not in _DOMAINS:
        raise unknown(f"domain of suite {name}", str(domain), _DOMAINS)
    if ("curve" in own) != ("eps" in own):
        raise InputError(f"suite {name} needs both `curve` and `eps`, or neither")
    return Measure(
        suite=name,
        limit=limit,
        domain=domain,
        seeds=None if "seeds" not in own else seeds(f"suite {name}", own["seeds"]),
        curve=None if "curve" not in own else text(f"curve of suite {name}", own["curve"]),
        eps=None if "eps" not in own else text(f"eps of suite {name}", own["eps"]),
    )


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """What was asked, and the differences that answer it."""

    name: str
    text: str
    expects: Mapping[str, str | None]
    """The metrics that decide it, and what it expects of each."""
    pairs: tuple[Pair, ...] = ()
    against: tuple[Pair, ...] = ()
    """For each pair another, whose difference is taken off: does the first change?"""
    correlation: str | None = None
    """Instead of pairs: what may go with the differences of all rows."""
    note: str = ""


def read_hypothesis(name: str, about: Any) -> Hypothesis:
    what = f"hypothesis {name}"
    check_keys(what, about, _HYPOTHESIS, needs=("text", "expects"))
    expects = mapping(f"expects of {what}", about["expects"])
    for metric, word in expects.items():
        if not isinstance(word, str | None) or word not in EXPECTED:
            allowed = ", ".join(str(one or "null") for one in EXPECTED)
            raise InputError(
                f"{what} expects {shortened(word)} of {metric}; it may expect {allowed}"
            )
    correlation = about.get("correlation")
    if correlation is not None and correlation not in CORRELATES:
        raise unknown(f"correlation of {what}", str(correlation), CORRELATES)
    differences = pairs(f"pairs of {what}", about.get("pairs", []))
    against = pairs(f"against of {what}", about.get("against", []))
    if bool(differences) == bool(correlation) or not expects:
        raise InputError(f"{what} needs metrics in `expects`, and `pairs` or a `correlation`")
    if against and len(against) != len(differences):
        raise InputError(f"{what} has {len(differences)} pairs and {len(against)} against them")
    return Hypothesis(
        name=name,
        text=str(about["text"]),
        expects=expects,
        pairs=differences,
        against=against,
        correlation=correlation,
        note=str(about.get("note", "")),
    )


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The row, once all have their seeds, whose differences to softmax have the largest sum."""

    rows: tuple[str, ...]
    metrics: tuple[str, ...]
    """Whose mean differences are added."""


def read_choice(given: Any, groups: Mapping[str, Any]) -> Choice:
    """Of the rows of some groups, without those named."""
    check_keys("choose", given, _CHOICE, needs=("groups", "metrics"))
    chosen = texts("groups of choose", given["groups"])
    without = texts("without of choose", given.get("without", []))
    for group in chosen:
        if group not in groups:
            raise unknown("group of the study", group, groups)
    rows = [row for group in chosen for row in groups[group]["rows"]]
    for name in without:
        if name not in rows:
            raise unknown("row of the groups to choose from", name, rows)
    return Choice(
        rows=tuple(row for row in rows if row not in without),
        metrics=texts("metrics of choose", given["metrics"]),
    )
