"""A registered study: rows of runs, their measures and hypotheses, fixed before any run."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from pidformer.control.feedback import as_feedback
from pidformer.control.gains import PIDGains
from pidformer.errors import InputError, check_known, shortened
from pidformer.fields import check_least, read_yaml, typed

Pair = tuple[str, str]
"""A row, and the row that is subtracted from it."""
Correlate = Literal[
    "largest radius", "measured radius", "control's size at first", "control's size, trained"
]
CORRELATES = get_args(Correlate)
"""What a hypothesis may set beside the differences of all rows."""
EXPECTED = ("better", "worse", "more", "less", "level", None)
"""What a hypothesis may expect of a difference; None: it has no direction."""
_HALVES = {"odd": 1, "even": 0, "all": None}
_NAME = re.compile(r"\w[\w.-]*")  # part of a file's name
DEPTH = 12


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One evaluation of a run: a suite by its name or file, or a curve."""

    suite: str
    limit: int | None = None
    """Images to measure on; None: all."""
    domain: Literal["pixel", "normalized"] = "pixel"
    seeds: tuple[int, ...] | None = None
    """The seeds whose runs are measured; None: all."""
    curve: str | None = None
    """Attacks whose accuracy is measured at each budget of `eps`, in place of a suite."""
    eps: str | None = None
    precision: Literal["fp32", "tf32"] = "fp32"
    """Precision of matrix products, where text is measured on a GPU."""

    def __post_init__(self) -> None:
        check_least(f"suites.{self.suite}", self, ["limit"], low=1)
        if (self.curve is None) != (self.eps is None):
            raise InputError(f"suite {self.suite} needs both `curve` and `eps`, or neither")

    def covers(self, seed: int) -> bool:
        return self.seeds is None or seed in self.seeds


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """What was asked, and the differences that answer it."""

    name: str
    text: str
    expects: dict[str, str | None]
    """The metrics that decide it, and what it expects of each."""
    pairs: tuple[Pair, ...] = ()
    against: tuple[Pair, ...] = ()
    """For each pair another, whose difference is taken off: does the first change?"""
    correlation: Correlate | None = None
    """Instead of pairs: what may go with the differences of all rows."""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The row, once all have their seeds, whose differences to softmax have the largest sum."""

    rows: tuple[str, ...]
    metrics: tuple[str, ...]
    ahead: bool = False
    """Among the rows that are ahead on each metric, if any is."""


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """What a segmenter's encoder is trained on first, with its row's gains and seed."""

    recipe: str
    data: tuple[str, ...]
    set: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StudyRow:
    """One variant: what it changes in the recipe, and the seeds it is trained with."""

    name: str
    group: str
    overrides: tuple[str, ...]
    seeds: tuple[int, ...]
    suites: Mapping[str, Measure]
    backbone: Pretraining | None = None


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    name: str
    recipe: str
    data: tuple[str, ...]
    rows: tuple[StudyRow, ...]
    primary: tuple[tuple[str, str], ...] = ()
    """(row, metric) of the comparisons with softmax that are corrected together."""
    contrasts: tuple[Pair, ...] = ()
    """(row, other row): differences that are asked for beside those to softmax."""
    choice: Choice | None = None
    """How one more candidate is taken from the rows."""
    hypotheses: tuple[Hypothesis, ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)
    """What a group is for, in a few words."""
    halves: Mapping[str | None, int | None] = field(default_factory=dict)
    """The images that report a group: 1 those with odd places, 0 with even ones, None all."""

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.group for row in self.rows))

    @property
    def seeds(self) -> dict[str, set[int]]:
        """The seeds that each row was registered with, over all its groups."""
        found: dict[str, set[int]] = {}
        for row in self.rows:
            found.setdefault(row.name, set()).update(row.seeds)
        return found


@dataclass(frozen=True, kw_only=True)
class _Row:
    """A row as the file says it."""

    gains: str | None = None
    learn: bool = False
    act: str | None = None
    average: bool = False
    set: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Group:
    """A group as the file says it."""

    seeds: tuple[int, ...]
    rows: dict[str, Any]
    about: str = ""
    images: Literal["odd", "even", "all"] = "odd"
    set: tuple[str, ...] = ()
    suites: dict[str, Any] | None = None
    depth: int = DEPTH
    backbone: Pretraining | None = None


@dataclass(frozen=True, kw_only=True)
class _Primary:
    rows: tuple[str, ...]
    metrics: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Choose:
    groups: tuple[str, ...]
    metrics: tuple[str, ...]
    without: tuple[str, ...] = ()
    ahead: bool = False


@dataclass(frozen=True, kw_only=True)
class _StudyFile:
    recipe: str
    data: tuple[str, ...]
    suites: dict[str, Any]
    groups: dict[str, Any]
    overrides: tuple[str, ...] = ()
    primary: _Primary | None = None
    contrasts: tuple[Pair, ...] = ()
    choose: _Choose | None = None
    hypotheses: dict[str, Any] = field(default_factory=dict)


def load_study(path: str | Path) -> StudyPlan:
    """A study from its YAML file; it is called what the file is called."""
    path = Path(path)
    if not path.is_file():
        raise InputError(
            f"no study at {path}; give a YAML file, such as study/tiny-imagenet-100.yaml of "
            "pidformer's repository (docs/reproduce.md)"
        )
    given = _typed(_StudyFile, read_yaml(path, "study"))
    groups = {
        _named("group", n): _typed(_Group, own, f"groups.{n}") for n, own in given.groups.items()
    }
    rows = [row for name, group in groups.items() for row in _rows(given, name, group)]
    known = {row.name: row for row in rows}
    for row in rows:
        if replace(known[row.name], group=row.group, seeds=row.seeds) != row:
            both = f"{row.group} and {known[row.name].group}"
            raise InputError(f"row {row.name} differs between groups {both}; name it anew")
    first = given.primary or _Primary(rows=(), metrics=())
    hypotheses = [_hypothesis(str(name), about) for name, about in given.hypotheses.items()]
    used = [*given.contrasts, *(pair for one in hypotheses for pair in (*one.pairs, *one.against))]
    for name in (*first.rows, *(name for pair in used for name in pair)):
        check_known("row of the study", name, known)
    return StudyPlan(
        name=path.stem,
        recipe=given.recipe,
        data=given.data,
        rows=tuple(rows),
        primary=tuple((row, metric) for row in first.rows for metric in first.metrics),
        contrasts=given.contrasts,
        choice=None if given.choose is None else _choice(given.choose, groups),
        hypotheses=tuple(hypotheses),
        about={name: group.about for name, group in groups.items()},
        halves={name: _HALVES[group.images] for name, group in groups.items()},
    )


def _typed(kind: type[Any], given: Any, where: str = "") -> Any:
    return typed(kind, given, where, key_of="study key")


def _rows(study: _StudyFile, name: str, group: _Group) -> list[StudyRow]:
    check_least(f"groups.{name}", group, ["depth"], low=1)
    if not group.seeds or min(group.seeds) < 0:
        raise InputError(f"groups.{name}.seeds must be numbers from 0 on, got {group.seeds}")
    suites = read_measures(study.suites if group.suites is None else group.suites)
    found = []
    for row, own in group.rows.items():
        given = _typed(_Row, own, f"groups.{name}.rows.{row}")
        gains = _gains(_named("row", row), given, group.depth)
        start = group.backbone
        found.append(
            StudyRow(
                name=row,
                group=name,
                overrides=(*study.overrides, *group.set, *gains, *given.set),
                seeds=group.seeds,
                suites=suites,
                backbone=start and replace(start, set=(*start.set, *gains)),
            )
        )
    return found


def _named(what: str, given: Any) -> str:
    if not isinstance(given, str) or not _NAME.fullmatch(given):
        said = shortened(given)
        raise InputError(f"a {what} is named by letters, digits, dots, _ and -, got {said}")
    return given


def read_measures(given: Mapping[str, Any]) -> dict[str, Measure]:
    """Measures by name: a number of images, null for all, or keys; told apart by file name."""
    found = {}
    for name, own in given.items():
        keys = own if isinstance(own, Mapping) else {"limit": own}
        found[name] = _typed(Measure, {"suite": name, **keys}, f"suites.{name}")
    stems = [Path(name).stem for name in found]
    for stem in stems:
        if stems.count(stem) > 1:
            raise InputError(f"two suites are called {stem}; rename one of their files")
    return found


def _gains(name: str, row: _Row, depth: int) -> tuple[str, ...]:
    """A row's controller, as overrides of a recipe."""
    if row.gains is None:
        for key in ("learn", "act", "average"):
            if getattr(row, key):
                raise InputError(f"row {name} has `{key}` and no `gains` that it would be about")
        return ()
    written = row.gains
    gains = as_feedback(written)
    if row.act or row.average:
        by_layer = gains_by_layer(gains, depth, act=row.act, average=row.average)
        written = json.dumps([layer.to_dict() for layer in by_layer])
    learn = ("model.learn_gains=true",) if row.learn else ()
    return (f"model.gains={written}", *learn)


def gains_by_layer(
    gains: PIDGains, depth: int, *, act: str | None = None, average: bool = False
) -> list[PIDGains]:
    """One controller per layer: where it acts, and i / l for the mean of the errors so far.

    A layer without control has zero gains and still carries the state: later layers see the sum
    and the difference as if all had acted. The first layer sets the reference in any case.
    """
    every = re.fullmatch(r"every-([1-9]\d*)", act or "every-1")
    if every is not None:
        acting = set(range(int(every[1]), depth, int(every[1])))
    elif act in ("early", "late"):
        acting = set(range(depth // 2)) if act == "early" else set(range(depth // 2, depth))
    else:
        raise InputError(f"act must be early, late or every-K, got {shortened(act)}")
    found = []
    for layer in range(depth):
        i = gains.i / max(1, layer) if average else gains.i
        found.append(replace(gains, i=i) if layer in acting else PIDGains(beta=gains.beta))
    return found


def _hypothesis(name: str, about: Any) -> Hypothesis:
    what, given = f"hypothesis {name}", about if isinstance(about, Mapping) else {}
    found: Hypothesis = _typed(Hypothesis, {**given, "name": name}, f"hypotheses.{name}")
    for metric, word in found.expects.items():
        if not isinstance(word, str | None) or word not in EXPECTED:
            allowed = ", ".join(str(one or "null") for one in EXPECTED)
            raise InputError(
                f"{what} expects {shortened(word)} of {metric}; it may expect {allowed}"
            )
    if bool(found.pairs) == bool(found.correlation) or not found.expects:
        raise InputError(f"{what} needs metrics in `expects`, and `pairs` or a `correlation`")
    if found.against and len(found.against) != len(found.pairs):
        raise InputError(
            f"{what} has {len(found.pairs)} pairs and {len(found.against)} against them"
        )
    return found


def _choice(given: _Choose, groups: Mapping[str, _Group]) -> Choice:
    """The rows of some groups, without those named."""
    for group in given.groups:
        check_known("group of the study", group, groups)
    rows = [row for group in given.groups for row in groups[group].rows]
    for name in given.without:
        check_known("row of the groups to choose from", name, rows)
    kept = tuple(row for row in rows if row not in given.without)
    return Choice(rows=kept, metrics=given.metrics, ahead=given.ahead)
