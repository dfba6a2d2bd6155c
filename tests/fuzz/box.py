"""The sandbox: small runs, models and data of every kind that a command reads."""

from __future__ import annotations

import gc
import importlib
import json
import pkgutil
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

import pidformer

RELEASE = Path(__file__).parents[1] / "runs" / "release"
SUITE = "rows:\n  - clean\n  - fgsm: {eps: 3/255}\n  - pgd: {name: pgd-2, steps: 2}\n"
WORDS = ("the", "a", "cat", "dog", "sat", "ran", "= Title =\nfar", "near", "<unk>", "and")


@contextmanager
def sandbox() -> Iterator[Path]:
    """A folder of it; every module of the package is loaded, so that a fork costs nothing."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a fork has one thread
    for module in pkgutil.walk_packages(pidformer.__path__, "pidformer."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in ("torch.utils.tensorboard", "matplotlib.backends.backend_agg", "contourpy"):
        importlib.import_module(name)  # which begin when they are first used
    gc.collect()
    gc.freeze()  # collecting would copy every page of a fork
    with tempfile.TemporaryDirectory() as folder:
        box = Path(folder)
        for name in ("image", "interrupted", "language", "segmentation"):
            shutil.copytree(RELEASE / name, box / name)
        with warnings.catch_warnings(action="ignore"):
            _write_data(box)
            _write_text(box)
            _write_models(box)
            _write_plans(box)
        try:
            yield box
        finally:
            torch.set_num_threads(threads)
            gc.unfreeze()


def _write_data(box: Path) -> None:
    """Images of every suffix, and the other formats of `data.formats.table`."""
    from PIL import Image

    from pidformer.data.formats.folders import SUFFIXES
    from tests.data.pairs import encode, random_pairs, write_ade
    from tests.data.pairs import write_parquet as write_pairs
    from tests.data.sets import write_cifar, write_cifar_c, write_parquet

    (picture, _), (other, _) = random_pairs(2, sizes=((32, 40),))
    for suffix in SUFFIXES:
        for split in ("train", "val"):
            for kind, pixels in (("cat", picture), ("dog", other)):
                (box / f"photos{suffix}" / split / kind).mkdir(parents=True)
                image = Image.fromarray(pixels).convert("L" if suffix == ".pgm" else "RGB")
                image.save(box / f"photos{suffix}" / split / kind / f"a{suffix}")
    Image.fromarray(picture).save(box / "picture.png")
    write_pairs(box / "pairs", train=4, val=2)
    write_ade(box / "ade", train=4, val=2)
    legend = {"classes": ["red", "green", "blue", "grey"], "palette": [[9, 9, 9]] * 4}
    (box / "ade" / "ADEChallengeData2016" / "classes.json").write_text(json.dumps(legend))
    for split in ("train", "val"):
        images = [encode(pixels) for pixels in (picture, other)]
        write_parquet(box / "table" / f"{split}.parquet", [0, 1], ["cat", "dog"], images)
    write_cifar(box / "cifar", hundred=True)
    write_cifar_c(box / "CIFAR-10-C", count=1)


def _write_text(box: Path) -> None:
    """A text, plain and compressed, and the token files of its training."""
    import gzip
    import lzma

    from pidformer.data.text import open_corpus, text_tokenizer

    text = "\n".join(" ".join(WORDS[(3 * k + n) % 10] for n in range(8)) for k in range(60))
    for name, opened in (("texts", open), ("gzipped", gzip.open), ("xzipped", lzma.open)):
        suffix = {"texts": "", "gzipped": ".gz", "xzipped": ".xz"}[name]
        (box / name).mkdir()
        for split in ("train", "valid", "test"):
            with opened(box / name / f"{split}.txt{suffix}", "wt") as file:
                file.write(text + "\n")
    found = text_tokenizer(box / "texts", cache=box / "cache", workers=1)
    for split in ("train", "valid"):
        open_corpus(box / "texts", split, found, cache=box / "cache")


def _write_models(box: Path) -> None:
    """Folders of Hugging Face: a converted model and a language run of ours; published records."""
    import transformers

    import pidformer as pf
    from pidformer.report.hub import publish_run
    from pidformer.report.publish import publish

    transformers.utils.logging.disable_progress_bar()
    sizes = {"n_embd": 8, "n_layer": 2, "n_head": 2, "vocab_size": 12, "n_positions": 16}
    about = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=1)
    pf.convert(transformers.GPT2LMHeadModel(about), "0.4,0.1,0").save_pretrained(box / "converted")
    publish_run(box / "language", box / "ours")
    shutil.copy(box / "ours" / "tokenizer.json", box / "tokenizer.json")
    publish([box / "image"], box / "published")


def _write_plans(box: Path) -> None:
    """A suite, and a study that uses every key of one."""
    (box / "suite.yaml").write_text(SUITE)
    study = {
        "recipe": "digits/pid.yaml",
        "data": ["digits"],
        "overrides": ["schedule.epochs=1"],
        "suites": {"quick": 8, "c": {"curve": "fgsm", "eps": "0:2:1", "limit": 4, "seeds": [0]}},
        "primary": {"rows": ["p"], "metrics": ["Clean"]},
        "contrasts": [["p", "softmax"]],
        "choose": {"groups": ["all"], "without": ["softmax"], "metrics": ["Clean"]},
        "hypotheses": {
            "H1": {"text": "it helps", "pairs": [["p", "softmax"]], "expects": {"Clean": "better"}}
        },
        "groups": {
            "all": {
                "about": "everything", "images": "odd", "seeds": [0], "set": ["train.ema=null"],
                "suites": {"quick": {"domain": "pixel"}}, "depth": 4,
                "rows": {
                    "softmax": {},
                    "p": {"gains": "0.6,0,0,1", "learn": False, "act": "late", "average": True},
                    "more": {"gains": "0.2,0,0,1", "set": ["optim.lr=1e-3"]},
                },
            }
        },
    }  # fmt: skip
    (box / "study.yaml").write_text(json.dumps(study))
