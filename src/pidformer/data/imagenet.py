"""The classes of ImageNet and of the sets that hold 200 of them."""

from functools import cache
from pathlib import Path

from pidformer.errors import check_known
from pidformer.fields import read_json

SUBSETS = ("imagenet-a", "imagenet-r", "imagenet-o")


def imagenet_classes() -> tuple[str, ...]:
    """The 1000 WordNet ids ("n01440764" ...): sorted, so place k is index k of the logits."""
    return tuple(_table()["wnids"])


def subset_indices(name: str) -> tuple[int, ...]:
    """The 200 of the 1000 indices that "imagenet-a", "imagenet-r" or "imagenet-o" has, rising.

    For ImageNet-O these are the classes its images are mistaken for; they belong to none.
    """
    check_known("200-class set", name, SUBSETS)
    return tuple(_table()[name])


def subset_classes(name: str) -> tuple[str, ...]:
    """The same 200 as WordNet ids, in the same order."""
    classes = imagenet_classes()
    return tuple(classes[index] for index in subset_indices(name))


@cache
def _table() -> dict[str, list]:
    return read_json(Path(__file__).with_name("imagenet_classes.json"))
