"""Segmentation sets by location: pictures with a class for each pixel."""

from __future__ import annotations

from pathlib import Path

from pidformer.data.parquet import has_parquet
from pidformer.data.segmentation.pair import SegmentSource
from pidformer.data.segmentation.rows import open_rows
from pidformer.data.segmentation.trees import (
    ade_root,
    has_cityscapes,
    open_ade20k,
    open_cityscapes,
)
from pidformer.errors import InputError


def open_segmentation(location: str | Path, split: str) -> SegmentSource:
    """The `split` ("train" or "val") of the segmentation set at `location`, a folder.

    Told apart by what is in it:

    - ADE20K: DIR/{images,annotations}/{training,validation}, DIR being ADEChallengeData2016 or
      the folder that holds it; labels 1 ... 150, 0 = ignore. A classes.json beside `images` makes
      it any other set: {"classes": [names], "palette": [[r, g, b], ...]}
    - Parquet: DIR/train.parquet with columns image and mask, and DIR/classes.json; labels from 0
    - Cityscapes: DIR/{leftImg8bit,gtFine}/{train,val}/<city>; the 19 classes of its benchmark
    """
    folder = Path(location)
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise InputError(f"{folder} {what}; give the folder that holds a segmentation set")
    if (root := ade_root(folder)) is not None:
        return open_ade20k(root, split)
    if has_cityscapes(folder):
        return open_cityscapes(folder, split)
    if has_parquet(folder):
        return open_rows(folder, split)
    raise InputError(
        f"no segmentation set in {folder}; it must hold images/ and annotations/ (ADE20K), "
        "leftImg8bit/ and gtFine/ (Cityscapes), or train.parquet with columns image and mask"
    )
