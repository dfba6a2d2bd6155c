"""Commands with one wrong value each, made from the commands' options and the files' keys.

A new option or key is covered the day it appears: nothing here names one.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from pidformer.cli import app
from pidformer.control import PIDGains
from pidformer.evaluation.suite import KINDS as ROWS
from pidformer.evaluation.suite import _Corruptions
from pidformer.models.options import LANGUAGE, TIMM, VISION
from pidformer.robustness.registry import THREATS
from pidformer.runs.recipe import Recipe
from tests.fuzz.values import WRONG

SMALL = "model.options={embed_dim: 8, depth: 2, num_heads: 2, patch_size: 4, mlp_ratio: 2}"
END = ("--out", "out", "--device", "cpu")
TRAIN = ("train", "digits/pid.yaml", SMALL, "schedule.epochs=1", *END)
TRAINING = {
    "classification": TRAIN,
    "segmentation": ("train", "segmentation/recipe.yaml", "--data", "pairs", *END),
    "language": ("train", "language/recipe.yaml", "text.cache=cache", "--data", "texts", *END),
}
VALID: dict[str, tuple[str, ...]] = {
    "train": TRAIN,
    "evaluate": ("evaluate", "image", "--limit", "8", "--suite", "digits", "--device", "cpu"),
    "analyze": ("analyze", "image", "--limit", "4", "--out", "out", "--device", "cpu"),
    "tune": ("tune", "image", "--limit", "4", "--device", "cpu"),
    "convert": ("convert", "image", "--gains", "0.1,0,0", "--out", "out"),
    "export": ("export", "image", "--out", "out", "--format", "pt2"),
    "publish": ("publish", "image", "--out", "out"),
    "report": ("report", "image", "--out", "out"),
    "reproduce": ("reproduce", "--scale", "small", "--dry-run", "--out", "out"),
    "demo": ("demo", "--out", "out"),
    "recipes": ("recipes", "digits/pid.yaml"),
    "stability": ("stability", "--gains", "0.4,0.1,0.05"),
    "generate": ("generate", "language", "--max-tokens", "2", "--device", "cpu"),
    "segment": ("segment", "segmentation", "picture.png", "--out", "out", "--device", "cpu"),
    "bench": ("bench", "operator", "--device", "cpu"),
    "lab": ("lab", "--port", "0"),
    "data check": ("data", "check", "photos.jpg"),
}
"""One command that works, for each: its files are in the sandbox."""
TURNS = {
    "option of a command": 5,
    "key of a recipe": 5,
    "option of a model": 3,
    "key of a suite": 2,
}
"""How many cases of a kind a sample takes for one of another."""


@dataclass(frozen=True)
class Flip:
    """One bit of a file; `bit` -1 cuts the file at `place`."""

    name: str
    place: int
    bit: int

    def apply(self, box: Path) -> None:
        data = bytearray((box / self.name).read_bytes())
        if self.bit < 0:
            del data[self.place :]
        else:
            data[self.place] ^= 1 << self.bit
        (box / self.name).write_bytes(bytes(data))


@dataclass(frozen=True)
class Write:
    """A file with another content."""

    name: str
    content: bytes

    def apply(self, box: Path) -> None:
        (box / self.name).write_bytes(self.content)


class Change(typing.Protocol):
    """What is done to a file of the sandbox before the command."""

    @property
    def name(self) -> str: ...
    def apply(self, box: Path) -> None: ...


@dataclass(frozen=True)
class Case:
    kind: str
    what: str
    """The option, key or file that is wrong."""
    arguments: tuple[str, ...]
    change: Change | None = None


def option_cases() -> Iterator[Case]:
    """Each option and argument of each command, with each wrong value."""
    commands = typing.cast(typing.Any, typer.main.get_command(app)).commands
    found = {name: command for name, command in commands.items() if name != "data"}
    found["data check"] = commands["data"].commands["check"]
    for name, command in found.items():
        for option in command.params:
            if getattr(option, "is_flag", False) or option.name == "help":
                continue
            for value in WRONG:
                valid = VALID[name]
                if option.param_type_name == "argument":
                    words = len(name.split())
                    given = (*valid[:words], value, *valid[words + 1 :])
                else:
                    given = (*_without(valid, option.opts), option.opts[0], value)
                yield Case("option of a command", f"{name} {option.opts[-1]}", given)


def _without(arguments: tuple[str, ...], names: list[str]) -> tuple[str, ...]:
    kept = list(arguments)
    for name in names:
        if name in kept:
            place = kept.index(name)
            del kept[place : place + 2]
    return tuple(kept)


def recipe_keys(kind: type = Recipe, before: str = "") -> Iterator[str]:
    """All keys of a recipe, sections and what is in them."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        name = f"{before}{field.name}"
        yield name
        options = [hints[field.name], *typing.get_args(hints[field.name])]
        for inner in options:
            if dataclasses.is_dataclass(inner) and isinstance(inner, type):
                yield from recipe_keys(inner, f"{name}.")


def recipe_cases() -> Iterator[Case]:
    """Each key of a recipe, for each task."""
    for task, command in TRAINING.items():
        for key in recipe_keys():
            for value in WRONG:
                yield Case("key of a recipe", f"{task} {key}", (*command, f"{key}={value}"))
    for field in dataclasses.fields(PIDGains):
        for value in WRONG:
            given = f"model.gains={{{field.name}: {value}}}"
            yield Case("key of a recipe", f"gains {field.name}", (*TRAIN, given))


def model_cases() -> Iterator[Case]:
    """Each option of our models and of timm's."""
    timm = (*TRAIN, "model.name=timm:vit_tiny_patch16_224")
    for base, known in ((TRAIN, VISION), (timm, TIMM), (TRAINING["language"], LANGUAGE)):
        for key in known:
            for value in WRONG:
                given = (*base, f"model.options.{key}={value}")
                yield Case("option of a model", f"{base[-1]} {key}", given)


def suite_cases() -> Iterator[Case]:
    """Each setting of each row that a suite may have, and what stands around them."""
    settings = {name: [f.name for f in dataclasses.fields(kind)] for name, kind in THREATS.items()}
    settings["corruptions"] = [field.name for field in dataclasses.fields(_Corruptions)]
    texts = {
        f"{row} {key}": f"rows: [{row}: {{{key}: @}}]" for row in settings for key in settings[row]
    }
    texts |= {f"row {row}": f"rows: [clean, {row}: @]" for row in ROWS}
    texts |= {"rows": "rows: @", "row": "rows: [@]", "suite": "@", "key": "rows: [clean]\n@: 1"}
    command = ("evaluate", "image", "--limit", "4", "--suite", "suite.yaml", "--device", "cpu")
    for what, text in texts.items():
        for value in WRONG:
            content = text.replace("@", value).encode("utf-8", "surrogateescape")
            change = Write("suite.yaml", content)
            yield Case("key of a suite", f"suite {what}", command, change)


def some(cases: Sequence[Case], count: int, seed: int) -> list[Case]:
    """A sample, spread over the kinds and, within each, over what may be wrong."""
    chance = random.Random(seed)
    kinds: dict[str, dict[str, list[Case]]] = {}
    for case in cases:
        kinds.setdefault(case.kind, {}).setdefault(case.what, []).append(case)
    rows = {kind: iter(_turns(groups, chance)) for kind, groups in kinds.items()}
    chosen: list[Case] = []
    while rows and len(chosen) < count:
        for kind in list(rows):
            turn = list(itertools.islice(rows[kind], TURNS.get(kind, 1)))
            chosen += turn
            if not turn:
                del rows[kind]
    del chosen[count:]
    chance.shuffle(chosen)
    return chosen


def _turns(groups: dict[str, list[Case]], chance: random.Random) -> Iterator[Case]:
    """One case of each group, then another of each, to the end."""
    names = sorted(groups)
    chance.shuffle(names)
    for group in groups.values():
        chance.shuffle(group)
    while any(groups.values()):
        yield from (groups[name].pop() for name in names if groups[name])
