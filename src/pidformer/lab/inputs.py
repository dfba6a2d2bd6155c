"""What an event of the page may carry: every input is checked before gradio sees it.

gradio takes any object that looks like its `FileData`, at any depth of any input, for the name of
a file to copy and hand out. So a body is not searched for such objects: it is rebuilt from values
of the one type that each component sends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NoReturn

import gradio as gr

from pidformer.errors import InputError

LONGEST_TEXT = 8192
"""Characters of a text whose component sets no limit; a whole address fits."""
LARGEST = 1e6
"""The largest number of a slider whose range moves."""
MOVES = "attack-number"
"""The slider whose range follows another choice; its view bounds it."""
Check = Callable[[Any, Collection[str]], Any]
"""(value, paths this visitor uploaded) -> the value to pass on."""


class Events:
    """The events of a page that reach the server, each with a check for every input."""

    def __init__(self, blocks: gr.Blocks) -> None:
        self._known = {
            number: (
                "queue/join" if event.queue else "run/predict",
                list(map(_check, event.inputs)),
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
        checks = self._known[number][1]
        if not isinstance(data, list) or len(data) != len(checks):
            raise InputError(f"event {number} takes {len(checks)} inputs")
        if not isinstance(session, str):
            raise InputError("an event names its session")
        trigger = asked.get("trigger_id")
        return {
            "data": [check(value, uploads) for check, value in zip(checks, data, strict=True)],
            "fn_index": number,
            "session_hash": session,
            "trigger_id": trigger if type(trigger) is int and abs(trigger) < LARGEST else None,
        }


def _check(component: Any) -> Check:
    """The check for what a component sends; one that is not known here cannot be an input."""
    if isinstance(component, gr.Textbox):
        return _text(component.max_length or LONGEST_TEXT)
    if isinstance(component, gr.CheckboxGroup):
        return _choices([value for _, value in component.choices])
    if isinstance(component, gr.Radio | gr.Dropdown):
        return _choice([value for _, value in component.choices])
    if isinstance(component, gr.Slider):
        is_fixed = component.elem_id != MOVES
        return _number(component.minimum, component.maximum if is_fixed else LARGEST)
    plain: dict[type, Check] = {
        gr.Checkbox: _truth,
        gr.State: _nothing,
        gr.File: _upload,
    }
    if type(component) not in plain:
        raise TypeError(f"{type(component).__name__} has no check for what visitors send")
    return plain[type(component)]


def _text(most: int) -> Check:
    def check(value: Any, uploads: Collection[str]) -> str:
        if not isinstance(value, str):
            raise InputError(f"a text is wanted, got {_named(value)}")
        if len(value) > most:
            raise InputError(f"at most {most} characters are taken, got {len(value)}")
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise InputError("a text is wanted, got half of a character")
        return value

    return check


def _choice(among: list[Any]) -> Check:
    def check(value: Any, uploads: Collection[str]) -> Any:
        if value is not None and not (isinstance(value, str) and value in among):
            raise InputError(f"one of the choices shown is wanted, got {_named(value)}")
        return value

    return check


def _choices(among: list[Any]) -> Check:
    one = _choice(among)

    def check(value: Any, uploads: Collection[str]) -> list[Any]:
        if not isinstance(value, list) or len(value) > len(among):
            raise InputError(f"a list of the choices shown is wanted, got {_named(value)}")
        return [one(item, uploads) for item in value]

    return check


def _number(low: float, high: float) -> Check:
    """gradio would write a traceback to the terminal for each number out of range."""

    def check(value: Any, uploads: Collection[str]) -> float:
        if type(value) not in (int, float) or not low <= value <= high:  # NaN too
            raise InputError(f"a number from {low:g} to {high:g} is wanted, got {_named(value)}")
        return value

    return check


def _truth(value: Any, uploads: Collection[str]) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"true or false is wanted, got {_named(value)}")
    return value


def _nothing(value: Any, uploads: Collection[str]) -> None:
    if value is not None:  # kept by the server: what a browser sends for it is null
        raise InputError(f"null is wanted, got {_named(value)}")


def _upload(value: Any, uploads: Collection[str]) -> dict[str, Any] | None:
    """Only the path of the browser's description of a file; the rest is written anew."""
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
