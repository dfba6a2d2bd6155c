"""Files that are either complete or not there, and folders that do not reach out of themselves."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pidformer.errors import InputError


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends well.

    A killed process, a full disk or an error leaves the file that was there before.
    """
    path = Path(path)
    check_place(path)
    # The suffix stays last: savers choose their format by it.
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """An empty folder beside `path`, which must be new or empty, that becomes it at a good end.

    What a killed process left beside it goes when the next one begins.
    """
    path = Path(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path} is not an empty folder; choose another one")
    place = Path(os.path.abspath(path))  # "." has no name
    out_folder(place.parent)
    temporary = place.with_name(f".{place.name}.writing")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        yield temporary
        for written in temporary.rglob("*"):
            if written.is_file():
                with open(written, "rb") as file:
                    os.fsync(file.fileno())
        os.replace(temporary, place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def locked(path: str | Path, *, waits: bool = True) -> Iterator[BinaryIO]:
    """The file, open to append and made if need be, while no other process holds it.

    With `waits=False`, BlockingIOError where another does. The system lets go of a lock when its
    process ends, however it ends; on a disk without locks nobody waits.
    """
    path = Path(path)
    while True:
        with open(path, "ab+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise
            except OSError:  # a disk without locks
                pass
            if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                continue  # replaced while we waited
            yield file
            return


def is_temporary(path: Path) -> bool:
    """Whether a killed process left the file in the middle of an `atomic_path`."""
    return re.fullmatch(r"\..+\.\d+(\.\w+)?", path.name) is not None


def check_place(path: Path) -> None:
    """Refuse a file in a folder that is not there; before long work for it, too."""
    if not path.parent.is_dir():
        raise InputError(
            f"cannot write {path}: folder {path.parent} does not exist; create it first"
        )


def out_folder(path: str | Path) -> Path:
    """The folder that `--out` names, made if need be."""
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file; --out names a folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot write to {path} ({error.strerror}); choose another --out"
        ) from None
    return path


def check_links(folder: str | Path) -> None:
    """Refuse a folder with a link that leads out of it, or with what is no file or folder.

    What a stranger packed must not make us read, or write to, files of this machine. The folder may
    itself be a link. Hugging Face's cache keeps the files of `snapshots/NAME` in `blobs` beside it.
    """
    root = Path(folder).resolve()
    roots = [root]
    if root.parent.name == "snapshots":
        roots.append(root.parent.parent / "blobs")
    for place, folders, names in os.walk(root):
        for name in (*folders, *names):
            path = Path(place, name)
            if path.is_symlink():
                check_inside(path, *roots)
            elif not path.is_file() and not path.is_dir():
                raise InputError(f"{path} is neither a file nor a folder; remove it")


def check_inside(path: Path, *roots: Path) -> None:
    """Refuse a path that leads, through links or `..`, out of all `roots`."""
    target = path.resolve()
    if not any(target.is_relative_to(root.resolve()) for root in roots):
        raise InputError(f"{path} leads out of its folder, to {target}; put the file itself there")
