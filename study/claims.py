"""results/claims.yaml: what the paper claims, and which records answer it.

order: [STUDY, ...]                          # of the studies on results.md; the others follow
advice: Use ... {STUDY/VARIANT/METRIC} ...   # a difference to softmax stands for each such name
words: How to read the table.
length: What the figure over the length of training says; numbers as in `advice`.
columns: {paper: the paper's gains}          # what the answers are headed by
parts:
  - title: Table 1
    answers: {paper: [STUDY/VARIANT]}        # the one with the most seeds, then the first
    claims:
      - claim: Clean, Top-1
        paper: [72.17, 73.13]                # softmax and PID; or words
        metric: Clean                        # or a list: all of them
        expects: better                      # unless given; or worse, more, less
        short: Clean accuracy                # its name in README.md; without it it is not there
      - claim: stable                        # without a record: words and verdict by column
        paper: proved
        known: {paper: unstable for ...}
        verdict: {paper: does not hold}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pidformer.errors import InputError, unknown
from pidformer.report.table_view import minus
from pidformer.reproduce.study.fields import check_keys, mapping, text, texts

FILE = "claims.yaml"
HOLDS, FAILS = "holds", "does not hold"
ONE_SEED, UNMEASURED = "one seed only", "not measured"
_CLAIM = ("claim", "paper", "metric", "expects", "short", "known", "verdict")
_EXPECTED = ("better", "worse", "more", "less")
_GIVEN = (HOLDS, FAILS)


@dataclass(frozen=True, kw_only=True)
class Claim:
    claim: str
    paper: str
    """Its effect there."""
    metrics: tuple[str, ...] = ()
    expects: str = "better"
    short: str = ""
    known: Mapping[str, str] = field(default_factory=dict)
    """What answers it, by column, where no record does."""
    verdict: Mapping[str, str] = field(default_factory=dict)
    """Then."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Claims that the same rows answer."""

    title: str
    answers: Mapping[str, tuple[tuple[str, str], ...]]
    """(study, variant), by column."""
    claims: tuple[Claim, ...]


@dataclass(frozen=True, kw_only=True)
class Claims:
    order: tuple[str, ...]
    advice: str
    words: str
    length: str
    columns: Mapping[str, str]
    parts: tuple[Part, ...]


def read_claims(folders: Sequence[str | Path]) -> Claims | None:
    """The claims beside the records; None where there is no file."""
    paths = [path for folder in folders if (path := Path(folder) / FILE).is_file()]
    if not paths:
        return None
    try:
        given = yaml.safe_load(paths[0].read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{paths[0]} is not YAML: {' '.join(str(error).split())}") from None
    keys = ("order", "advice", "words", "length", "columns", "parts")
    check_keys(FILE, given, keys, needs=keys)
    columns = _named("columns", given["columns"])
    return Claims(
        order=texts(f"order of {FILE}", given["order"]),
        **{key: text(f"{key} of {FILE}", given[key]) for key in ("advice", "words", "length")},
        columns=columns,
        parts=tuple(_part(part, columns) for part in _list("parts", given["parts"])),
    )


def _list(what: str, given: Any) -> list[Any]:
    if not isinstance(given, list):
        raise InputError(f"{what} of {FILE} must be a list, got {given!r}")
    return given


def _named(what: str, given: Any) -> dict[str, str]:
    found = mapping(f"{what} of {FILE}", given)
    return {text(f"a key of {what}", key): text(f"{what}.{key}", found[key]) for key in found}


def _part(given: Any, columns: Mapping[str, str]) -> Part:
    keys = ("title", "answers", "claims")
    check_keys(f"a part of {FILE}", given, keys, needs=keys)
    title = text("title of a part", given["title"])
    answers = mapping(f"answers of {title!r}", given["answers"])
    check_keys(f"answers of {title!r}", answers, [*columns])
    rows = {key: texts(f"{key} of {title!r}", rows) for key, rows in answers.items()}
    return Part(
        title=title,
        answers={key: tuple(_row(name) for name in names) for key, names in rows.items()},
        claims=tuple(_claim(one) for one in _list(f"claims of {title!r}", given["claims"])),
    )


def _row(name: str) -> tuple[str, str]:
    study, slash, variant = name.partition("/")
    if not slash:
        raise InputError(f"an answer of {FILE} is STUDY/VARIANT, got {name!r}")
    return study, variant


def _claim(given: Any) -> Claim:
    check_keys(f"a claim of {FILE}", given, _CLAIM, needs=("claim", "paper"))
    name = text("a claim", given["claim"])
    metric = given.get("metric", [])
    expects = given.get("expects", "better")
    if expects not in _EXPECTED:
        raise unknown(f"`expects` of claim {name!r}", expects, _EXPECTED)
    verdict = _named(f"verdict of {name!r}", given.get("verdict", {}))
    for word in verdict.values():
        if word not in _GIVEN:
            raise unknown(f"verdict of claim {name!r}", word, _GIVEN)
    return Claim(
        claim=name,
        paper=_effect(name, given["paper"]),
        metrics=(metric,) if isinstance(metric, str) else texts(f"metric of {name!r}", metric),
        expects=expects,
        short=text(f"short of {name!r}", given.get("short", "")),
        known=_named(f"known of {name!r}", given.get("known", {})),
        verdict=verdict,
    )


def _effect(name: str, given: Any) -> str:
    """ "+0.96 (72.17 to 73.13)" of a pair; words as they are."""
    if isinstance(given, str):
        return given
    try:
        first, second = map(float, given)
    except (TypeError, ValueError):
        raise InputError(
            f"paper of claim {name!r} must be [softmax, PID] or words, got {given!r}"
        ) from None
    return minus(f"{second - first:+.2f} ({first:.2f} to {second:.2f})")
