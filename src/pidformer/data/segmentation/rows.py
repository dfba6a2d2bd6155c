"""Segmentation sets as Parquet files: columns image and mask, classes.json beside them."""

from __future__ import annotations

from pathlib import Path

from pidformer.data.parquet import ParquetRows, missing_split, split_files
from pidformer.data.pictures import read_picture
from pidformer.data.segmentation.masks import (
    Legend,
    check_same_size,
    plain_table,
    read_legend,
    read_mask,
    to_labels,
)
from pidformer.data.segmentation.pair import Pair
from pidformer.errors import InputError


class ParquetPairs(ParquetRows):
    """Rows of `image` and `mask`, each struct{bytes, path} or plain bytes; labels from 0."""

    def __init__(self, files: list[Path], legend: Legend) -> None:
        super().__init__(files, ("image", "mask"))
        self.classes, self.palette = legend
        self._table = plain_table(len(legend.classes), first=0)

    def decode(self, index: int) -> Pair:
        image = read_picture(self.cell(index, "image"))
        mask = read_mask(self.cell(index, "mask"))
        name = self.name(index)
        check_same_size(image, mask, name)
        return Pair(image, to_labels(mask, self._table, name, len(self.classes)))


def open_rows(folder: Path, split: str) -> ParquetPairs:
    """The split's file or shards."""
    files = split_files(folder, split)
    if not files:
        raise missing_split(folder, split)
    path = folder / "classes.json"
    if not path.exists():
        raise InputError(
            f'no classes.json in {folder}; write {{"classes": [names in the order of the labels]}}'
        )
    rows = ParquetPairs(files, read_legend(path))
    if not len(rows):
        raise InputError(f"{files[0]} has no rows; a segmentation set needs at least one")
    return rows
