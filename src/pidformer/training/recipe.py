"""Recipes: YAML to typed, checked values.

A recipe may extend another (`extends: other.yaml`, relative to itself), and any value may be
overridden on the command line as `section.key=value`. Every key is checked; an unknown one names
its nearest match. `recipe_keys` lists them all.
"""

import ast
import dataclasses
import inspect
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pidformer.errors import InputError, shortened, unknown
from pidformer.fields import parse_yaml, read_yaml
from pidformer.runs.recipe import Recipe, SegmentationRecipe, TextRecipe, recipe_from

SHIPPED = Path(__file__).parents[1] / "recipes"
_OPTIONAL = {"segmentation": SegmentationRecipe, "text": TextRecipe}


def load_recipe(where: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe from a path, or from those shipped by name ("digits/pid.yaml")."""
    fields = _read(find_recipe(where))
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise InputError(
                f"an override must be key=value (as optim.lr=1e-3), got {shortened(override)}"
            )
        what = f"override {shortened(override)}"
        _put(fields, key.strip().split("."), parse_yaml(text, what), what)
    return recipe_from(fields)


def shipped_recipes() -> list[str]:
    """Names of the recipes that come with the package."""
    found = (path.relative_to(SHIPPED).as_posix() for path in SHIPPED.rglob("*.yaml"))
    return sorted(name for name in found if not Path(name).name.startswith("_"))


def find_recipe(where: str | Path) -> Path:
    for path in (Path(where), SHIPPED / where, SHIPPED / f"{where}.yaml"):
        if path.is_file():
            return path
    if Path(where).is_dir():
        held = Path(where, "recipe.yaml")
        hint = f"; that of this run is {held}" if held.is_file() else ""
        raise InputError(f"{where} is a folder; a recipe is a YAML file{hint}")
    raise unknown("recipe", str(where), shipped_recipes())


def recipe_name(where: str | Path) -> str:
    """A short name: its place among the shipped recipes, or the file's stem."""
    path = find_recipe(where).resolve()
    if path.is_relative_to(SHIPPED.resolve()):
        return path.relative_to(SHIPPED.resolve()).with_suffix("").as_posix()
    return path.stem


def difference(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Where two recipes differ, as "optim.lr: 0.001 -> 0.002"."""
    lines = []
    for key in dict.fromkeys([*old, *new]):
        a, b, name = old.get(key), new.get(key), f"{prefix}{key}"
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            lines += difference(a, b, f"{name}.")
        elif a != b:
            lines.append(f"{name}: {a} -> {b}")
    return lines


def _read(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    path = path.resolve()
    if path in seen:
        raise InputError(f"recipe {path} extends itself")
    fields = read_yaml(path, "recipe") or {}
    if not isinstance(fields, dict):
        raise InputError(
            f"recipe {path} must be a mapping of sections, got {type(fields).__name__}"
        )
    parent = fields.pop("extends", None)
    if parent is None:
        return fields
    base = path.parent / str(parent)
    if not base.is_file():
        raise InputError(f"recipe {path} extends {parent!r}, which is not at {base}")
    return _merge(_read(base, (*seen, path)), fields)


def _merge(base: dict[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in top.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        # Gains are one value, not a section: {p, i, d, beta} replaces what was there.
        merged[key] = _merge(merged[key], value) if both and key != "gains" else value
    return merged


def _put(fields: dict[str, Any], keys: list[str], value: Any, what: str) -> None:
    for key in keys[:-1]:
        fields = fields.setdefault(key, {})
        if not isinstance(fields, dict):
            raise InputError(f"{what}: {shortened(key)} is a value, not a section")
    fields[keys[-1]] = value


class Key(NamedTuple):
    """One key, as it is written in an override."""

    name: str
    kind: str
    default: Any
    text: str


def recipe_keys(kind: Any = Recipe, prefix: str = "") -> Iterator[Key]:
    """All keys of a recipe, section by section."""
    hints, texts = typing.get_type_hints(kind), _explanations(kind)
    for field in dataclasses.fields(kind):
        name, hint = f"{prefix}{field.name}", hints[field.name]
        section = _OPTIONAL.get(name, hint)
        if dataclasses.is_dataclass(section):
            yield from recipe_keys(section, f"{name}.")
            continue
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        yield Key(name, _words(hint), default, texts.get(field.name, ""))


def _explanations(kind: Any) -> dict[str, str]:
    """The string below each field, which Python itself does not keep."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            value = below.value if isinstance(below, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                found[field.target.id] = " ".join(value.value.split())
    return found


def _words(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return ", ".join(map(str, arguments))
    if origin in (types.UnionType, typing.Union):
        return " or ".join("null" if a is type(None) else _words(a) for a in arguments)
    if origin is tuple:
        return f"list of {_words(arguments[0])}s"
    names = {int: "whole number", float: "number", bool: "true or false", str: "text"}
    return names.get(origin or hint, "gains" if hint is Any else "keys and values")
