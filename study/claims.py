"""results/claims.yaml: what the paper claims, and which records answer it.

order: [STUDY, ...]                          # of the studies on results.md; the others follow
advice: Use ... {STUDY/VARIANT/METRIC} ...   # a difference to softmax stands for each such name,
                                             # or to another row: {STUDY/VARIANT minus ROW/METRIC}
words: How to read the table.
length: What the figure over the length of training says; numbers as in `advice`.
columns: {paper: the paper's gains}          # what the answers are headed by
parts:
  - title: Table 1
    answers: {paper: [STUDY/VARIANT]}        # the one with the most seeds, then the first;
                                             # registered ones may be named before they have runs
    claims:
      - claim: Clean, Top-1
        paper: [72.17, 73.13]                # softmax and PID; or words
        metric: Clean                        # or a list: all of them; or by study, {STUDY: Clean}
        expects: better                      # unless given; or worse, more, less
        short: Clean accuracy                # its name in README.md; without it it is not there
      - claim: stable                        # without a record: words and verdict by column
        paper: proved
        known: {paper: unstable for ...}
        verdict: {paper: does not hold}
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pidformer.errors import InputError, unknown
from pidformer.fields import as_type, read_yaml, typed
from pidformer.report.table_view import minus

FILE = "claims.yaml"
HOLDS, FAILS = "holds", "does not hold"
ONE_SEED, EARLY, UNMEASURED = "one seed only", "not decided yet", "not measured"
NO_RUNS = "no runs yet"
_GIVEN = (HOLDS, FAILS)


@dataclass(frozen=True, kw_only=True)
class Claim:
    claim: str
    paper: Any
    """Its effect there, in words."""
    metric: Any = ()
    expects: Literal["better", "worse", "more", "less"] = "better"
    short: str = ""
    known: dict[str, str] = field(default_factory=dict)
    """What answers it, by column, where no record does."""
    verdict: dict[str, str] = field(default_factory=dict)
    """Then."""

    def __post_init__(self) -> None:
        for word in self.verdict.values():
            if word not in _GIVEN:
                raise unknown(f"verdict of claim {self.claim!r}", word, _GIVEN)
        object.__setattr__(self, "paper", _effect(self.claim, self.paper))
        given = self.metric.values() if isinstance(self.metric, Mapping) else [self.metric]
        for one in given:
            if not isinstance(one, str):
                as_type(tuple[str, ...], one, f"metric of claim {self.claim!r}")

    def metrics(self, study: str) -> tuple[str, ...]:
        """That a study answers it by."""
        given = self.metric.get(study, ()) if isinstance(self.metric, Mapping) else self.metric
        return (given,) if isinstance(given, str) else tuple(given)


@dataclass(frozen=True, kw_only=True)
class Part:
    """Claims that the same rows answer."""

    title: str
    answers: dict[str, Any]
    """(study, variant), by column."""
    claims: tuple[Claim, ...]

    def __post_init__(self) -> None:
        found = {}
        for column, names in self.answers.items():
            rows = as_type(tuple[str, ...], names, f"{column} of {self.title!r}")
            found[column] = tuple(_row(name) for name in rows)
        object.__setattr__(self, "answers", found)  # parts may share what the file says once


@dataclass(frozen=True, kw_only=True)
class Claims:
    order: tuple[str, ...]
    advice: str
    words: str
    length: str
    columns: dict[str, str]
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        for part in self.parts:
            for column in part.answers:
                if column not in self.columns:
                    raise unknown(f"key of answers of {part.title!r}", column, self.columns)


def read_claims(folders: Sequence[str | Path]) -> Claims | None:
    """The claims beside the records; None where there is no file."""
    paths = [path for folder in folders if (path := Path(folder) / FILE).is_file()]
    if not paths:
        return None
    given = read_yaml(paths[0], "claims")
    try:
        return typed(Claims, given, key_of=f"key of {FILE}")
    except InputError as error:
        raise InputError(f"{FILE}: {error}") from None


def _row(name: str) -> tuple[str, str]:
    study, slash, variant = name.partition("/")
    if not slash:
        raise InputError(f"an answer is STUDY/VARIANT, got {name!r}")
    return study, variant


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
