"""What a stranger types to make a run, or one of its records, again.

RUN stands for the run's folder, DATA for the folder of the set that the record names.
"""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from pidformer.control import DiscreteGains, PIDGains
from pidformer.control.feedback import Feedback, as_feedback
from pidformer.results import Record, as_text
from pidformer.robustness.segmentation import segmentation_threats
from pidformer.robustness.threat import as_budget
from pidformer.runs.folder import trained_on
from pidformer.runs.twins import MOVES_NOTHING
from pidformer.training.recipe import load_recipe, shipped_recipes


def train_command(recipe: Mapping[str, Any], run: str = "RUN", data: str | None = None) -> str:
    """`pidformer train` with the shipped recipe that is nearest, and what differs from it.

    A task that no shipped recipe has: with RECIPE, the run's own. With `data`, where the run's were
    on this machine, the command repeats it as it was; else settings that move nothing are left out.
    """
    task, seed = recipe.get("task", "classification"), recipe.get("seed", 0)
    left_out = ("seed", *(MOVES_NOTHING if data is None else ()))
    found = [
        (_overrides(fields, recipe, but=left_out), name)
        for name, fields in _shipped().items()
        if fields["task"] == task
    ]
    overrides, name = min(found, key=lambda pair: (len(pair[0]), pair[1]), default=([], "RECIPE"))
    written = (f"{key}={_value_text(key, value)}" for key, value in overrides)
    words = ["pidformer", "train", name, *written, f"seed={seed}"]
    place = data or recipe.get("data", {}).get("name")
    if place != "digits":  # these come with the package
        words += ["--data", data or "DATA"]
    return shlex.join([*words, "--out", run])


def data_option(folders: Iterable[Path]) -> str:
    """` --data` and the place where all these runs were trained, or DIR; nothing for digits."""
    places = {trained_on(folder) for folder in folders}
    place = places.pop() if len(places) == 1 else None
    return "" if place == "digits" else f" --data {shlex.quote(place or 'DIR')}"


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    return {name: load_recipe(name).to_dict() for name in shipped_recipes()}


def _overrides(
    base: Mapping[str, Any], own: Mapping[str, Any], prefix: str = "", *, but: Sequence[str]
) -> list[tuple[str, Any]]:
    """Keys and values that differ."""
    found: list[tuple[str, Any]] = []
    for key, value in own.items():
        name = f"{prefix}{key}"
        before = base.get(key)
        if value == before or name in but:
            continue
        is_section = isinstance(value, Mapping) and key != "gains"
        # an override cannot take a key away
        if is_section and isinstance(before, Mapping) and set(before) <= set(value):
            found += _overrides(before, value, f"{name}.", but=but)
        else:
            found.append((name, value))
    return found


def _value_text(name: str, value: Any) -> str:
    if name.split(".")[-1] == "gains" and isinstance(value, list):
        return json.dumps([recipe_text(as_feedback(layer)) for layer in value])
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return str(text.removesuffix("\n").removesuffix("...").strip())


def recipe_text(gains: PIDGains) -> str | dict[str, float]:
    """Gains as recipes take them, to the last digit; other feedback by its name or its fields.

    >>> recipe_text(PIDGains(p=0.4, i=0.1 / 3))
    '0.4,0.03333333333333333,0,1'
    """
    if isinstance(gains, Feedback):
        return gains.to_dict() if gains.kind == "feedback" else gains.kind
    numbers = (gains.p, gains.i, gains.d, gains.beta)
    text = ",".join(repr(number).removesuffix(".0") for number in numbers)
    if isinstance(gains, DiscreteGains):
        return f"{text},{gains.derivative},step={gains.step!r}"
    return text


def measure_command(record: Record) -> str:
    """`pidformer evaluate` or `analyze`, or the call from Python where the command cannot."""
    s = record.settings
    words = ["pidformer", "evaluate", "RUN", "--data", "DATA"]
    if record.kind == "analysis":
        words = ["pidformer", "analyze", "RUN", "--data", "DATA", "--limit", str(s.get("limit"))]
        return shlex.join(words)
    extra = [] if s.get("limit") is None else ["--limit", str(s["limit"])]
    if record.kind == "robustness":
        words += _suite(s)
        if s.get("domain") not in (None, "pixel"):
            words += ["--domain", str(s["domain"])]
    elif record.kind == "segmentation":
        row = s.get("row", "clean")
        if row == "clean":
            words += ["--views", str(s.get("views"))]
        elif as_text(segmentation_threats().get(row)) == record.measurement.threat:
            words += ["--suite", "robustness"]
        else:
            return _call("evaluate_segmentation", s, "threat", "views")
    elif record.kind == "language":
        is_plain = record.measurement.noise is None and "/window/" not in str(s.get("row"))
        if is_plain and _own_stride(s):
            return _call("evaluate_language", s, "protocol", "split", "precision", "stride")
        words += ["--split", str(s.get("split"))]
        words += ["--protocol", str(s.get("protocol"))] if is_plain else ["--suite", "robustness"]
        if s.get("precision") not in (None, "fp32"):
            words += ["--precision", str(s["precision"])]
    variable = "PIDFORMER_TF32=1 " if s.get("attention") == "tf32" else ""
    return variable + shlex.join([*words, *extra])


def _suite(s: Mapping[str, Any]) -> list[str]:
    """The suite, or the point of a curve; with any curve comes the clean set."""
    if s.get("suite") != "curve":
        return ["--suite", str(s.get("suite"))]
    attack, _, budget = str(s.get("row")).partition("@")
    levels = f"{255 * as_budget(budget):g}" if budget else "0"
    return ["--curve", attack if budget else "fgsm", "--eps", levels]


def _own_stride(s: Mapping[str, Any]) -> bool:
    """Whether a strided record was moved by other than half a window."""
    stride, window = s.get("stride"), s.get("window")
    if s.get("protocol") != "strided" or stride is None or window is None:
        return False
    return stride != max(1, window // 2)


def _call(function: str, s: Mapping[str, Any], *names: str) -> str:
    """The call from Python, with the settings of these names; a threat is written as its `repr`."""
    given = [f"{n}={s.get(n)}" if n == "threat" else f"{n}={s.get(n)!r}" for n in names]
    given += [f"limit={s['limit']}"] if s.get("limit") is not None else []
    return f"{function}(RUN, data=DATA, {', '.join(given)})"
