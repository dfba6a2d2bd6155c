"""What an event of the page may carry: every input is checked before gradio sees it.

gradio takes any object that looks like its `FileData`, at any depth of any input, for the name of
a file to copy and hand out. So a body is not searched for such objects: it is rebuilt from values
of the one type that each component sends.
"""

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, NoReturn

import gradio as gr

from pidformer.errors import InputError
from pidformer.fields import SWITCH, Kind

LONGEST_TEXT = 2**15
"""Characters of a text whose component sets no limit; an address fits, whatever its prompt."""
LARGEST = 1e6
"""The largest number that may name what raised an event."""
_HALVES = re.compile("[\ud800-\udfff]")
"""Halves of characters, which no text has."""


class Events:
    """The events of a page that reach the server, each with a check for every input."""

    def __init__(self, blocks: gr.Blocks) -> None:
        self._known = {
            number: (
                "queue/join" if event.queue else "run/predict",
                list(map(_kind, event.inputs)),
            )
            for number, event in blocks.fns.items()
            if event.fn is not None
        }

    def rebuilt(self, route: str, body: bytes, uploads: Collection[str]) -> dict[str, Any]:
        """The event in `body`, if it is one that the page sends to `route`."""
        try:
            asked = json.loads(body, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            raise InputError("an event is JSON, of numbers that are finite") from None
        if not isinstance(asked, dict):
            raise InputError(f"an event is an object, got {_named(asked)}")
        number, data, session = (asked.get(k) for k in ("fn_index", "data", "session_hash"))
        if type(number) is not int or self._known.get(number, ("",))[0] != route:
            raise InputError(f"no event of this number is sent to {route}")
        kinds = self._known[number][1]
        if not isinstance(data, list) or len(data) != len(kinds):
            raise InputError(f"event {number} takes {len(kinds)} inputs")
        if not isinstance(session, str):
            raise InputError("an event names its session")
        trigger = asked.get("trigger_id")
        return {
            "data": [_checked(*given, uploads) for given in zip(kinds, data, strict=True)],
            "fn_index": number,
            "session_hash": session,
            "trigger_id": trigger if type(trigger) is int and abs(trigger) < LARGEST else None,
        }


def _checked(kind: Kind | None, value: Any, uploads: Collection[str]) -> Any:
    """The value to pass on, of a visitor who uploaded these paths."""
    if kind is None:
        return _upload(value, uploads)
    if not kind.takes(value):
        raise InputError(f"{kind.words} is wanted, got {_named(value)}")
    return value


def _kind(component: Any) -> Kind | None:
    """What a component sends, None for a file; one that is not known here cannot be an input."""
    if type(component) is gr.File:
        return None
    if isinstance(component, gr.Textbox):
        most = component.max_length or LONGEST_TEXT
        return Kind(
            f"a text of at most {most} characters",
            lambda v: isinstance(v, str) and len(v) <= most and not _HALVES.search(v),
        )
    if isinstance(component, gr.CheckboxGroup | gr.Radio | gr.Dropdown):
        among = [value for _, value in component.choices]
        one = Kind(
            "one of the choices shown", lambda v: v is None or (isinstance(v, str) and v in among)
        )
        if not isinstance(component, gr.CheckboxGroup):
            return one
        return Kind(
            "a list of the choices shown",
            lambda v: isinstance(v, list) and len(v) <= len(among) and all(map(one.takes, v)),
        )
    if isinstance(component, gr.Slider):
        low, high = component.minimum, component.maximum
        # gradio would write a traceback to the terminal for each number out of range, NaN too
        return Kind(
            f"a number from {low:g} to {high:g}",
            lambda v: type(v) in (int, float) and low <= v <= high,
        )
    if type(component) is gr.Checkbox:
        return SWITCH
    if type(component) is gr.State:  # kept by the server: what a browser sends for it is null
        return Kind("null", lambda v: v is None)
    raise TypeError(f"{type(component).__name__} has no check for what visitors send")


def _upload(value: Any, uploads: Collection[str]) -> dict[str, Any] | None:
    """Only the path of the browser's description of a file; the rest is rebuilt."""
    if value is None:
        return None
    path = value.get("path") if isinstance(value, dict) else None
    if not isinstance(path, str) or path not in uploads:
        raise InputError("a file that you uploaded is wanted")
    return {"path": path, "orig_name": Path(path).name, "meta": {"_type": "gradio.FileData"}}


def _named(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(text)
