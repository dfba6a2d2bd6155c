"""The digits that come with the package: 1797 grey 8x8 images, written by 13 people.

The test part of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, UCI Machine
Learning Repository, 1998, doi:10.24432/C50P49), as scikit-learn ships it; digits.txt has the
licences.
"""

from pathlib import Path

import numpy as np
import torch

from pidformer.data.sources import ArrayImages
from pidformer.errors import check_known

FILE = Path(__file__).with_name("digits.npz")
"""levels 0..16, uint8 (1797, 8, 8), and labels, uint8 (1797,)."""
EVERY = 5  # of the images sorted by class, every fifth is for validation: 1437 / 360


def open_digits(split: str) -> ArrayImages:
    """The "train" (1437) or "val" (360) split; the same for everyone, each class a fifth val.

    Images keep their original order; grey levels 0..16 become 0..255.
    """
    check_known("split of digits", split, ("train", "val"))
    with np.load(FILE, allow_pickle=False) as file:
        levels, labels = file["levels"], file["labels"]
    images = (levels * (255 / 16)).round().astype(np.uint8)
    by_class = np.argsort(labels, kind="stable")
    is_val = np.zeros(len(labels), dtype=bool)
    is_val[by_class[::EVERY]] = True
    rows = np.flatnonzero(is_val if split == "val" else ~is_val)
    chosen = torch.from_numpy(labels[rows].astype(np.int64))
    return ArrayImages(images[rows], chosen, tuple("0123456789"), "digits", rows)
