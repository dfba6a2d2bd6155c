"""What a folder that is made piece by piece is to hold: a file in it, which is written first."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from pidformer.errors import InputError
from pidformer.fields import read_json, typed
from pidformer.files import is_temporary, write_whole

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class FolderPlan:
    """The content of that file; subclasses say more."""

    version: int = VERSION

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise InputError(
                f"it is of version {self.version}, this pidformer reads version {VERSION}"
            )


P = TypeVar("P", bound=FolderPlan)


def read_plan(kind: type[P], path: Path, what: str) -> P:
    """The plan of a folder that holds a `what`."""
    try:
        return typed(kind, read_json(path), key_of=f"{what} key")
    except InputError as error:
        raise InputError(f"{path}: {error}; make the {what} again") from None


def begin(plan: P, path: Path, what: str) -> P:
    """The plan of a folder that was begun before; written where the folder is empty."""
    if path.exists():
        return read_plan(type(plan), path, what)
    folder = path.parent
    if held := [other.name for other in folder.iterdir() if not is_temporary(other)]:
        raise InputError(f"{folder} is not empty ({held[0]}) and no {what}; choose another --out")
    write_whole(path, json.dumps(asdict(plan), indent=1) + "\n")
    return plan
