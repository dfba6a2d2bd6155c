"""Where a set lies: its name in the usual spellings."""

from __future__ import annotations

import re
from pathlib import Path

from pidformer.errors import InputError, unknown

SETS = (
    "imagenet-c",
    "imagenet-a",
    "imagenet-r",
    "imagenet-o",
    "tiny-imagenet-c",
    "cifar-10-c",
    "cifar-100-c",
)


def find_set(folder: Path, name: str) -> Path | None:
    """The set `name` (one of `SETS`) directly in `folder`, or `folder` itself; None if neither.

    Case and the signs between words are free: imagenet-a, ImageNet-A, imagenet_a. A set inside
    a folder of its own name (imagenet-a/imagenet-a) is the inner one.
    """
    if name not in SETS:
        raise unknown("published set", name, SETS)
    if not folder.is_dir():
        return None
    inner = sorted(path for path in folder.iterdir() if path.is_dir() and set_name(path) == name)
    if len(inner) > 1:
        raise InputError(
            f"{folder} holds {name} {len(inner)} times, as {inner[0].name} and {inner[1].name}; "
            "give one of them"
        )
    return inner[0] if inner else folder if set_name(folder) == name else None


def set_name(root: Path) -> str | None:
    """Which of `SETS` the folder's name spells."""
    return _SPELLED.get(_letters(root.absolute().name))


def _letters(name: str) -> str:
    return re.sub(r"[-_. ]", "", name).lower()


_SPELLED = {_letters(name): name for name in SETS}
