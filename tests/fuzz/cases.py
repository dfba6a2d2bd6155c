"""Commands with one wrong value each, made from the commands' options and the recipe's fields.

A new option or key is covered the day it appears: nothing here names one.
"""

from __future__ import annotations

import dataclasses
import random
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer

from pidformer.cli import app
from pidformer.training.recipe import Recipe
from tests.fuzz.values import WRONG

SMALL = "model.options={embed_dim: 8, depth: 2, num_heads: 2, patch_size: 4, mlp_ratio: 2}"
TRAIN = ("train", "digits/pid.yaml", SMALL, "schedule.epochs=1", "--out", "out", "--device", "cpu")
VALID: dict[str, tuple[str, ...]] = {
    "train": TRAIN,
    "evaluate": ("evaluate", "image", "--limit", "8", "--suite", "digits", "--device", "cpu"),
    "analyze": ("analyze", "image", "--limit", "4", "--out", "out", "--device", "cpu"),
    "tune": ("tune", "image", "--limit", "4", "--device", "cpu"),
    "convert": ("convert", "image", "--gains", "0.1,0,0", "--out", "out"),
    "export": ("export", "image", "--out", "out", "--format", "torch"),
    "publish": ("publish", "image", "--out", "out"),
    "report": ("report", "image", "--out", "out"),
    "reproduce": ("reproduce", "--scale", "tiny", "--dry-run", "--out", "out"),
    "demo": ("demo", "--out", "out"),
    "recipes": ("recipes", "digits/pid.yaml"),
    "stability": ("stability", "--gains", "0.4,0.1,0.05"),
    "generate": ("generate", "language", "--max-tokens", "2", "--device", "cpu"),
    "segment": ("segment", "segmentation", "picture.png", "--out", "out", "--device", "cpu"),
    "bench": ("bench", "operator", "--device", "cpu"),
    "lab": ("lab", "--port", "0"),
    "data check": ("data", "check", "image"),
}
"""One command that works, for each: its files are in the sandbox."""


@dataclass(frozen=True)
class Case:
    what: str
    """The option, key or file that is wrong."""
    arguments: tuple[str, ...]
    damage: tuple[str, int, int] | None = None
    """A file of the sandbox, a place in it, and a bit to flip there; -1 cuts the file there."""


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
                yield Case(f"{name} {option.opts[-1]}", given)


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


def override_cases() -> Iterator[Case]:
    for key in (*recipe_keys(), *(f"model.options.{x}" for x in ("depth", "act_layer", "qk_norm"))):
        for value in WRONG:
            yield Case(f"recipe {key}", (*TRAIN, f"{key}={value}"))


def damage_cases(sandbox: Path, seed: int) -> Iterator[Case]:
    """Each file of a run and of a data set, cut at each tenth and with 200 bits flipped."""
    chance = random.Random(seed)
    readers = {"image": "evaluate", "language": "generate", "segmentation": "segment"}
    for path in sorted(p for p in sandbox.rglob("*") if p.is_file()):
        where = path.relative_to(sandbox)
        command = readers.get(where.parts[0])
        if where.name == "picture.png":
            command = "segment"
        if where.parts[0] == "photos":
            reader: tuple[str, ...] = ("data", "check", "photos")
        elif where.parts[0] == "interrupted":
            reader = (*TRAIN, "--out", "interrupted")
        elif command is None:
            continue
        else:
            reader = VALID[command]
        size = path.stat().st_size
        places = [(size * tenth // 10, -1) for tenth in range(10)]
        places += [(chance.randrange(size), chance.randrange(8)) for _ in range(200 if size else 0)]
        for place, bit in places:
            yield Case(f"damaged {where}", reader, (str(where), place, bit))


def some(sandbox: Path, count: int, seed: int) -> list[Case]:
    """A sample of all cases, spread over what may be wrong."""
    chance = random.Random(seed)
    groups: dict[str, list[Case]] = {}
    for case in (*option_cases(), *override_cases(), *damage_cases(sandbox, seed)):
        groups.setdefault(case.what, []).append(case)
    for group in groups.values():
        chance.shuffle(group)
    names = sorted(groups)
    chance.shuffle(names)
    chosen: list[Case] = []
    while len(chosen) < count and any(groups.values()):
        for name in names:
            if groups[name] and len(chosen) < count:
                chosen.append(groups[name].pop())
    return chosen
