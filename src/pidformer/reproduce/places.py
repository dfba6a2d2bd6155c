"""Where a data set is, by the names that its folder may have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path


def find_folder(names: Sequence[str], data: str | Path | None) -> Path | None:
    """A folder of one of these names in `data`, or `data` itself, whatever its case and dashes."""
    if data is None:
        return None
    folder = Path(data)
    spelled = {_letters(name) for name in names}
    if _letters(folder.resolve().name) in spelled and folder.is_dir():
        return folder
    inner = sorted(folder.iterdir()) if folder.is_dir() else []
    return next((p for p in inner if p.is_dir() and _letters(p.name) in spelled), None)


def _letters(name: str) -> str:
    return re.sub(r"[-_. ]", "", name).lower()
