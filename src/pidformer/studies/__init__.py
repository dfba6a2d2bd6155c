"""Studies: rows of runs that were fixed before any of them was made. See docs/study.md.

recipe: tiny_imagenet_100/deit_tiny_softmax.yaml
overrides: [schedule.epochs=100]           # for every run
data: [tiny-imagenet-100]                  # names that the set's folder may have
suites: {study: null, study-spsa: 250}     # what measures a run, on so many images (null: all)
primary: {rows: [p], metrics: [Clean]}     # comparisons that are corrected together
contrasts: [[p_late, p_early]]             # differences asked for beside those to softmax
hypotheses:
  H7:
    text: control helps more in late layers
    pairs: [[p_late, p_early]]             # row less row
    expects: {Clean: better, PGD: null}    # what decides, and how; null: no direction
    against: [[p_24, softmax_24]]          # less these differences, one for each pair
    note: a remark for readers
  H9: {text: ..., correlation: largest radius, expects: {Clean: null}}    # over rows
groups:
  place:
    about: where control acts              # for readers
    images: odd                            # places of the images that report it: odd or even
    seeds: [10, 11, 12]
    set: [...]                             # for the runs of the group; `suites` as above
    depth: 24                              # layers, where it is not 12
    rows:
      p_late: {gains: "0.6,0,0,1", act: late}

A row has `gains`, `learn: true`, `act: early | late | every-K` (control in the first half of the
layers, the last half, every K-th), `average: true` (the integral as a mean: i / l at layer l) and
`set`, further overrides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pidformer.control.gains import PIDGains
from pidformer.errors import InputError, unknown

SHIPPED = Path(__file__).parent
_STUDY = ("recipe", "overrides", "data", "suites", "primary", "contrasts", "hypotheses", "groups")
_ROW = ("gains", "learn", "act", "average", "set")
_GROUP = ("about", "images", "seeds", "set", "suites", "depth", "rows")
_HYPOTHESIS = ("text", "pairs", "against", "correlation", "expects", "note")
EXPECTED = ("better", "worse", "more", "less", "level", None)
"""What a hypothesis may expect of a difference; None: it has no direction."""
CORRELATES = ("largest radius", "control's size at first", "control's size, trained")
"""What a hypothesis may set beside the differences of all rows."""
DEPTH = 12


@dataclass(frozen=True, kw_only=True)
class Row:
    """One variant: what it changes in the recipe, and the seeds it is trained with."""

    name: str
    group: str
    overrides: tuple[str, ...]
    seeds: tuple[int, ...]
    suites: Mapping[str, int | None]
    """What a run is measured by, on so many images (None: all)."""


Pair = tuple[str, str]
"""A row, and the row it is less."""


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


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """All rows of a study."""

    name: str
    recipe: str
    data: tuple[str, ...]
    rows: tuple[Row, ...]
    primary: tuple[tuple[str, str], ...] = ()
    """(row, metric) of the comparisons with softmax that are corrected together."""
    contrasts: tuple[Pair, ...] = ()
    """(row, other row): differences that are asked for beside those to softmax."""
    hypotheses: tuple[Hypothesis, ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)
    """What a group is for, in a few words."""
    halves: Mapping[str | None, int] = field(default_factory=dict)
    """The half of the images that reports a group: 1 those with odd places, 0 with even ones."""

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.group for row in self.rows))


def shipped_studies() -> list[str]:
    """Names of the studies that come with the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def load_study(where: str | Path = "tiny-imagenet-100") -> StudyPlan:
    """A study from a YAML file, or one of those shipped by name."""
    path = Path(where) if Path(where).is_file() else SHIPPED / f"{where}.yaml"
    if not path.is_file():
        raise unknown("study", str(where), shipped_studies())
    try:
        fields = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not YAML: {error}") from None
    _check(f"study {path}", fields, _STUDY, needs=("recipe", "data", "suites", "groups"))
    shared = tuple(fields.get("overrides", ()))
    rows = []
    for group, about in _mapping(f"groups of study {path}", fields["groups"]).items():
        _check(f"group {group}", about, _GROUP, needs=("seeds", "rows"))
        _check_seeds(group, about["seeds"])
        more = (*shared, *about.get("set", ()))
        for name, row in _mapping(f"rows of group {group}", about["rows"]).items():
            _check(f"row {name}", row, _ROW)
            own = _overrides(name, row, about.get("depth", DEPTH))
            rows.append(
                Row(
                    name=name,
                    group=group,
                    overrides=(*more, *own),
                    seeds=tuple(about["seeds"]),
                    suites=_mapping("suites", about.get("suites", fields["suites"])),
                )
            )
    first = fields.get("primary", {"rows": (), "metrics": ()})
    pairs = _pairs("contrasts", fields.get("contrasts", []))
    asked = _mapping("hypotheses", fields.get("hypotheses", {}))
    hypotheses = tuple(_hypothesis(str(name), about) for name, about in asked.items())
    known = {row.name for row in rows}
    used = [*pairs, *(pair for one in hypotheses for pair in (*one.pairs, *one.against))]
    for name in (*first["rows"], *(name for pair in used for name in pair)):
        if name not in known:
            raise unknown("row of the study", name, known)
    return StudyPlan(
        name=path.stem,
        recipe=fields["recipe"],
        data=tuple(fields["data"]),
        rows=tuple(rows),
        primary=tuple((row, metric) for row in first["rows"] for metric in first["metrics"]),
        contrasts=pairs,
        hypotheses=hypotheses,
        about={group: str(own.get("about", "")) for group, own in fields["groups"].items()},
        halves={group: _half(group, own) for group, own in fields["groups"].items()},
    )


def _mapping(what: str, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise InputError(f"{what} must be `key: value` pairs, got {given!r}; see docs/study.md")
    return given


def _check(what: str, given: Any, known: tuple[str, ...], needs: tuple[str, ...] = ()) -> None:
    for key in _mapping(what, given):
        if key not in known:
            raise unknown(f"key of {what}", key, known)
    for key in needs:
        if key not in given:
            raise InputError(f"{what} has no `{key}`; it needs {', '.join(needs)}")


def _pairs(what: str, given: Any) -> tuple[Pair, ...]:
    is_list = isinstance(given, list)
    if not is_list or not all(isinstance(pair, list) and len(pair) == 2 for pair in given):
        raise InputError(f"{what} must be a list of [row, less row], got {given!r}")
    return tuple((str(a), str(b)) for a, b in given)


def _hypothesis(name: str, about: Any) -> Hypothesis:
    what = f"hypothesis {name}"
    _check(what, about, _HYPOTHESIS, needs=("text", "expects"))
    expects = _mapping(f"expects of {what}", about["expects"])
    for metric, word in expects.items():
        if word not in EXPECTED:
            allowed = ", ".join(str(one or "null") for one in EXPECTED)
            raise InputError(f"{what} expects {word!r} of {metric}; it may expect {allowed}")
    correlation = about.get("correlation")
    if correlation is not None and correlation not in CORRELATES:
        raise unknown(f"correlation of {what}", str(correlation), CORRELATES)
    pairs = _pairs(f"pairs of {what}", about.get("pairs", []))
    against = _pairs(f"against of {what}", about.get("against", []))
    if bool(pairs) == bool(correlation) or not expects:
        raise InputError(f"{what} needs metrics in `expects`, and `pairs` or a `correlation`")
    if against and len(against) != len(pairs):
        raise InputError(f"{what} has {len(pairs)} pairs and {len(against)} against them")
    return Hypothesis(
        name=name,
        text=str(about["text"]),
        expects=expects,
        pairs=pairs,
        against=against,
        correlation=correlation,
        note=str(about.get("note", "")),
    )


def _half(group: str, about: Mapping[str, Any]) -> int:
    halves = {"odd": 1, "even": 0}
    given = about.get("images", "odd")
    if given not in halves:
        raise InputError(f"images of group {group} must be odd or even, got {given!r}")
    return halves[given]


def _check_seeds(group: str, seeds: Any) -> None:
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int for seed in seeds):
        raise InputError(f"seeds of group {group} must be a list of numbers, got {seeds!r}")


def _overrides(name: str, row: Mapping[str, Any], depth: int) -> list[str]:
    found = list(row.get("set", ()))
    given = row.get("gains")
    if given is None:
        return found
    gains = PIDGains.parse(given)
    if "act" in row or row.get("average"):
        layers = gains_by_layer(gains, depth, act=row.get("act"), average=row.get("average", False))
        text = json.dumps([layer.to_dict() for layer in layers])
    else:
        text = given
    return [
        f"model.gains={text}",
        *(["model.learn_gains=true"] if row.get("learn") else []),
        *found,
    ]


def gains_by_layer(
    gains: PIDGains, depth: int, *, act: str | None = None, average: bool = False
) -> list[PIDGains]:
    """One controller a layer: where it acts, and i / l for the mean of the errors so far.

    A layer without control has zero gains and still carries the state: later layers see the sum
    and the difference as if all had acted. The first layer sets the reference in any case.
    """
    every = re.fullmatch(r"every-(\d+)", act or "every-1")
    if every is not None and int(every[1]) > 0:
        acting = set(range(int(every[1]), depth, int(every[1])))
    elif act in ("early", "late"):
        acting = set(range(depth // 2)) if act == "early" else set(range(depth // 2, depth))
    else:
        raise InputError(f"act must be early, late or every-K, got {act!r}")
    found = []
    for layer in range(depth):
        i = gains.i / max(1, layer) if average else gains.i
        own = PIDGains(p=gains.p, i=i, d=gains.d, beta=gains.beta)
        found.append(own if layer in acting else PIDGains(beta=gains.beta))
    return found
