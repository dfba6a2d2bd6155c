"""CIFAR-10-C and CIFAR-100-C: one .npy per corruption, mapped into memory, never unpickled."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from pidformer.data.benchmarks.names import set_name
from pidformer.errors import InputError

LABELS = "labels.npy"
BLOCKS = 5  # severities 1 to 5
_TEN = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_HUNDRED = tuple(str(number) for number in range(100))


class StackedImages:
    """One severity: a fifth of `root`/<corruption>.npy, uint8 (5 N, 32, 32, 3)."""

    channels = 3

    def __init__(self, root: Path, corruption: str, severity: int) -> None:
        self.root = root
        self.corruption = corruption
        self.severity = severity
        self._images = _read_stack(root, corruption)
        count = len(self._images) // BLOCKS
        self._start = (severity - 1) * count
        self.labels = _read_labels(root, count)
        self.classes = _class_names(root, self.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, index: int) -> str:
        return f"{self.root.name}/{self.corruption}.npy severity {self.severity} image {index}"

    def decode(self, index: int) -> Image.Image:
        if not 0 <= index < len(self):  # the file goes on: it would be another severity
            raise IndexError(f"image {index} of {len(self)}")
        return Image.fromarray(np.array(self._images[self._start + index]))

    def __getstate__(self) -> dict[str, Any]:  # each process maps the file for itself
        return {key: value for key, value in self.__dict__.items() if key != "_images"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._images = _read_stack(self.root, self.corruption)


def _read_stack(root: Path, corruption: str) -> np.ndarray:
    """The mapped images of all severities."""
    path = root / f"{corruption}.npy"
    images = _map(path)
    size = images.shape
    if images.dtype != np.uint8 or size[1:] != (32, 32, 3) or not size[0] or size[0] % BLOCKS:
        shape = "x".join(map(str, size))
        raise InputError(
            f"{path} holds {images.dtype} of shape {shape}; expected uint8 5Nx32x32x3 "
            "(50000x32x32x3 as published); download it again"
        )
    return images


def _read_labels(root: Path, count: int) -> torch.Tensor:
    """One label per image, int64 (count,): stored once, or once for each severity."""
    path = root / LABELS
    labels = _map(path)
    if not np.issubdtype(labels.dtype, np.integer) or labels.shape not in (
        (count,),
        (BLOCKS * count,),
    ):
        shape = "x".join(map(str, labels.shape))
        raise InputError(
            f"{path} holds {labels.dtype} of shape {shape}; expected {count} or "
            f"{BLOCKS * count} integers for the images beside it; download it again"
        )
    blocks = np.array(labels, dtype=np.int64).reshape(-1, count)
    if (blocks != blocks[0]).any():
        raise InputError(
            f"labels in {path} differ between the severities, which show the same images; "
            "download it again"
        )
    return torch.from_numpy(blocks[0].copy())


def _class_names(root: Path, labels: torch.Tensor) -> tuple[str, ...]:
    """By the folder's name, or by the labels where it says nothing."""
    named = {"cifar-10-c": _TEN, "cifar-100-c": _HUNDRED}
    classes = named.get(set_name(root) or "", _TEN if int(labels.max()) < len(_TEN) else _HUNDRED)
    if int(labels.min()) < 0 or int(labels.max()) >= len(classes):
        raise InputError(
            f"labels in {root / LABELS} run from {int(labels.min())} to {int(labels.max())}; "
            f"allowed are 0 to {len(classes) - 1}"
        )
    return classes


def _map(path: Path) -> np.ndarray:
    if not path.is_file():
        raise InputError(f"{path} is missing; download it, or give the folder that holds it")
    try:
        return np.lib.format.open_memmap(path, mode="r")  # refuses arrays of objects
    except Exception as error:  # broken headers surface as almost any exception
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(f"cannot read {path}: {reason}; download it again") from None
