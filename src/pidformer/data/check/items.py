"""A split as a check sees it: things with names that can be opened one by one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pidformer.data.formats.table import Task
from pidformer.data.formats.trees import TreePairs
from pidformer.data.sources import Decodable, ImageSource, Pair, SegmentSource
from pidformer.data.text.files import text_blocks

LISTED = 20
"""Classes that are listed by name; longer lists are given as a number."""


@dataclass(frozen=True, kw_only=True)
class Items:
    """The things of one split; those without a `source` (lines of text) have been read."""

    count: int
    source: Decodable[Any] | None = None
    show: Callable[[Any], Image.Image] = lambda image: image
    """What a decoded thing looks like on the sheet."""
    caption: Callable[[int], str] = lambda index: ""
    classes: Mapping[str, int] = field(default_factory=dict)
    """How many of each class; empty where there is none."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further counts."""
    unpaired: Sequence[int] = ()
    """Those known to lack a part, which are damaged."""


def pictures(source: ImageSource) -> Items:
    """A labelled image set."""
    labels = source.labels.numpy()
    counts = np.bincount(labels[labels >= 0], minlength=len(source.classes))
    classes = dict(zip(source.classes, counts.tolist(), strict=True))
    if none := int((labels < 0).sum()):
        classes = {name: n for name, n in classes.items() if n} | {"(no class)": none}

    def caption(index: int) -> str:
        return source.classes[labels[index]] if labels[index] >= 0 else "no class"

    return Items(count=len(source), source=source, caption=caption, classes=classes)


def scenes(source: SegmentSource) -> Items:
    """Images with a mask each: shown above it, in the colours of the classes, 255 black."""
    colours = np.zeros((256, 3), dtype=np.uint8)
    colours[: len(source.palette)] = source.palette

    def show(pair: Pair) -> Image.Image:
        return Image.fromarray(np.concatenate([np.asarray(pair.image), colours[pair.mask]]))

    names = source.classes
    return Items(
        count=len(source),
        source=source,
        show=show,
        caption=lambda k: source.name(k).rpartition("/")[2].rpartition(".parquet ")[2],
        facts={"classes": ", ".join(names) if len(names) <= LISTED else len(names)},
        unpaired=source.unpaired if isinstance(source, TreePairs) else (),
    )


def lines(paths: list[Path]) -> Items:
    """Files of text, read as a whole."""
    count, words, characters = 0, 0, 0
    different: set[str] = set()
    for block in text_blocks(paths):  # of whole lines, each with its newline
        found = block.split()
        count += block.count("\n")
        words += len(found)
        characters += len(block)
        different.update(found)
    facts = {
        "words": words,
        "different words": len(different),
        "tokens with <eos>": words + count,
        "characters": characters,
    }
    return Items(count=count, facts=facts)


ITEMS: dict[Task, Callable[[Any], Items]] = {
    "images": pictures,
    "benchmark": pictures,
    "segmentation": scenes,
    "text": lines,
}
