"""Cases of files: wrong values at every key of those that have keys, and damage to all.

Damage: cut at each tenth, and 200 bits flipped, for every kind of file that a command reads.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.fuzz.cases import (
    TRAINING,
    VALID,
    Case,
    Flip,
    model_cases,
    option_cases,
    recipe_cases,
    suite_cases,
)
from tests.fuzz.values import WRONG, as_json

Command = tuple[str, ...]
FLIPS = 200
MARK = '"@@"'
STEP = "interrupted/checkpoints/step-00000022"
GO_ON = ("train", "interrupted/recipe.yaml", "--out", "interrupted", "--device", "cpu")
IMAGE = tuple(VALID[name] for name in ("evaluate", "analyze", "convert", "publish", "report"))
SEGMENT, WORDS = (VALID["segment"],), (VALID["generate"],)
CONVERT = ("convert", "converted", "--gains", "0.1,0,0", "--out", "out")
CONVERTED = (CONVERT, ("export", "converted", "--out", "out", "--format", "pt2"))
OURS = (("generate", "ours", "--max-tokens", "2", "--device", "cpu"),)
LANGUAGE, PAIRS = TRAINING["language"], TRAINING["segmentation"]
SUBWORDS = (*LANGUAGE, "text.tokenizer=tokenizer.json")
STUDY = ("reproduce", "--study", "study.yaml", "--dry-run", "--out", "out")
SUITE = ("evaluate", "image", "--limit", "4", "--suite", "suite.yaml", "--device", "cpu")
PUBLISHED = ("report", "published", "--out", "out")


def _check(folder: str) -> Command:
    return ("data", "check", folder)


KEYED: dict[str, tuple[str, tuple[Command, ...]]] = {
    "image/recipe.yaml": ("recipe.yaml of a run", IMAGE),
    "segmentation/recipe.yaml": ("recipe.yaml of a run", SEGMENT),
    "language/recipe.yaml": ("recipe.yaml of a run", WORDS),
    "image/model.json": ("model.json of a run", IMAGE),
    "segmentation/model.json": ("model.json of a run", SEGMENT),
    "language/model.json": ("model.json of a run", WORDS),
    "image/results.jsonl": ("records", IMAGE),
    "published/*.jsonl": ("records", (PUBLISHED,)),
    f"{STEP}/state.json": ("state of a checkpoint", (GO_ON,)),
    f"{STEP}/checksums.json": ("state of a checkpoint", (GO_ON,)),
    "converted/config.json": ("config.json of Hugging Face", CONVERTED),
    "ours/config.json": ("config.json of Hugging Face", OURS),
    "ours/tokenizer.json": ("tokenizer", OURS),
    "ours/vocabulary.json": ("tokenizer", OURS),
    "tokenizer.json": ("tokenizer", (SUBWORDS,)),
    "pairs/classes.json": ("classes.json", (_check("pairs"), PAIRS)),
    "cache/tokens-*/about.json": ("token files", (LANGUAGE,)),
    "cache/words-*.json": ("token files", (LANGUAGE,)),
    "study.yaml": ("study", (STUDY,)),
}
"""Files with keys: what they are, and the commands that read them."""

DAMAGED: dict[str, tuple[str, tuple[Command, ...]]] = {
    "picture.png": ("PNG", SEGMENT),
    **{
        f"photos{suffix}/val/cat/*": (name, (_check(f"photos{suffix}"),))
        for suffix, name in {
            ".jpg": "JPEG", ".png": "PNG", ".gif": "GIF", ".webp": "WebP", ".bmp": "BMP",
            ".tif": "TIFF", ".ppm": "PPM and PGM", ".pgm": "PPM and PGM",
        }.items()
    },
    "ade/*/annotations/validation/*0.png": ("mask", (_check("ade"),)),
    "table/val.parquet": ("Parquet", (_check("table"),)),
    "pairs/train.parquet": ("Parquet", (PAIRS, _check("pairs"))),
    "cifar/cifar-100-python/test": ("CIFAR", (_check("cifar"),)),
    "CIFAR-10-C/*.npy": ("NumPy arrays", (_check("CIFAR-10-C"),)),
    "image/model.safetensors": ("safetensors", IMAGE),
    "segmentation/model.safetensors": ("safetensors", SEGMENT),
    "language/best.safetensors": ("safetensors", WORDS),
    "converted/model.safetensors": ("safetensors", CONVERTED),
    "image/results.jsonl": ("JSON lines", IMAGE),
    "published/*.jsonl": ("JSON lines", (PUBLISHED,)),
    "image/recipe.yaml": ("YAML", IMAGE),
    "suite.yaml": ("YAML", (SUITE,)),
    "study.yaml": ("YAML", (STUDY,)),
    "*/model.json": ("JSON", IMAGE[:1]),
    "converted/config.json": ("JSON", CONVERTED),
    "ours/*.json": ("JSON", OURS),
    "interrupted/checkpoints/*/*": ("checkpoint", (GO_ON,)),
    "texts/train.txt": ("text", (LANGUAGE, _check("texts"))),
    "gzipped/train.txt.gz": ("gzip", (_check("gzipped"),)),
    "xzipped/train.txt.xz": ("xz", (_check("xzipped"),)),
    "cache/tokens-*/*": ("token file", (LANGUAGE,)),
    "cache/words-*.json": ("token file", (LANGUAGE,)),
}  # fmt: skip
"""Files by format, and the commands that read them."""
READERS = {"language": WORDS, "segmentation": SEGMENT}
"""For patterns over several runs."""


@dataclass(frozen=True)
class Key:
    """Another value at one place of a file of keys; of one of JSON lines, in one line."""

    name: str
    place: tuple[str | int, ...]
    value: str
    line: int = 0

    def apply(self, box: Path) -> None:
        path = box / self.name
        before, held, rest = _read(path, self.line)
        text = MARK
        if self.place:
            inner = held
            for key in self.place[:-1]:
                inner = inner[key]
            inner[self.place[-1]] = MARK.strip('"')
            text = json.dumps(held)
        given = self.value if path.suffix == ".yaml" else as_json(self.value)  # JSON is YAML too
        content = text.replace(MARK, given).encode("utf-8", "surrogateescape")
        path.write_bytes(before + content + rest)
        if path.name == "state.json":  # read only where its checksum fits
            sums = json.loads((path.parent / "checksums.json").read_bytes())
            sums[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
            (path.parent / "checksums.json").write_text(json.dumps(sums))


def _read(path: Path, line: int) -> tuple[bytes, Any, bytes]:
    """The plain data of a file, or of one of its JSON lines with what is around it."""
    text = path.read_bytes()
    if path.suffix != ".jsonl":
        return b"", yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text), b""
    lines = text.splitlines(keepends=True)
    return b"".join(lines[:line]), json.loads(lines[line]), b"\n" + b"".join(lines[line + 1 :])


def _lines(path: Path) -> list[int]:
    """The first line of each kind of record; other files are one."""
    if path.suffix != ".jsonl":
        return [0]
    records = [json.loads(line) for line in path.read_bytes().splitlines()]
    kinds = [(record["kind"], record["settings"].get("what")) for record in records]
    return [kinds.index(kind) for kind in dict.fromkeys(kinds)]


def key_cases(box: Path) -> Iterator[Case]:
    """Each key of each such file, with each wrong value."""
    for pattern, (kind, readers) in KEYED.items():
        for path in sorted(box.glob(pattern)):
            name = str(path.relative_to(box))
            lines = [
                (line, place) for line in _lines(path) for place in _places(_read(path, line)[1])
            ]
            turns = itertools.cycle(readers)
            for (line, place), value in itertools.product(lines, WRONG):
                what = f"{name} {line} {'.'.join(map(str, place))}"
                yield Case(f"key in: {kind}", what, next(turns), Key(name, place, value, line))


def _places(held: Any, before: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Paths to all that is held, of lists to the first entry."""
    yield before
    if isinstance(held, dict):
        for key, value in list(held.items())[:40]:
            yield from _places(value, (*before, key))
    elif isinstance(held, list) and held:
        yield from _places(held[0], (*before, 0))


def damage_cases(box: Path, seed: int) -> Iterator[Case]:
    """Each such file cut at each tenth and with bits flipped, 200 for each format at least."""
    chance = random.Random(seed)
    for pattern, (kind, readers) in DAMAGED.items():
        for path in sorted(p for p in box.glob(pattern) if p.is_file()):
            name, size = str(path.relative_to(box)), path.stat().st_size
            own = READERS.get(name.split("/")[0], readers)
            if name.startswith("interrupted/m"):
                own = (GO_ON,)
            places = [(size * tenth // 10, -1) for tenth in range(10)]
            places += [(chance.randrange(size), chance.randrange(8)) for _ in range(FLIPS)]
            for turn, (place, bit) in enumerate(places):
                what = f"{name} {'cut' if bit < 0 else 'flipped'}"
                yield Case(f"damaged: {kind}", what, own[turn % len(own)], Flip(name, place, bit))


def all_cases(box: Path, seed: int) -> list[Case]:
    made = (option_cases(), recipe_cases(), model_cases(), suite_cases(), key_cases(box))
    return [case for cases in (*made, damage_cases(box, seed)) for case in cases]
