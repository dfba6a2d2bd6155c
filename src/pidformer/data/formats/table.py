"""The table of formats: how each is recognised, which splits it has, and how one is read.

The readers (`open_images`, `open_segmentation`) and `pidformer data check` go by it, and so agree.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pidformer.data import benchmarks
from pidformer.data.digits import open_digits
from pidformer.data.formats import arrow, cached, cifar, folders, indexed, parquet, tars, trees
from pidformer.data.sources import ImageSource, SegmentSource
from pidformer.data.text.files import find_text, text_splits
from pidformer.errors import InputError
from pidformer.files import existing_folder

Task = Literal["images", "segmentation", "text", "benchmark"]


@dataclass(frozen=True, kw_only=True)
class Format:
    """One layout of files below a folder."""

    name: str
    task: Task
    holds: str
    """What the folder must hold, for messages."""
    splits: Callable[[Path], Sequence[str]]
    """The splits in a folder; empty if the folder has another format."""
    open: Callable[[Path, str], Any]
    """A split: an `ImageSource` (tasks images and benchmark), a `SegmentSource`, or text files."""
    title: Callable[[Path], str | None] = lambda folder: None
    """What the set in a folder is called, where that is not the format's name."""
    notes: Callable[[Path], tuple[str, ...]] = lambda folder: ()
    """What is missing, for those who check a folder."""

    def title_of(self, folder: Path) -> str:
        return self.title(folder) or self.name


def _open_corrupted(folder: Path, split: str) -> ImageSource:
    corruption, severity = split.split("/")
    return benchmarks.open_corrupted(folder, corruption, int(severity))


def _folder_notes(folder: Path) -> tuple[str, ...]:
    return (f"no val/: {folders.HELD_OUT_NOTE}",) if folders.is_whole(folder) else ()


FORMATS = (  # the first that finds a split in a folder is the folder's
    Format(
        name="text",
        task="text",
        holds="wiki.train.tokens, train.txt (plain, .xz or .gz) or a folder train/ of texts",
        splits=text_splits,
        open=find_text,
        title=lambda folder: "WikiText" if any(folder.glob("wiki.*.tokens*")) else None,
    ),
    Format(
        name="ADE20K",
        task="segmentation",
        holds="images/ and annotations/ (ADE20K)",
        splits=trees.ade20k_splits,
        open=trees.open_ade20k,
    ),
    Format(
        name="Cityscapes",
        task="segmentation",
        holds="leftImg8bit/ and gtFine/ (Cityscapes)",
        splits=trees.cityscapes_splits,
        open=trees.open_cityscapes,
    ),
    Format(
        name="segmentation Parquet",
        task="segmentation",
        holds="train.parquet with columns image and mask",
        splits=parquet.masked_splits,
        open=parquet.open_masked,
    ),
    Format(
        name="ImageNet-A/R/O",
        task="benchmark",
        holds="a folder for each of the set's 200 classes",
        splits=benchmarks.shifted_splits,
        open=lambda folder, split: benchmarks.open_shift(folder),
        title=benchmarks.set_title,
    ),
    Format(
        name="ImageNet-C, Tiny-ImageNet-C and CIFAR-C",
        task="benchmark",
        holds="<corruption>/<severity>/<class>/ or <corruption>.npy and labels.npy",
        splits=benchmarks.corrupted_splits,
        open=_open_corrupted,
        title=benchmarks.corrupted_title,
        notes=benchmarks.corrupted_notes,
    ),
    Format(
        name="CIFAR",
        task="images",
        holds="cifar-10-batches-py or cifar-100-python",
        splits=cifar.cifar_splits,
        open=cifar.open_cifar,
        title=cifar.cifar_title,
    ),
    Format(
        name="image cache",
        task="images",
        holds=f"{cached.FILE} (made by `pidformer data cache`)",
        splits=cached.cached_splits,
        open=cached.open_cached,
        notes=cached.cache_notes,
    ),
    Format(
        name="index of an object store",
        task="images",
        holds=f"{indexed.FILE} (made by `pidformer data index`)",
        splits=indexed.index_splits,
        open=indexed.open_index,
    ),
    Format(
        name="Arrow image set",
        task="images",
        holds="train.arrow, or what `save_to_disk` of Hugging Face datasets wrote",
        splits=arrow.arrow_splits,
        open=arrow.open_arrow,
    ),
    Format(
        name="WebDataset",
        task="images",
        holds="train-000000.tar of KEY.jpg and KEY.cls",
        splits=tars.tar_splits,
        open=tars.open_tars,
    ),
    Format(
        name="Parquet image set",
        task="images",
        holds="train.parquet and val.parquet",
        splits=parquet.parquet_splits,
        open=parquet.open_parquet,
    ),
    Format(
        name="ImageNet folders",
        task="images",
        holds="a folder for each class, in train/ and val/ or by themselves",
        splits=folders.folder_splits,
        open=folders.open_folders,
        title=lambda folder: None if folders.is_imagenet(folder) else "image folders",
        notes=_folder_notes,
    ),
)


def find_format(folder: Path, task: Task | None = None) -> Format | None:
    """The format of a folder, among those of a task or among all."""
    wanted = (known for known in FORMATS if task in (None, known.task))
    return next((known for known in wanted if known.splits(folder)), None)


def open_images(location: str | Path | None, split: str) -> ImageSource:
    """The `split` ("train", "val", or another the set has) of the image set at `location`.

    `location` is "digits" (or None) for the embedded digits, or a folder in one of
    these formats, told apart by what is in it:

    - folders: DIR/{train,val}/<class>/*.JPEG (ImageNet), or DIR/<class>/*.JPEG, divided
    - Parquet: DIR/train.parquet or DIR/train-00000-of-00002.parquet (Hugging Face)
    - Arrow: DIR/train.arrow, or DIR/train/data-00000-of-00002.arrow (`datasets.save_to_disk`)
    - WebDataset: DIR/train-000000.tar, of KEY.jpg with KEY.cls or KEY.json
    - CIFAR: DIR/cifar-10-batches-py or DIR/cifar-100-python (torchvision)
    - an index of WebDataset shards in an object store (`pidformer data index`)
    - a cache of any of them (`pidformer data cache`)
    """
    folder = image_folder(location)
    if folder is None:
        return open_digits(split)
    return image_format(folder).open(folder, split)


def image_format(folder: Path) -> Format:
    return _format(folder, "images")


def image_folder(location: str | Path | None) -> Path | None:
    """The folder of an image set, which must be there; None for the embedded digits."""
    if location is None or str(location) == "digits":
        return None
    return existing_folder(location, "image set", ", or 'digits'")


def open_segmentation(location: str | Path, split: str) -> SegmentSource:
    """The `split` ("train" or "val") of the segmentation set at `location`, a folder.

    Told apart by what is in it:

    - ADE20K: DIR/{images,annotations}/{training,validation}, DIR being ADEChallengeData2016 or
      the folder that holds it; labels 1 ... 150, 0 = ignore. A classes.json beside `images` makes
      it any other set: {"classes": [names], "palette": [[r, g, b], ...]}
    - Parquet: DIR/train.parquet with columns image and mask, and DIR/classes.json; labels from 0
    - Cityscapes: DIR/{leftImg8bit,gtFine}/{train,val}/<city>; the 19 classes of its benchmark
    """
    folder = existing_folder(location, "segmentation set")
    source = _format(folder, "segmentation").open(folder, split)
    if isinstance(source, trees.TreePairs):
        source.check_partners()
    return source


def _format(folder: Path, task: Task) -> Format:
    if (found := find_format(folder, task)) is not None:
        return found
    other = find_format(folder)
    held = f", which holds {other.title_of(folder)}" if other else ""
    *most, last = (known.holds for known in FORMATS if known.task == task)
    what = task.removesuffix("s")
    raise InputError(f"no {what} set in {folder}{held}; it must hold {', '.join(most)} or {last}")
