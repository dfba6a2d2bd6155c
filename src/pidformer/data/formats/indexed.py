"""WebDataset shards in an object store, read by an index that is made once.

INDEX/pidformer-index.json names the store and its shards, INDEX/00000.npz and so on hold the places
of each shard's samples. So any picture is one request for a range of bytes at any time, which
shuffling the whole set and exact resuming need, and opening the set asks the store nothing. fsspec
reads the store: s3://, gs://, hf://, https:// and others, by packages of their own.
"""

import time
import zipfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from pidformer.data.formats import plans
from pidformer.data.formats.tars import (
    NAMES,
    Shard,
    TarImages,
    read_index,
    read_samples,
    shards_by_split,
    split_shards,
)
from pidformer.data.sources import TRAIN, VALIDATION, in_order
from pidformer.display import advancing
from pidformer.errors import InputError, cut
from pidformer.files import atomic_path, out_folder, write_whole

FILE = "pidformer-index.json"
TRIES = 4
"""Requests for a picture before the run ends, 1, 2 and 4 seconds apart."""
_READERS = 16


@dataclass(frozen=True, kw_only=True)
class IndexPlan(plans.FolderPlan):
    """The content of pidformer-index.json."""

    url: str
    tars: tuple[str, ...]
    """Shards of all splits, by their names below the URL."""

    def files(self, folder: Path) -> dict[str, Path]:
        """For each shard, the file that holds its index."""
        return {name: folder / f"{number:05d}.npz" for number, name in enumerate(self.tars)}


class StoredImages(TarImages):
    """The samples of the tar files below a URL, a range of bytes each."""

    _ahead: Mapping[int, Any] = MappingProxyType({})

    def fetch(self, indices: list[int]) -> None:
        """Ask for the pictures of a batch at once; `decode` finds them."""
        self._ahead = {}
        with suppress(Exception):  # `decode` asks for each by itself, and tells what is wrong
            store, root = _store(str(self.root))
            paths, starts, ends = zip(*(self._range(root, index) for index in indices), strict=True)
            found = store.cat_ranges([*paths], [*starts], [*ends], on_error="return")
            self._ahead = dict(zip(indices, found, strict=True))

    def _range(self, root: str, index: int) -> tuple[str, int, int]:
        start = int(self._offsets[index])
        path = f"{root}/{self.names[self._file[index]]}"
        return path, start, start + int(self._sizes[index])

    def _read(self, index: int) -> bytes:
        """The bytes of a picture. What the store refuses ends the run: to skip the picture, as a
        damaged one, would change the batches with the state of the network."""
        data: Any = self._ahead.get(index)
        for number in range(TRIES):
            if isinstance(data, bytes):
                break
            try:
                store, root = _store(str(self.root))  # each process and thread has its own
                path, start, end = self._range(root, index)
                data = store.cat_file(path, start=start, end=end)
            except Exception as error:  # each store has exceptions of its own
                if number == TRIES - 1 or isinstance(error, FileNotFoundError | PermissionError):
                    raise InputError(
                        f"cannot read {self.name(index)} from {self.root} "
                        f"({type(error).__name__}: {cut(error)}); run the same command to go on"
                    ) from None
                time.sleep(2**number)
        if len(data) != self._sizes[index]:
            raise InputError(
                f"{self.root} gave {len(data)} bytes for {self.name(index)}, which has "
                f"{self._sizes[index]}; index it again if it has changed, or copy it if it does "
                "not answer requests for a range of bytes"
            )
        return bytes(data)


def index_images(url: str, out: str | Path, *, is_shown: bool = False) -> dict[str, StoredImages]:
    """Index the tar files below `url` in `out`, each read once, and give the splits; resumable."""
    if "://" not in url:
        url = Path(url).resolve().as_uri()
    names, classes = _listed(url)
    found = shards_by_split(names)
    for split in found:
        split_shards(url, {split: found[split]}, split)  # refuses a gap before anything is read
    plan, out = IndexPlan(url=url, tars=tuple(names)), out_folder(out)
    if plans.begin(plan, out / FILE, "index") != plan:
        raise InputError(
            f"{out} is an index of other shards than {url} holds; choose another --out"
        )
    if classes is not None:
        write_whole(out / NAMES, classes)
    shards = plan.files(out).items()
    with (
        advancing("indexing shards", len(shards), is_shown=is_shown) as advance,
        ThreadPoolExecutor(_READERS) as pool,
    ):
        for _ in pool.map(lambda shard: _write(url, *shard), shards):
            advance(1)
    return {split: open_index(out, split) for split in in_order(found)}


def _listed(url: str) -> tuple[list[str], str | None]:
    """The tar files below a URL, in it and in folders of splits, and its classnames.txt."""
    try:
        store, root = _store(url)
        held = [path.removeprefix(root).strip("/") for path in store.find(root, maxdepth=2)]
        classes = store.cat_file(f"{root}/{NAMES}").decode() if NAMES in held else None
    except Exception as error:
        raise InputError(f"cannot list {url} ({type(error).__name__}: {cut(error)})") from None
    places = ("", TRAIN, *VALIDATION)
    tars = [n for n in sorted(held) if n.endswith(".tar") and n.rpartition("/")[0] in places]
    if not tars:
        raise InputError(f"no tar file in {url}; give the address that holds train-000000.tar")
    return tars, classes


def _write(url: str, name: str, path: Path) -> None:
    """Index one shard, if that has not been done."""
    if path.exists():
        return
    store, root = _store(url)
    try:
        shard = read_index(f"{url}/{name}", partial(store.open, f"{root}/{name}", "rb"))
    except InputError:
        raise
    except Exception as error:  # each store has exceptions of its own
        raise InputError(
            f"cannot read {url}/{name} ({type(error).__name__}: {cut(error)}); run the same "
            "command to go on"
        ) from None
    with atomic_path(path) as temporary:
        np.savez(temporary, **shard._asdict())


def _store(url: str) -> tuple[Any, str]:
    """fsspec's file system for this process and thread, and the path in it."""
    from fsspec.core import url_to_fs  # slow to import; torch needs it, so it is there

    try:
        store, root = url_to_fs(url)
    except (ImportError, ValueError) as error:  # no such protocol, or its package is missing
        raise InputError(f"cannot reach {url}: {cut(error)}") from None
    return store, root.rstrip("/")


def read_plan(folder: Path) -> IndexPlan:
    return plans.read_plan(IndexPlan, folder / FILE, "index")


def index_splits(folder: Path) -> list[str]:
    if not (folder / FILE).is_file():
        return []
    try:
        return in_order(shards_by_split(read_plan(folder).tars))
    except InputError:  # opening it says why
        return [TRAIN]


def open_index(folder: Path, split: str) -> StoredImages:
    plan = read_plan(folder)
    files = plan.files(folder)

    def read(name: str) -> Shard:
        return _read_shard(files[name])

    return StoredImages(plan.url, *read_samples(folder, plan.url, plan.tars, split, read))


def _read_shard(path: Path) -> Shard:
    try:
        with np.load(path, allow_pickle=False) as file:
            return Shard(**{name: file[name] for name in Shard._fields})
    except (OSError, ValueError, LookupError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{path} is missing or damaged ({cut(error)}); delete it and run the `pidformer data "
            "index` that makes it again"
        ) from None
