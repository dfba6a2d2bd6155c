"""Image sets as WebDataset shards: tar files of KEY.jpg with KEY.cls or KEY.json.

Nothing is unpacked: the headers are read once, and a picture is read at its place in the tar. So
members keep a fixed order, which shuffling and exact resuming need.
"""

import os
import re
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from pidformer.data.formats.folders import SUFFIXES
from pidformer.data.formats.shards import check_labels, classes_of_others
from pidformer.data.pictures import UnreadableImage, read_picture
from pidformer.data.sources import TRAIN, VALIDATION, find_split, in_order
from pidformer.errors import InputError, cut, some
from pidformer.fields import parse_json, read_text

NAMES = "classnames.txt"
"""Names of the classes, a line each, beside the shards or the folders of the splits."""
_NUMBERED = re.compile(r"(?P<name>.*?)[-_.]?(?P<number>\d+)(-of-\d+)?")
_MOST = {"cls": 2**12, "json": 2**20}
"""Bytes that a label may take."""


class Shard(NamedTuple):
    """The samples of a tar file, in order."""

    keys: np.ndarray  # bytes
    offsets: np.ndarray  # int64
    sizes: np.ndarray  # int64
    labels: np.ndarray  # int64


class TarImages:
    """The samples of tar files (`names`, below `root`), each read at its place."""

    channels = 3

    def __init__(
        self, root: Path | str, names: Sequence[str], indices: list[Shard], classes: tuple[str, ...]
    ) -> None:
        self.root, self.names, self.classes = root, names, classes
        counts = [len(shard.keys) for shard in indices]
        self._file = np.repeat(np.arange(len(names)), counts)
        self._keys, self._offsets, self._sizes, labels = map(
            np.concatenate, zip(*indices, strict=True)
        )
        self.labels = torch.from_numpy(labels)

    def __len__(self) -> int:
        return len(self._keys)

    def name(self, index: int) -> str:
        file = self.names[self._file[index]].rpartition("/")[2]
        return f"{file} {os.fsdecode(self._keys[index])}"

    def decode(self, index: int) -> Image.Image:
        data = self._read(index)
        if len(data) < self._sizes[index]:
            raise UnreadableImage("its tar file has been cut since it was opened")
        return read_picture(data)

    def _read(self, index: int) -> bytes:
        try:
            with open(Path(self.root, self.names[self._file[index]]), "rb") as file:
                file.seek(self._offsets[index])
                return file.read(int(self._sizes[index]))
        except OSError as error:
            raise UnreadableImage(f"{type(error).__name__}: {error.strerror}") from None


def tar_splits(folder: Path) -> list[str]:
    return in_order(shards_by_split(_tars(folder)))


def open_tars(folder: Path, split: str) -> TarImages:
    """The split's shards, their classes named in classnames.txt or numbered."""
    samples = read_samples(folder, folder, _tars(folder), split, lambda name: _index(folder / name))
    return TarImages(folder, *samples)


def read_samples(
    folder: Path, place: object, tars: Iterable[str], split: str, read: Callable[[str], Shard]
) -> tuple[list[str], list[Shard], tuple[str, ...]]:
    """A split's shards, what `read` says they hold, and classes: of classnames.txt or numbers."""
    found = shards_by_split(tars)
    names = split_shards(folder, found, split)
    shards = [read(name) for name in names]
    labels = np.concatenate([shard.labels for shard in shards])
    if not len(labels):
        raise InputError(
            f"{place}/{names[0]} holds no KEY.jpg with KEY.cls or KEY.json; give image shards"
        )

    def largest_of(other: str) -> int:
        tars_of_other = split_shards(folder, found, other)
        return max(int(read(name).labels.max(initial=-1)) for name in tars_of_other)

    path = folder / NAMES
    named = tuple(read_text(path, "file").rstrip().splitlines()) if path.is_file() else ()
    classes = named or classes_of_others(folder, int(labels.max()), largest_of)
    check_labels(folder / split, torch.from_numpy(labels), classes)
    return names, shards, classes


def _tars(folder: Path) -> list[str]:
    places = (folder, *(folder / name for name in (TRAIN, *VALIDATION)))
    return [p.relative_to(folder).as_posix() for place in places for p in place.glob("[!.]*.tar")]


def shards_by_split(names: Iterable[str]) -> dict[str, list[tuple[int, str]]]:
    """Numbered shards by split: [NAME-]train-000000.tar, or 000000.tar in a folder train."""
    splits: dict[str, list[tuple[int, str]]] = {}
    for path in sorted(names):
        place, _, file = path.removesuffix(".tar").rpartition("/")
        match = _NUMBERED.fullmatch(file)
        name, number = (match["name"], int(match["number"])) if match else (file, 0)
        last = re.split(r"[-_.]", name)[-1]
        split = place or (last if last in (TRAIN, *VALIDATION) else name or TRAIN)
        splits.setdefault(split, []).append((number, path))
    return splits


def split_shards(
    place: object, found: Mapping[str, list[tuple[int, str]]], split: str
) -> list[str]:
    """The shards of a split in `place`, in the order of their numbers; none may be missing."""
    hint = f"; expected {split}-000000.tar or {split}/000000.tar"
    name = find_split(split, found, place, verb="its tar files are of", hint=hint)
    numbers = dict(found[name])
    if len(numbers) < len(found[name]):
        raise InputError(
            f"{place} holds {len(found[name])} {name} shards with {len(numbers)} numbers; "
            "keep those of one set"
        )
    low, high = min(numbers), max(numbers)
    gaps = islice((str(n) for n in range(low, high) if n not in numbers), 5)
    if high - low + 1 > len(numbers):
        raise InputError(
            f"{place} holds {len(numbers)} {name} shards up to number {high}, but not "
            f"{', '.join(gaps)}; download what is missing"
        )
    return [numbers[number] for number in sorted(numbers)]


def _index(path: Path) -> Shard:
    return _indexed(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=10_000)
def _indexed(path: Path, changed: int) -> Shard:
    """What a tar file holds; kept, since opening val looks into train for its classes."""
    return read_index(path, partial(open, path, "rb"))


def read_index(path: object, opened: Callable[[], Any]) -> Shard:
    """What the tar file that `opened` gives holds; `path` for messages."""
    rows: dict[bytes, tuple[int, int]] = {}
    labels: dict[bytes, int] = {}
    try:
        with opened() as raw, tarfile.open(fileobj=raw, mode="r:") as tar:
            for member in tar:
                folder, _, file = member.name.rpartition("/")
                stem, _, kind = file.partition(".")
                if not member.isreg() or member.issparse() or not stem:
                    continue  # links are not followed
                key = os.fsencode(f"{folder}/{stem}" if folder else stem)
                if f".{kind.lower()}" in SUFFIXES:
                    if key in rows:
                        raise InputError(f"{path} holds two pictures of {cut(stem)!r}; keep one")
                    rows[key] = member.offset_data, member.size
                elif kind == "cls" or (kind == "json" and key not in labels):
                    found = _label(path, tar, member, kind)
                    if found is not None:
                        labels[key] = found
            raw.seek(tar.offset)
            end = raw.read(tarfile.BLOCKSIZE)
            if end != bytes(tarfile.BLOCKSIZE):  # one that was cut between members
                raise tarfile.ReadError("it has no end mark")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InputError(
            f"cannot read {path} as tar ({cut(error)}); is it compressed, or cut short? "
            "download it again"
        ) from None
    alone = [os.fsdecode(key) for key in rows.keys() ^ labels.keys()]
    if alone:
        raise InputError(
            f"{len(alone)} sample(s) of {path} lack a label (KEY.cls, or label in KEY.json) or a "
            f"picture: {cut(some(sorted(alone)))}"
        )
    offsets, sizes = np.array([*rows.values()], dtype=np.int64).reshape(-1, 2).T
    classes = np.array([labels[key] for key in rows], dtype=np.int64)
    return Shard(np.array([*rows], dtype=bytes), offsets, sizes, classes)


def _label(path: object, tar: tarfile.TarFile, member: tarfile.TarInfo, kind: str) -> int | None:
    """The class in KEY.cls, or in KEY.json, which may hold none."""
    if member.size > _MOST[kind]:
        raise InputError(f"{cut(member.name)!r} in {path} has {member.size} bytes; it is no label")
    file = tar.extractfile(member)
    text = file.read() if file else b""
    try:
        fields = parse_json(text)
    except (ValueError, RecursionError):
        fields = None
    found = fields.get("label", fields.get("cls")) if isinstance(fields, dict) else fields
    if isinstance(found, int) and not isinstance(found, bool) and abs(found) < 2**31:
        return found
    if kind == "json" and found is None and fields is not None:
        return None
    raise InputError(
        f"{cut(member.name)!r} in {path} must hold the number of a class, got {cut(text, 40)!r}"
    )
