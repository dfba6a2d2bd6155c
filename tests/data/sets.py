"""Small image sets for the tests."""

from __future__ import annotations

import io
import json
import os
import pickle
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from pidformer.data import open_images
from pidformer.data.pictures import UnreadableImage
from pidformer.errors import InputError


@dataclass
class MemorySet:
    """Images in memory, some of them broken."""

    images: np.ndarray  # uint8 (N, H, W, 3)
    labels: torch.Tensor
    classes: tuple[str, ...]
    broken: frozenset[int] = frozenset()
    channels: int = 3

    def __len__(self) -> int:
        return len(self.images)

    def name(self, index: int) -> str:
        return f"image-{index}"

    def decode(self, index: int) -> Image.Image:
        if index in self.broken:
            raise UnreadableImage("broken")
        return Image.fromarray(self.images[index])


def memory_set(
    count: int = 24, size: tuple[int, int] = (8, 8), num_classes: int = 3, broken: tuple = ()
) -> MemorySet:
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(count, *size, 3), dtype=np.uint8)
    labels = torch.arange(count) % num_classes
    names = tuple(f"class-{n}" for n in range(num_classes))
    return MemorySet(images, labels, names, frozenset(broken))


def numbered_set(count: int, size: int = 4) -> MemorySet:
    """Image i has the one colour (i, i, i), and so tells which it is."""
    images = np.arange(count, dtype=np.uint8)[:, None, None, None].repeat(size, 1).repeat(size, 2)
    return MemorySet(images.repeat(3, 3), torch.arange(count) % 2, ("even", "odd"))


def encoded(level: int = 100, size: tuple[int, int] = (9, 8), kind: str = "JPEG") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (level, level, level)).save(buffer, kind)
    return buffer.getvalue()


def write_folders(root: Path, classes: dict[str, dict[str, int]]) -> Path:
    """{"train": {"n01": 2}} writes two images to root/train/n01."""
    for split, counts in classes.items():
        for name, count in counts.items():
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                suffix = ("JPEG", "jpg", "PNG")[number % 3]
                kind = "PNG" if suffix == "PNG" else "JPEG"
                (folder / f"{name}_{number}.{suffix}").write_bytes(encoded(number, kind=kind))
    return root


def write_parquet(
    path: Path, labels: list[int], names: list[str] | None = None, images: list | None = None
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    images = images or [encoded(20 * n, kind="PNG") for n in range(len(labels))]
    cells = [{"bytes": image, "path": f"{n}.png"} for n, image in enumerate(images)]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"image": pa.array(cells, kind), "label": pa.array(labels, pa.int64())})
    if names is not None:
        features = {"label": {"names": names, "_type": "ClassLabel"}}
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        table = table.replace_schema_metadata(metadata)
    pq.write_table(table, path, row_group_size=2)


def refused(call, *arguments) -> str:
    with pytest.raises(InputError) as caught:
        call(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


class Malice:
    def __reduce__(self):
        return os.system, ("touch owned",)


def refused_images(location, split: str = "train") -> str:
    return refused(open_images, location, split)


def write_cifar(root: Path, hundred: bool = False, protocol: int = 2) -> dict[str, np.ndarray]:
    rng, written = np.random.default_rng(0), {}
    folder = root / ("cifar-100-python" if hundred else "cifar-10-batches-py")
    folder.mkdir(parents=True)
    names = ["train", "test"] if hundred else [f"data_batch_{n}" for n in range(1, 6)]
    for name in names if hundred else [*names, "test_batch"]:
        written[name] = rng.integers(256, size=(2, 3072), dtype=np.uint8)
        key = "fine_labels" if hundred else "labels"
        content = {"data": written[name], key: [0, 1], "batch_label": name.encode()}
        (folder / name).write_bytes(pickle.dumps(content, protocol))
    meta = {"fine_label_names" if hundred else "label_names": ["cat", "dog"]}
    (folder / ("meta" if hundred else "batches.meta")).write_bytes(pickle.dumps(meta, protocol))
    return written


def write_cifar_c(root: Path, name: str = "fog", count: int = 4, repeated: bool = True):
    root.mkdir(parents=True, exist_ok=True)
    images = np.random.default_rng(0).integers(256, size=(5 * count, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(count, dtype=np.uint8)[::-1]
    np.save(root / f"{name}.npy", images)
    np.save(root / "labels.npy", np.tile(labels, 5) if repeated else labels)
    return images


def write_arrow(root: Path, splits: dict[str, list[int]], names: list[str] | None = None) -> Path:
    """As `datasets.DatasetDict.save_to_disk` does: two shards a split, each an Arrow stream."""
    for split, labels in splits.items():
        folder = root / split
        folder.mkdir(parents=True)
        for number, part in enumerate((slice(0, 2), slice(2, None))):
            path = folder / f"data-{number:05d}-of-00002.arrow"
            write_parquet(
                path, labels[part], names, [pictured(n) for n in range(len(labels))][part]
            )
            table = pq.read_table(path)
            with pa.ipc.new_stream(path, table.schema) as writer:
                writer.write_table(table)
        (folder / "state.json").write_text("{}")
    (root / "dataset_dict.json").write_text(json.dumps({"splits": [*splits]}))
    return root


def write_tars(root: Path, splits: dict[str, list[int]], **changes: bytes | None) -> Path:
    """WebDataset shards of two samples; `changes` are contents of members, None for no member."""
    root.mkdir(parents=True, exist_ok=True)
    for split, labels in splits.items():
        for start in range(0, len(labels), 2):
            with tarfile.open(root / f"{split}-{start // 2:06d}.tar", "w") as tar:
                for n in range(start, min(start + 2, len(labels))):
                    members = {"cls": str(labels[n]).encode(), "png": pictured(n), "json": b"{}"}
                    for kind, data in members.items():
                        name = f"{split}/s{n}.{kind}"
                        data = changes.get(f"s{n}_{kind}", data)
                        if data is not None:
                            add_member(tar, name, data)
    return root


def add_member(tar: tarfile.TarFile, name: str, data: bytes = b"", **about) -> None:
    member = tarfile.TarInfo(name)
    for key, value in {"size": len(data), **about}.items():
        setattr(member, key, value)
    tar.addfile(member, io.BytesIO(data))


def pictured(number: int, size: tuple[int, int] = (12, 9)) -> bytes:
    """A PNG of noise, each another."""
    rng = np.random.default_rng(number)
    buffer = io.BytesIO()
    Image.fromarray(rng.integers(256, size=(*size, 3), dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def write_photos(root: Path, count: int = 6, sizes=((20, 30), (30, 16), (9, 12))) -> Path:
    """Folders train/{cat,dog} and val/{cat,dog} of noise in these sizes (height, width)."""
    for split in ("train", "val"):
        for n in range(count):
            folder = root / split / ("cat", "dog")[n % 2]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{n}.png").write_bytes(pictured(n, sizes[n % len(sizes)]))
    return root
