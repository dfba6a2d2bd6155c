"""The state of a view in its address, so that it can be shared."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlencode

from pidformer.errors import InputError

T = TypeVar("T")


def to_query(view: str, value: Any) -> str:
    """A frozen value as the address of a view, without what is at its default.

    >>> from pidformer.lab.knobs import Knobs
    >>> to_query("controller", Knobs(p=0.8, causal=True))
    '?view=controller&p=0.8&causal=1'
    """
    changed = {
        field.name: getattr(value, field.name)
        for field in fields(value)
        if getattr(value, field.name) != field.default
    }
    texts = {name: _text(item) for name, item in changed.items()}
    return "?" + urlencode({"view": view} | texts)


def from_query(kind: type[T], query: str, view: str = "") -> T:
    """The value of an address. What it does not name, or names wrongly, keeps its default; all of
    it does where the address is of another view than `view`."""
    given = parse_qs(query.lstrip("?"), keep_blank_values=True)
    if view and given.get("view", [""])[0] != view:
        return kind()
    values: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name not in given:
            continue
        try:
            value = _read(given[field.name][0], type(field.default))
            kind(**{field.name: value})
        except (ValueError, OverflowError, InputError):
            continue
        values[field.name] = value
    return kind(**values)


def from_values(kind: type[T], values: Sequence[Any]) -> T:
    """The value that a page's components hold, in field order; sliders give floats for integers."""
    known: Any = fields(kind)  # type: ignore[arg-type]
    named = zip(known, values, strict=False)
    return kind(**{field.name: type(field.default)(value) for field, value in named})


def view_of(query: str, known: tuple[str, ...]) -> str:
    """Which view an address asks for; the first one if it names none."""
    view = parse_qs(query.lstrip("?")).get("view", [known[0]])[0]
    return view if view in known else known[0]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _read(text: str, kind: type) -> Any:
    if kind is bool:
        return text in ("1", "true", "True")
    return int(float(text)) if kind is int else kind(text)
