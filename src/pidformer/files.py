"""Files that are either complete or not there, and folders that do not reach out of themselves."""

import errno
import fcntl
import os
import re
import shutil
import socket
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO

from safetensors import SafetensorError

from pidformer.errors import InputError

_TEMPORARY = re.compile(r"\..+\.(\d+)-\d+-([0-9a-f]{8})\.part(\.[^.]+)?")
_DAY = 24 * 3600.0
_swept: set[tuple[int, Path]] = set()
_sweeping = threading.Lock()


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends well.

    A killed process, a full disk or an error leaves the file that was there before.
    """
    path = Path(path)
    check_place(path)
    sweep(path.parent)
    temporary = temporary_beside(path)
    try:
        with _errors_of_the_system(path):
            rights = _rights_of_new_files(temporary)
            yield temporary
        _allow(temporary, rights)
        _sync(temporary)
        os.replace(temporary, path)
    except OSError as error:
        if error.filename == str(temporary):  # a name that nobody gave
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: str | Path, text: str) -> None:
    """Write a file of text as `atomic_path` does."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """A new folder beside `path` that takes its place, if that is free or empty, as `atomic_path`.

    For folders that are written once and whole: the files in it are those that the block wrote.
    """
    path = Path(path).resolve()  # what a link leads to; the link stays
    sweep(path.parent)
    temporary = temporary_beside(path)
    try:
        temporary.mkdir()
    except OSError as error:
        raise InputError(f"cannot write {path} ({error.strerror})") from None
    try:
        with _errors_of_the_system(path):
            rights = _rights_of_new_files(temporary / "probe")
            yield temporary
        for found in (*temporary.rglob("*"), temporary):
            _allow(found, rights)
            _sync(found)
        os.replace(temporary, path)
        _sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _rights_of_new_files(probe: Path) -> int:
    """What the user's umask leaves to a new file; the umask itself is read by changing it."""
    probe.touch()
    try:
        return probe.stat().st_mode & 0o666
    finally:
        probe.unlink()


def _allow(path: Path, rights: int) -> None:
    """Add rights that are missing: safetensors keeps its files from all but their owner."""
    mode = path.stat().st_mode
    if rights & ~mode:
        with suppress(OSError):  # a disk without rights
            path.chmod(mode | rights)


@contextmanager
def _errors_of_the_system(path: Path) -> Iterator[None]:
    """Safetensors has an exception of its own for a disk that is full."""
    try:
        yield
    except SafetensorError as error:
        told = re.search(r"os error (\d+)", str(error))
        why = os.strerror(int(told[1])) if told else str(error)
        raise OSError(int(told[1]) if told else errno.EIO, why, str(path)) from None


def temporary_beside(path: Path) -> Path:
    """A hidden name beside `path` that says which process, and thread, writes under it."""
    writer = f"{os.getpid()}-{threading.get_native_id()}-{_here()}"
    # The suffix stays last: savers choose their format by it.
    return path.with_name(f".{path.stem}.{writer}.part{path.suffix}")


def sweep(folder: Path) -> None:
    """Remove what killed processes were writing in a folder, once per process and folder.

    What processes elsewhere wrote (on another machine with the same disk, or before a reboot) goes
    once it has not changed for a day: they cannot be asked whether they live.
    """
    key = os.getpid(), folder.resolve()
    with _sweeping, suppress(OSError):  # who may not look may still write
        if key in _swept or is_temporary(folder) or not folder.is_dir():
            return
        _swept.add(key)
        for path in folder.iterdir():
            if is_temporary(path) and not _is_being_written(path):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)


def _is_being_written(path: Path) -> bool:
    match = _TEMPORARY.fullmatch(path.name)
    assert match is not None
    if match[2] != _here():
        return time.time() - path.lstat().st_mtime < _DAY
    import psutil  # slow to import, for what is rarely asked

    try:
        return psutil.Process(int(match[1])).status() != psutil.STATUS_ZOMBIE
    except psutil.Error as error:
        return not isinstance(error, psutil.NoSuchProcess)


@cache
def _here() -> str:
    """Where process numbers mean the same: this boot of this machine, this container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        place = f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        place = f"{socket.gethostname()} {sys.platform}"
    return f"{zlib.crc32(place.encode()):08x}"


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
    """Whether `atomic_path` or `atomic_folder` write, or wrote when killed, under this name."""
    return _TEMPORARY.fullmatch(path.name) is not None


def check_place(path: Path) -> None:
    """Refuse a file in a folder that is not there; before long work for it, too."""
    if not path.parent.is_dir():
        raise InputError(
            f"cannot write {path}: folder {path.parent} does not exist; create it first"
        )


def existing_folder(path: str | Path, what: str, hint: str = "") -> Path:
    """The folder of a set that a user names, which must be there."""
    path = Path(path)
    if not path.exists():
        raise InputError(f"no {what} at {path}; give an existing folder{hint}")
    if not path.is_dir():
        raise InputError(f"{path} is a file; give the folder that holds the {what}")
    return path


def named_data(data: str | Path | None, what: str) -> str | Path:
    """Where `--data` says that the data are; refused where it says nothing."""
    if data is None:
        raise InputError(f"{what}; say where with --data DIR")
    return data


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
    sweep(path)
    return path


def model_folder(out: str | Path, name: str) -> Path:
    """A folder in `--out` for the records of a model that is no run folder."""
    return out_folder(Path(out) / re.sub(r"[^\w.-]+", "-", name))


def new_folder(path: str | Path) -> Path:
    """The folder that `--out` names for `atomic_folder`: free or empty, its parent made."""
    path = Path(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path} is not an empty folder; choose another --out")
    if path.exists() and path.samefile("."):  # it is replaced as a whole
        raise InputError(f"{path} is the folder you are in; name a new one with --out")
    out_folder(path.parent)
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
