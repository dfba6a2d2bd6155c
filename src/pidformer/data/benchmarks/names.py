"""The names of the sets, and the folders that bear them in one of the usual spellings."""

import re
from pathlib import Path

from pidformer.errors import InputError, unknown

_TITLES = (
    "ImageNet-C",
    "ImageNet-A",
    "ImageNet-R",
    "ImageNet-O",
    "Tiny-ImageNet-C",
    "CIFAR-10-C",
    "CIFAR-100-C",
)
SETS = tuple(title.lower() for title in _TITLES)


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


def set_title(root: Path) -> str | None:
    """The same as its authors write it."""
    name = set_name(root)
    return None if name is None else _TITLES[SETS.index(name)]


def _letters(name: str) -> str:
    return re.sub(r"[-_. ]", "", name).lower()


_SPELLED = {_letters(name): name for name in SETS}
