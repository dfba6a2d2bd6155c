"""scikit-learn's digits: 1797 grey 8x8 images that need no files."""

from __future__ import annotations

import numpy as np
import torch

from pidformer.data.sources import ArrayImages
from pidformer.errors import unknown

EVERY = 5  # of the images sorted by class, every fifth is for validation: 1437 / 360


def open_digits(split: str) -> ArrayImages:
    """The "train" (1437) or "val" (360) split; the same for everyone, each class a fifth val.

    Images keep their original order; grey levels 0..16 become 0..255.
    """
    from sklearn.datasets import load_digits  # a second of imports that only this set needs

    if split not in ("train", "val"):
        raise unknown("split of digits", split, ("train", "val"))
    levels, labels = load_digits(return_X_y=True)
    images = (levels * (255 / 16)).round().astype(np.uint8).reshape(-1, 8, 8)
    by_class = np.argsort(labels, kind="stable")
    is_val = np.zeros(len(labels), dtype=bool)
    is_val[by_class[::EVERY]] = True
    rows = np.flatnonzero(is_val if split == "val" else ~is_val)
    chosen = torch.from_numpy(labels[rows].astype(np.int64))
    return ArrayImages(images[rows], chosen, tuple("0123456789"), "digits", rows)
