"""The model types of Hugging Face that can be converted, and why others cannot."""

import json
from pathlib import Path

from pidformer.errors import InputError

_TABLES = json.loads(Path(__file__).with_suffix(".json").read_text())
DECODERS: dict[str, str] = _TABLES["decoders"]
ENCODERS: dict[str, str] = _TABLES["encoders"]
VISION: dict[str, str] = _TABLES["vision"]
FAMILIES = DECODERS | ENCODERS | VISION
"""Model types, and the class that attends in each."""
PROJECTIONS: dict[str, str] = _TABLES["projections"]
"""Attention classes that do not call the interface, and where their merged heads go."""
REFUSED: dict[str, str] = {
    name: reason for reason, names in _TABLES["refused"].items() for name in names
}
"""Model types that people ask for, and why they cannot be converted, or not as a whole."""


def check_family(name: str, given: object) -> str:
    """A model type that can be converted; `name` is what the error line calls the model."""
    if given in FAMILIES:
        return str(given)
    reason = REFUSED.get(str(given))
    if reason is not None:
        raise InputError(f"{name} (model type {given!r}) cannot be converted: {reason}")
    raise InputError(
        f"{name} (model type {given!r}) cannot be converted; docs/convert.md lists those that can"
    )
