"""Plain data, as YAML and JSON give it, to typed and checked values: the one reader of files.

`parse_yaml`, `read_yaml` and `read_json` give plain data, `typed` a dataclass of them with every
key and value checked against the annotations; a `Kind` says which values a keyword takes.
What is wrong gets one line: what was given, what is allowed, the nearest match.
"""

import copy
import dataclasses
import functools
import json
import math
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import yaml

from pidformer.errors import InputError, cut, shortened, unknown

T = TypeVar("T")
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_WORDS |= {dict: "a section of keys"}
_MOST_VALUES = 1_000_000
MAX_SEED = 2**63 - 1
"""The largest that torch's generators take on every device."""
_HUGE = 1e30
"""Numbers beyond it are infinite in float32 when they are multiplied a few times."""
_LARGEST = 2**64
"""Whole numbers beyond it are typing errors, and too large for any tensor."""


class _Loader(yaml.SafeLoader):
    """YAML that reads 1e-3 as a number and 1:30 as text, and takes each key once.

    YAML 1.1 wants 1.0e-3 and takes the rest for text, and 1:30 for ninety. Of a key that is given
    twice PyYAML keeps the last, a whole section of a recipe included.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := [key for place, key in enumerate(keys) if key in keys[:place]]:
            raise ValueError(f"{shortened(twice[0])} is given twice")
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)
_BASE_60 = re.compile(r"^[-+]?\d[\d_]*(:[0-5]?\d)+(\.[\d_]*)?$")
for _first in "-+0123456789":
    _Loader.yaml_implicit_resolvers[_first].insert(0, ("tag:yaml.org,2002:str", _BASE_60))


def parse_yaml(text: str | bytes, where: str) -> Any:
    """The plain data of a text; `where` is what an error begins with."""
    try:
        return copy.deepcopy(_parsed(text))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{where} is not YAML ({cut(error)})") from None


@functools.lru_cache(maxsize=64)
def _parsed(text: str | bytes) -> Any:
    """One command reads a recipe many times, and yaml takes 20 ms for each."""
    found = yaml.load(text, _Loader)  # a SafeLoader
    if _size(found, {}) > _MOST_VALUES:
        raise ValueError("its references nest without end")
    return found


def _size(held: Any, sizes: dict[int, float]) -> float:
    """How many values there are, those behind a reference counted each time."""
    if not isinstance(held, list | dict):
        return 1
    if id(held) not in sizes:
        sizes[id(held)] = math.inf  # until it is counted: it may hold itself
        inner = held.values() if isinstance(held, dict) else held
        sizes[id(held)] = 1 + sum(_size(value, sizes) for value in inner)
    return sizes[id(held)]


def read_yaml(path: Path, what: str) -> Any:
    """The plain data of a file; `what` names it in an error: "recipe"."""
    return parse_yaml(read_text(path, what), f"{what} {path}")


def read_text(path: Path, what: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{what} {path} is not text in UTF-8") from None


def read_json(path: Path) -> Any:
    """The plain data of a file of JSON."""
    try:
        return parse_json(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({cut(error)})") from None


def parse_json(text: str | bytes) -> Any:
    """The plain data of JSON; a ValueError too for half a character, which no file can hold."""
    text = text if isinstance(text, str) else text.decode()
    found = json.loads(text)
    if "\\ud" in text.lower():
        json.dumps(found, ensure_ascii=False).encode()
    return found


def typed(kind: type[T], fields: Any, where: str = "", *, key_of: str = "recipe key") -> T:
    """A dataclass of plain data; `where` is the key it stands at, `key_of` what keys are called."""
    if not isinstance(fields, Mapping):
        raise InputError(f"{where or key_of} must be a section of keys, got {shortened(fields)}")
    prefix = f"{where}." if where else ""
    hints = typing.get_type_hints(kind)
    members = dataclasses.fields(kind)  # type: ignore[arg-type]
    for key in fields:
        if key not in hints:
            raise unknown(key_of, f"{prefix}{key}", [f"{prefix}{m.name}" for m in members])
    for member in members:
        if member.name not in fields and member.default is member.default_factory:  # both MISSING
            needed = f"{prefix}{member.name}"
            raise InputError(f"{needed} is missing; {key_of}s without a default must be given")
    found = {k: as_type(hints[k], v, f"{prefix}{k}", key_of=key_of) for k, v in fields.items()}
    made = kind(**found)  # which refuses what is out of its ranges
    for key, value in found.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{prefix}{key} must be finite, got {value!r}")
    return made


def as_type(hint: Any, value: Any, where: str, *, key_of: str = "recipe key") -> Any:
    """`value` as the type that `hint` names, or an InputError that says what is allowed."""
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint):
        return typed(typing.cast(type, hint), value, where, key_of=key_of)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        return as_type(
            next(a for a in arguments if a is not type(None)), value, where, key_of=key_of
        )
    if origin is Literal:
        if not isinstance(value, str | int | None) or value not in arguments:
            allowed = ", ".join(map(str, arguments))
            raise InputError(f"{where} must be one of {allowed}, got {shortened(value)}")
        return value
    if origin is dict and isinstance(value, dict) and dataclasses.is_dataclass(arguments[1]):
        kind = arguments[1]
        return {k: as_type(kind, v, f"{where}.{k}", key_of=key_of) for k, v in value.items()}
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise InputError(f"{where} must be a list, got {shortened(value)}")
        if arguments[-1] is not Ellipsis and len(value) != len(arguments):
            raise InputError(f"{where} must have {len(arguments)} entries, got {shortened(value)}")
        return tuple(as_type(arguments[0], entry, where, key_of=key_of) for entry in value)
    return _scalar(origin or hint, value, where)


def _scalar(kind: type, value: Any, where: str) -> Any:
    is_whole = type(value) is int or (isinstance(value, float) and value.is_integer())
    if kind is float and isinstance(value, float) and _HUGE < abs(value) < math.inf:
        raise InputError(f"{where} must be at most {_HUGE:g} in size, got {value:g}")
    if (kind is int and is_whole) or (kind is float and type(value) is int):
        if abs(value) >= _LARGEST:
            raise InputError(f"{where} must be {_WORDS[kind]} below 2**64, got {shortened(value)}")
        return kind(value)
    if isinstance(value, kind) and not (kind in (int, float) and isinstance(value, bool)):
        return value
    raise InputError(f"{where} must be {_WORDS.get(kind, kind.__name__)}, got {shortened(value)}")


def as_plain(value: Any) -> Any:
    """Tuples as lists and paths as text, so that YAML and JSON give the same back."""
    return mapped(lambda leaf: str(leaf) if isinstance(leaf, Path) else leaf, value)


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Plain data with each of its leaves changed."""
    if isinstance(value, Mapping):
        return {key: mapped(change, entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [mapped(change, entry) for entry in value]
    return change(value)


def check_least(
    where: str, made: Any, names: Sequence[str], *, low: int, high: float = math.inf
) -> None:
    """Refuse an attribute below `low` or above `high`, or not finite; None is no number."""
    for name in names:
        value = getattr(made, name)
        if value is not None and not low <= value < math.inf:
            finite = "" if math.isfinite(value) else "finite and "
            got = shortened(value)
            raise InputError(f"{where}.{name} must be {finite}at least {low}, got {got}")
        if value is not None and value > high:
            raise InputError(f"{where}.{name} must be at most {high:g}, got {shortened(value)}")


class Kind(NamedTuple):
    """Which values a keyword takes, in words and as a check."""

    words: str
    takes: Callable[[Any], bool]


def is_number(value: Any) -> bool:
    """Finite, and as tensors take whole ones."""
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and abs(value) < 2**63


def check_text(word: str) -> None:
    """Refuse what stands for bytes that are no text: no library takes it for a path."""
    if not word.isascii() and word != word.encode(errors="ignore").decode():
        raise InputError(f"{shortened(word)} is not text in UTF-8; rename the file or give another")


def check_seed(seed: int) -> int:
    """The seed, if every generator takes it."""
    if not 0 <= seed <= MAX_SEED:
        raise InputError(f"seed must be a whole number from 0 to 2**63 - 1, got {shortened(seed)}")
    return seed


def count(high: int, low: int = 1) -> Kind:
    return Kind(
        f"a whole number from {low} to {high}", lambda v: type(v) is int and low <= v <= high
    )


def number(high: float, words: str, *, above: float = -math.inf) -> Kind:
    """From 0 to `high`, and above `above`."""
    return Kind(words, lambda v: is_number(v) and 0 <= v <= high and v > above)


def choice(*names: str) -> Kind:
    return Kind("one of " + ", ".join(n or "''" for n in names), lambda v: v in names)


def optional(kind: Kind) -> Kind:
    return Kind(f"{kind.words}, or null", lambda v: v is None or kind.takes(v))


def each(kind: Kind, most: int) -> Kind:
    """One such value, or a list of them."""

    def takes(given: Any) -> bool:
        parts = given if isinstance(given, (list, tuple)) else [given]
        return 1 <= len(parts) <= most and all(map(kind.takes, parts))

    return Kind(kind.words if most == 2 else f"each {kind.words}", takes)


def listed(takes: Callable[[Any], bool], words: str) -> Kind:
    """A list of such values."""
    return Kind(f"a list of {words}", lambda v: isinstance(v, list) and all(map(takes, v)))


SWITCH = Kind("true or false", lambda v: type(v) is bool)
TEXTS = listed(lambda v: isinstance(v, str), "texts")
RATE = Kind("in [0, 1)", lambda v: is_number(v) and 0 <= v < 1)
SHARE = number(1, "in [0, 1]")
SCALE = number(100, "from 0 to 100")
POSITIVE = number(1e6, "above 0 and at most 1e6", above=0)


def number_range(text: str, most: int) -> list[float]:
    """ "0:0.8:0.2" is 0, 0.2, ... 0.8, "0,0.1,0.3" a list; nothing where it is neither.

    No more than `most` + 1 numbers are made, enough to see that there are too many.

    >>> number_range("0:0.6:0.2", 10)
    [0.0, 0.2, 0.4, 0.6]
    """
    try:
        if ":" not in text:
            return [float(part) for part in text.split(",")]
        first, last, step = (float(part) for part in text.split(":"))
        count = min(int((last - first) / step + 1e-9), most) + 1
        return [round(first + step * place, 12) for place in range(count)]
    except (ValueError, ArithmeticError):
        return []
