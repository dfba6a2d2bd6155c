"""The published severity constants: five a corruption, for each of three image sizes.

`severities.json` beside this file holds the numbers of the generator scripts of Hendrycks and
Dietterich. Two are kept in the scripts' own terms: zoom factors by their largest and their step,
elastic lengths as multiples of `ELASTIC_UNIT` pixels (244 for 224-pixel images is the scripts'
number, a slip that the published set contains).
"""

import json
from functools import cache
from importlib.resources import files

from pidformer.errors import InputError

SIZES = (224, 64, 32)
ELASTIC_UNIT = {224: 244, 64: 64, 32: 32}
FROST_SCALE = {224: 1.0, 64: 0.3, 32: 0.2}


def constants_size(height: int, width: int) -> int:
    """Whose constants fit an image: 224 from 128 pixels on the short side, 64 from 48, else 32."""
    short = min(height, width)
    return 224 if short >= 128 else 64 if short >= 48 else 32


def severity_constants(name: str, severity: int, size: int) -> dict[str, float]:
    """The constants of one corruption by parameter name; elastic lengths in pixels."""
    if size not in SIZES:
        raise InputError(f"there are constants for 224, 64 and 32 pixels, got constants={size!r}")
    entry = _table()[name]
    values = dict(zip(entry["parameters"], entry[str(size)][severity - 1], strict=True))
    if name == "elastic_transform":
        values = {key: value * ELASTIC_UNIT[size] for key, value in values.items()}
    if name == "frost":
        values["texture_scale"] = FROST_SCALE[size]
    return values


@cache
def _table() -> dict[str, dict]:
    return json.loads((files(__package__) / "severities.json").read_text(encoding="utf-8"))
