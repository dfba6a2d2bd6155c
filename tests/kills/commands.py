"""The commands that write, small enough to be run hundreds of times, and what they read."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import yaml
from PIL import Image

from pidformer.training import Recipe, load_recipe
from tests.data.pairs import random_pairs, write_parquet
from tests.data.sets import write_photos
from tests.training.tiny import tiny_recipe
from tests.training.tiny_language import tiny_language

CPU = "--device cpu"


@dataclass(frozen=True)
class Writes:
    """A command that writes; IN/ is where its inputs are, all else is below its own folder."""

    name: str
    line: str
    needs: tuple[str, ...] = ()
    """Runs that are in its folder when it begins."""
    makes: tuple[str, str] | None = None
    """A run that others need: its place, and what they call it."""
    is_new: bool = False
    """Whether it refuses a folder `out` that is there already."""

    def arguments(self, inputs: Path) -> list[str]:
        return [word.replace("IN/", f"{inputs}/") for word in self.line.split()]


COMMANDS = (
    Writes("train (classification)", f"train IN/image.yaml --out run {CPU}", makes=("run", "run")),
    Writes(
        "train (segmentation)",
        f"train IN/segmentation.yaml --data IN/pairs --out seg {CPU}",
        makes=("seg", "seg"),
    ),
    Writes(
        "train (language), token files",
        f"train IN/language.yaml --data IN/texts --out lm {CPU}",
        makes=("lm", "lm"),
    ),
    Writes(
        "evaluate",
        f"evaluate run --suite IN/suite.yaml --limit 64 {CPU}",
        needs=("run",),
        makes=("run", "run-seed0"),
    ),
    Writes(
        "evaluate --curve",
        f"evaluate run --curve fgsm --eps 0:2:1 --limit 64 --out out {CPU}",
        needs=("run",),
    ),
    Writes("analyze", f"analyze run --limit 8 --out out {CPU}", needs=("run",)),
    Writes(
        "tune",
        f"tune run --metric noise --limit 64 --p 0,0.4 --i 0,0.1 --d 0 {CPU}",
        needs=("run",),
    ),
    Writes("convert", "convert run --gains 0.4,0.1,0.05 --out out", needs=("run",), is_new=True),
    Writes("export (pt2)", "export run --out model.pt2", needs=("run",)),
    Writes("export (ONNX)", "export lm --out model.onnx", needs=("lm",)),
    Writes("publish (images)", "publish run --out out", needs=("run",), is_new=True),
    Writes("publish (language)", "publish lm --out out", needs=("lm",), is_new=True),
    Writes("report", "report run-seed0 --out out", needs=("run-seed0",)),
    Writes("report --publish", "report run-seed0 --publish out", needs=("run-seed0",)),
    Writes("segment", f"segment seg IN/picture.png --out out {CPU}", needs=("seg",)),
    Writes("stability --plot", "stability --gains 0.4,0.1,0.05 --plot figure.png"),
    Writes("data check --out", "data check IN/pairs --out sheet.png"),
    Writes("data cache", "data cache IN/photos --out out --size 16"),
    Writes("reproduce", f"reproduce --study IN/study.yaml --out out --jobs 1 {CPU}"),
)


def write_inputs(root: Path) -> None:
    """What IN/ holds: recipes, a suite, a study, pictures, texts."""
    root.mkdir()
    image = tiny_recipe("schedule.epochs=1", "schedule.warmup_epochs=0", "train.log_steps=4")
    _dump(root / "image.yaml", image.to_dict())
    _dump(root / "segmentation.yaml", _segmentation().to_dict())
    language = tiny_language("schedule.epochs=1", "train.checkpoint_steps=2")
    _dump(root / "language.yaml", language.to_dict())
    rows = ["clean", {"fgsm": {"eps": 0.05}}, {"noise": {"eps": 0.3}}]
    _dump(root / "suite.yaml", {"rows": rows})
    group = {"seeds": [0], "rows": {"pid": {"gains": "0.4,0.1,0.05,1"}}}
    study = {"recipe": str(root / "image.yaml"), "data": [], "groups": {"main": group}}
    _dump(root / "study.yaml", study | {"suites": {str(root / "suite.yaml"): 32}})
    write_parquet(root / "pairs", train=8, val=3)
    write_photos(root / "photos")
    Image.fromarray(random_pairs(1)[0][0]).save(root / "picture.png")
    (root / "texts").mkdir()
    chance = random.Random(0)
    for split, lines in (("train", 60), ("valid", 10), ("test", 10)):
        rows = [" ".join(f"w{chance.randrange(40)}" for _ in range(9)) for _ in range(lines)]
        (root / "texts" / f"{split}.txt").write_text("\n".join(rows) + "\n")


def _segmentation() -> Recipe:
    options = "{patch_size: 4, embed_dim: 16, depth: 2, num_heads: 2, mlp_ratio: 2}"
    return load_recipe(
        "camvid/pid.yaml",
        [
            f"model.options={options}",
            "data.image_size=16",
            "data.batch_size=4",
            "data.workers=0",
            "segmentation.scale=[64, 24]",
            "segmentation.stride=12",
            "schedule.epochs=2",
            "schedule.warmup_epochs=0",
            "train.precision=fp32",
            "train.evaluate_every=1",
            "train.checkpoint_steps=3",
            "train.log_steps=2",
        ],
    )


def _dump(path: Path, fields: object) -> None:
    path.write_text(yaml.safe_dump(fields))
