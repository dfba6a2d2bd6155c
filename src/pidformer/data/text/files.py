"""Text files, plain or compressed, in blocks of whole lines."""

import gzip
import lzma
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any
from zlib import error as ZlibError

from pidformer.data.formats.folders import SUFFIXES
from pidformer.errors import InputError

SPLITS = {
    "train": ("train",),
    "valid": ("valid", "validation", "val", "dev"),
    "test": ("test",),
}
_OPENERS: dict[str, Callable[[IO[bytes]], Any]] = {".xz": lzma.open, ".gz": gzip.open}
MARK = "\ufeff"
"""A byte order mark, which Windows writes before UTF-8."""
BLOCK = 2**20
"""Characters in a block, to the end of the line. Tokens do not depend on how many work on them."""


def find_text(location: str | Path, split: str) -> list[Path]:
    """The files of a split: wiki.SPLIT.tokens, SPLIT.txt or SPLIT/*, each plain, .xz or .gz.

    `location` may also be a single text file, which is then any split but the training text.
    """
    if split not in SPLITS:
        raise InputError(f"unknown split {split!r}; known: {', '.join(SPLITS)}")
    place = Path(location)
    if place.is_file() and split != "train":
        return [place]
    if not place.is_dir():
        what = "is a file; training needs a folder with" if place.is_file() else "does not exist;"
        raise InputError(f"{place} {what} {_expected(split)}")
    for name in SPLITS[split]:
        for stem in (f"wiki.{name}.tokens", f"{name}.txt", f"{name}.tokens"):
            for compression in ("", *_OPENERS):
                if (place / f"{stem}{compression}").is_file():
                    return [place / f"{stem}{compression}"]
        if (place / name).is_dir():
            files = [p for p in sorted((place / name).iterdir()) if p.is_file()]
            files = [p for p in files if not p.name.startswith(".")]
            if files:
                return files
    raise InputError(f"no {split} text in {place}; expected {_expected(split)}")


def text_splits(folder: Path) -> list[str]:
    """The splits of a folder of text; folders of splits must hold neither folders nor pictures."""
    found = {}
    for split in SPLITS:
        with suppress(InputError):
            found[split] = find_text(folder, split)
    places = {paths[0].parent for paths in found.values()}
    entries = [entry for place in places for entry in place.iterdir()]
    others = (*SUFFIXES, ".parquet", ".arrow", ".tar")
    is_text = not any(entry.is_dir() or entry.suffix.lower() in others for entry in entries)
    return list(found) if folder in places or is_text else []


def text_blocks(
    paths: list[Path], advance: Callable[[int], None] = lambda count: None
) -> Iterator[str]:
    """The text of all files in order, in blocks of whole lines, each line with its newline.

    A file's byte order mark is no part of its text. `advance` is told how many bytes on disk have
    been read. A file that is empty, binary, not UTF-8 or damaged is named.
    """
    for path in paths:
        is_empty = True
        with open(path, "rb") as raw:
            seen = 0
            for block in _file_blocks(path, raw):
                if not seen:
                    block = block.removeprefix(MARK)
                is_empty = is_empty and not block.strip()
                advance(raw.tell() - seen)
                seen = raw.tell()
                yield block
        if is_empty:
            raise InputError(f"{path} holds no text; give a file with words in it")


def _file_blocks(path: Path, raw: IO[bytes]) -> Iterator[str]:
    rest = bytearray()  # which grows in place: text8 is one line of 100 MB
    try:
        file = _OPENERS.get(path.suffix, lambda plain: plain)(raw)
        while chunk := file.read(BLOCK):
            if b"\0" in chunk:
                raise InputError(f"{path} is not text (it holds zero bytes); give UTF-8 text")
            end = chunk.rfind(b"\n") + 1
            if end:
                yield _decoded(path, rest + chunk[:end])
                rest = bytearray(chunk[end:])
            else:
                rest += chunk
    except (lzma.LZMAError, gzip.BadGzipFile, ZlibError, EOFError) as error:
        raise InputError(f"{path} is damaged or not compressed ({error})") from None
    if rest:
        yield _decoded(path, rest + b"\n")


def _decoded(path: Path, block: bytes | bytearray) -> str:
    try:
        return block.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error.reason}); convert it first") from None


def _expected(split: str) -> str:
    return f"wiki.{split}.tokens, {split}.txt (plain, .xz or .gz) or a folder {split}/"
