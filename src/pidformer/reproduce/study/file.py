"""A study file: rows of runs that were fixed before any of them was made (docs/reproduce.md)."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pidformer.control.gains import PIDGains
from pidformer.errors import InputError, shortened, unknown
from pidformer.fields import read_yaml
from pidformer.reproduce.study.fields import (
    Choice,
    Hypothesis,
    Measure,
    Pair,
    check_keys,
    half,
    layers,
    mapping,
    pairs,
    read_choice,
    read_hypothesis,
    read_measures,
    row_name,
    seeds,
    text,
    texts,
)

_NEEDED = ("recipe", "data", "suites", "groups")
_STUDY = (*_NEEDED, "overrides", "primary", "contrasts", "choose", "hypotheses")
_ROW = ("gains", "learn", "act", "average", "set")
_GROUP = ("about", "images", "seeds", "set", "suites", "depth", "rows")
DEPTH = 12


@dataclass(frozen=True, kw_only=True)
class StudyRow:
    """One variant: what it changes in the recipe, and the seeds it is trained with."""

    name: str
    group: str
    overrides: tuple[str, ...]
    seeds: tuple[int, ...]
    suites: Mapping[str, Measure]
    """What a run is measured by."""


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """All rows of a study."""

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
    def seed_counts(self) -> dict[str, int]:
        """How many seeds each row was registered with, over all its groups."""
        seeds: dict[str, set[int]] = {}
        for row in self.rows:
            seeds.setdefault(row.name, set()).update(row.seeds)
        return {name: len(own) for name, own in seeds.items()}


def load_study(path: str | Path) -> StudyPlan:
    """A study from its YAML file; it is called what the file is called."""
    path = Path(path)
    if not path.is_file():
        raise InputError(
            f"no study at {path}; give a YAML file, such as study/tiny-imagenet-100.yaml of "
            "pidformer's repository (docs/reproduce.md)"
        )
    fields = read_yaml(path, "study")
    check_keys(f"study {path}", fields, _STUDY, needs=_NEEDED)
    groups = mapping(f"groups of study {path}", fields["groups"])
    rows = [row for group in groups for row in _rows(fields, text("a group", group))]
    known = {row.name: row for row in rows}
    for row in rows:
        if replace(known[row.name], group=row.group, seeds=row.seeds) != row:
            both = f"{row.group} and {known[row.name].group}"
            raise InputError(f"row {row.name} differs between groups {both}; name it anew")
    first = fields.get("primary", {"rows": [], "metrics": []})
    check_keys("primary", first, ("rows", "metrics"), needs=("rows", "metrics"))
    primary, metrics = (texts(f"{key} of primary", first[key]) for key in ("rows", "metrics"))
    contrasts = pairs("contrasts", fields.get("contrasts", []))
    asked = mapping("hypotheses", fields.get("hypotheses", {}))
    hypotheses = tuple(read_hypothesis(str(name), about) for name, about in asked.items())
    used = [*contrasts, *(pair for one in hypotheses for pair in (*one.pairs, *one.against))]
    for name in (*primary, *(name for pair in used for name in pair)):
        if name not in known:
            raise unknown("row of the study", name, known)
    return StudyPlan(
        name=path.stem,
        recipe=text("recipe", fields["recipe"]),
        data=texts("data", fields["data"]),
        rows=tuple(rows),
        primary=tuple((row, metric) for row in primary for metric in metrics),
        contrasts=contrasts,
        choice=read_choice(fields["choose"], groups) if "choose" in fields else None,
        hypotheses=hypotheses,
        about={group: str(own.get("about", "")) for group, own in groups.items()},
        halves={group: half(group, own.get("images", "odd")) for group, own in groups.items()},
    )


def _rows(fields: Mapping[str, Any], group: str) -> list[StudyRow]:
    about = fields["groups"][group]
    check_keys(f"group {group}", about, _GROUP, needs=("seeds", "rows"))
    shared = texts("overrides", fields.get("overrides", []))
    more = texts(f"set of group {group}", about.get("set", []))
    depth = layers(group, about.get("depth", DEPTH))
    return [
        StudyRow(
            name=row_name(name),
            group=group,
            overrides=(*shared, *more, *_overrides(name, row, depth)),
            seeds=seeds(f"group {group}", about["seeds"]),
            suites=read_measures(about.get("suites", fields["suites"])),
        )
        for name, row in mapping(f"rows of group {group}", about["rows"]).items()
    ]


def _overrides(name: str, row: Mapping[str, Any], depth: int) -> tuple[str, ...]:
    check_keys(f"row {name}", row, _ROW)
    more = texts(f"set of row {name}", row.get("set", []))
    if row.get("gains") is None:
        for key in ("learn", "act", "average"):
            if row.get(key):
                raise InputError(f"row {name} has `{key}` and no `gains` that it would be about")
        return more
    given = text(f"gains of row {name}", row["gains"])
    gains = PIDGains.parse(given)
    if "act" in row or row.get("average"):
        act = None if row.get("act") is None else text(f"act of row {name}", row["act"])
        by_layer = gains_by_layer(gains, depth, act=act, average=row.get("average", False))
        given = json.dumps([layer.to_dict() for layer in by_layer])
    learn = ("model.learn_gains=true",) if row.get("learn") else ()
    return (f"model.gains={given}", *learn, *more)


def gains_by_layer(
    gains: PIDGains, depth: int, *, act: str | None = None, average: bool = False
) -> list[PIDGains]:
    """One controller per layer: where it acts, and i / l for the mean of the errors so far.

    A layer without control has zero gains and still carries the state: later layers see the sum
    and the difference as if all had acted. The first layer sets the reference in any case.
    """
    every = re.fullmatch(r"every-(\d+)", act or "every-1")
    if every is not None and int(every[1]) > 0:
        acting = set(range(int(every[1]), depth, int(every[1])))
    elif act in ("early", "late"):
        acting = set(range(depth // 2)) if act == "early" else set(range(depth // 2, depth))
    else:
        raise InputError(f"act must be early, late or every-K, got {shortened(act)}")
    found = []
    for layer in range(depth):
        i = gains.i / max(1, layer) if average else gains.i
        own = PIDGains(p=gains.p, i=i, d=gains.d, beta=gains.beta)
        found.append(own if layer in acting else PIDGains(beta=gains.beta))
    return found
