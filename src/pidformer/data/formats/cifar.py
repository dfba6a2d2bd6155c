"""CIFAR-10 and CIFAR-100 as torchvision stores them, read without trusting the pickles."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pidformer.data.formats.shards import check_labels
from pidformer.data.sources import TRAIN, VALIDATION, ArrayImages
from pidformer.errors import InputError, check_known, cut

_SETS = {  # by folder: title, files for training and for validation, keys of labels and names
    "cifar-10-batches-py": (
        "CIFAR-10",
        tuple(f"data_batch_{number}" for number in range(1, 6)),
        "test_batch",
        "labels",
        ("batches.meta", "label_names"),
    ),
    "cifar-100-python": (
        "CIFAR-100",
        ("train",),
        "test",
        "fine_labels",
        ("meta", "fine_label_names"),
    ),
}


def _folders(folder: Path) -> list[Path]:
    places = [folder / name for name in _SETS] + ([folder] if folder.name in _SETS else [])
    return [place for place in places if place.is_dir()]


def cifar_title(folder: Path) -> str:
    return " and ".join(_SETS[place.name][0] for place in _folders(folder))


def cifar_splits(folder: Path) -> list[str]:
    """ "train" and "test"; with the set's folder before them where both sets are there."""
    places = _folders(folder)
    names = [f"{place.name}/" for place in places] if len(places) > 1 else [""] * len(places)
    return [name + split for name in names for split in (TRAIN, "test")]


def open_cifar(folder: Path, split: str) -> ArrayImages:
    """A split of the only set in `folder`, or of the one that `split` names ("SET/train")."""
    inner, _, split = split.rpartition("/")
    places = _folders(folder / inner)
    if len(places) > 1:
        raise InputError(f"{folder} holds CIFAR-10 and CIFAR-100; give {places[0]} or {places[1]}")
    root = places[0]
    check_known("split of CIFAR", split, (TRAIN, *VALIDATION))
    _, train, test, label_key, (meta, name_key) = _SETS[root.name]
    (names,) = _entries(root / meta, name_key)
    files = train if split == TRAIN else (test,)
    batches = [_batch(root / name, label_key) for name in files]
    images = np.concatenate([images for images, _ in batches])
    labels = torch.from_numpy(np.concatenate([labels for _, labels in batches]))
    classes = tuple(map(str, names))
    check_labels(root, labels, classes, may_lack=False)
    return ArrayImages(images, labels, classes, split, range(len(images)))


def _batch(path: Path, label_key: str) -> tuple[np.ndarray, np.ndarray]:
    data, labels = _entries(path, "data", label_key)
    whole = isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.ndim == 2
    if not whole or data.shape[1] != 3 * 32 * 32 or len(labels) != len(data):
        raise InputError(
            f"{path} must hold uint8 rows of 3072 and a label for each; download the set again"
        )
    images = data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), np.asarray(labels, dtype=np.int64)


def _entries(path: Path, *keys: str) -> list[Any]:
    content = load_arrays(path)
    for key in keys:
        if not isinstance(content, dict) or key not in content:
            raise InputError(f"{path} holds no {key!r}; download the set again")
    return [content[key] for key in keys]


def load_arrays(path: Path) -> Any:
    """Unpickle plain values and NumPy arrays; anything else in the file is refused.

    A pickle is a program: it may name any function of any module and call it. This reader resolves
    only the names in `_ALLOWED`, so a file from outside can build arrays and nothing more.
    """
    if not path.is_file():
        raise InputError(f"{path} is missing; download the set again")
    with open(path, "rb") as file:
        try:
            return _ArrayUnpickler(file, encoding="latin1").load()
        except InputError:
            raise
        except Exception as error:  # broken opcodes surface as almost any exception
            reason = cut(f"{type(error).__name__}: {error}")
            raise InputError(f"cannot read {path}: {reason}; download the set again") from None


def _latin1(text: str, encoding: str) -> bytes:
    """What `_codecs.encode` does in protocol-2 pickles of bytes, and no other codec."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"codec {encoding!r} in a file of arrays")
    return text.encode("latin1")


_ALLOWED = {("numpy", "ndarray"), ("numpy", "dtype")} | {
    (f"numpy.{core}.{module}", function)
    for core in ("core", "_core")
    for module, function in (("multiarray", "_reconstruct"), ("numeric", "_frombuffer"))
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return _latin1
        if (module, name) not in _ALLOWED:
            raise InputError(
                f"refused a pickle that calls {f'{module}.{name}'!r}: only arrays are read from "
                "CIFAR files; download the set again from a source you trust"
            )
        return super().find_class(module, name)
