"""Longer windows: `python -m study.windows --data novels --out windows`.

Language models trained on windows of 64 tokens read windows of 128 and 256: softmax and controlled
twins, with each kind of position. Of those with rotary positions the trained networks are then
looked into. A query of a long window differs from one of training in what it attends to (keys
farther away, more keys) and, with control, in what is fed back. Each is put back alone:

    near        a query sees the 64 keys nearest to it, as in training
    layer 1     the same in all layers but this one (the first is layer 1)
    thinned     64 keys, spread over the window: new distances, the old number
    squeezed    positions times 64 / window: old distances, a new number
    control     what is fed back is that of the near pass, attention that of the long window
    reference, sum, previous
                one part of the controller's state is that of the near pass

Small enough for one core: four layers of width 128, a million tokens. `--measure` trains nothing.
With `--steps 8000 --positions rope` the rows differ as the published ones do.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pidformer.data.text import open_corpus
from pidformer.errors import InputError
from pidformer.models.language import block
from pidformer.models.language.masks import Mask, causal_mask
from pidformer.runs.model import load_language
from pidformer.statistics import mean_over_seeds
from pidformer.training import load_recipe
from pidformer.training.language import window_nll
from pidformer.training.run import train

LENGTH = 64
WINDOWS = (64, 128, 256)
GAINS = {"softmax": "null", "p": "0.6,0,0,1", "pid": "0.4,0.5,0.1,0.3"}
RUNS = {"rope": (*GAINS,), "sinusoidal": ("softmax", "pid"), "learned": ("softmax", "pid")}
SET = [
    *("model.options.hidden_size=128", "model.options.num_hidden_layers=4"),
    *("model.options.num_attention_heads=4", "model.options.intermediate_size=384"),
    *("model.options.hidden_dropout=0", f"text.length={LENGTH}", "text.max_words=2000"),
    *("text.min_count=1", "data.batch_size=16", "optim.lr=2e-3"),
    *("schedule.warmup_steps=50", "schedule.warmup_epochs=0", "train.precision=fp32"),
]
PARTS = {"reference": "initial", "sum": "integral", "previous": "previous"}
SWAPS = ("control", *PARTS)
LAYER = "layer "
WAYS = ("near", "thinned", "squeezed", *SWAPS)


def recipe_of(positions: str, row: str, seed: int, steps: int) -> Any:
    more = [f"model.gains={GAINS[row]}", f"model.options.position_type={positions}", f"seed={seed}"]
    more.append(f"schedule.steps={steps}")
    if positions == "learned":  # a table with rows that training never reaches
        more.append(f"model.options.max_position_embeddings={max(WINDOWS)}")
    return load_recipe("novels/softmax.yaml", [*more, *SET])


def seen_keys(window: int, way: str) -> Tensor:
    """Which keys a query sees, bool (1, 1, N, N); at most `LENGTH` of them."""
    if way == "near":
        return causal_mask(None, None, window, torch.device("cpu"), LENGTH)
    place, near = torch.arange(window), LENGTH // 2
    distance = place[:, None] - place
    step = max(1, (window - near) // (LENGTH - near))
    return ((distance >= 0) & ((distance < near) | ((distance - near) % step == 0)))[None, None]


class Tape:
    """Control and state in each layer of a pass, for another pass over the same text."""

    def __init__(self) -> None:
        self.layers: list[tuple[Tensor, Any]] = []

    @contextmanager
    def written(self) -> Iterator[None]:
        with _attention(self._write):
            yield

    @contextmanager
    def read(self, part: str) -> Iterator[None]:
        """A pass in which `part` comes from the tape."""
        left = iter(self.layers)
        with _attention(lambda *given: self._mix(part, next(left), *given)):
            yield

    def _write(self, mixed: Tensor, control: Tensor, state: Any) -> tuple[Tensor, Any]:
        self.layers.append((control, state))
        return mixed + control, state

    @staticmethod
    def _mix(
        part: str, kept: tuple[Tensor, Any], mixed: Tensor, control: Tensor, state: Any
    ) -> tuple[Tensor, Any]:
        if part == "control":
            return mixed + kept[0], state
        if state is not None:
            name = PARTS[part]
            state = state._replace(**{name: getattr(kept[1], name)})
        return mixed + control, state


@contextmanager
def _attention(then: Callable[..., tuple[Tensor, Any]]) -> Iterator[None]:
    """`then(attention's output, control, state)` gives what a layer of the model goes on with."""
    name = "pid_attention"
    original = getattr(block, name)

    def both(
        q: Tensor, k: Tensor, v: Tensor, state: Any, gains: Any, **options: Any
    ) -> tuple[Tensor, Any]:
        masks = {key: options[key] for key in ("attn_mask", "is_causal")}
        mixed, _ = original(q, k, v, None, None, **masks)
        out, after = original(q, k, v, state, gains, **options)
        return then(mixed, out - mixed, after)

    setattr(block, name, both)
    try:
        yield
    finally:
        setattr(block, name, original)


@contextmanager
def _near_but(blocks: Iterable[nn.Module], far: int, window: int) -> Iterator[None]:
    """All layers but one see the nearest keys."""
    near = {"mask": Mask(seen_keys(window, "near"), False)}
    hooks = [
        block.register_forward_pre_hook(
            lambda _, given, named: (given, named | near), with_kwargs=True
        )
        for depth, block in enumerate(blocks)
        if depth != far
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class Changed(nn.Module):
    """A model as `window_nll` calls it, in one of the ways above."""

    def __init__(self, model: Any, way: str | None) -> None:
        super().__init__()
        self.model, self.way = model, way
        self.layers: list[nn.Module] = list(model.blocks)

    def forward(self, input_ids: Tensor, targets: Tensor, reduction: str) -> Any:
        if not len(input_ids):
            return SimpleNamespace(loss=targets.float())
        given: dict[str, Any] = {"input_ids": input_ids, "targets": targets, "reduction": reduction}
        window = input_ids.shape[1]
        if self.way is None:
            return self.model(**given)
        if self.way == "squeezed":
            places = torch.arange(window)[None] * min(1.0, LENGTH / window)
            return self.model(**given, position_ids=places)
        if self.way.startswith(LAYER):
            with _near_but(self.layers, int(self.way[len(LAYER) :]) - 1, window):
                return self.model(**given)
        if self.way not in SWAPS:
            return self.model(**given, attention_mask=seen_keys(window, self.way))
        tape = Tape()
        with tape.written():
            self.model(**given, attention_mask=seen_keys(window, "near"))
        with tape.read(self.way):
            return self.model(**given)


def losses(run: Path, data: Path, limit: int, ways: bool) -> dict[str, float]:
    """Nats per token of the test text: by window, and by way at the longest."""
    found = load_language(run)
    tokens = open_corpus(data, "test", found.tokenizer).tokens[:limit].astype(np.int64)
    inputs, targets = torch.from_numpy(tokens[:-1]), torch.from_numpy(tokens[1:])

    def loss(window: int, way: str | None = None) -> float:
        model = Changed(found.model, way).eval()
        with torch.inference_mode():
            nll = window_nll(
                model, inputs, targets, window=window, stride=window // 2, batch_size=16
            )
        return float(nll.nanmean())

    rows = {str(window): loss(window) for window in WINDOWS}
    if ways:
        is_controlled = found.model.gains is not None
        tried = [*WAYS, *(f"{LAYER}{k + 1}" for k in range(found.model.config.num_hidden_layers))]
        rows |= {way: loss(WINDOWS[-1], way) for way in tried if is_controlled or way not in SWAPS}
    return rows


def table(found: dict[tuple[str, str, int], dict[str, float]]) -> str:
    """Loss minus that of the training length by row, and minus softmax's; 95 % over seeds."""
    lines = ["| positions | row | seeds | what | nats | rise over 64 | minus softmax's |"]
    lines.append("|---" * 7 + "|")
    for positions, row in dict.fromkeys(key[:2] for key in found):
        seeds = [key[2] for key in found if key[:2] == (positions, row)]
        for what in found[positions, row, seeds[0]]:
            own = {s: found[positions, row, s] for s in seeds}
            twins = [s for s in seeds if what in found.get((positions, "softmax", s), {})]
            more = {s: own[s][what] - own[s]["64"] for s in seeds}
            base = {s: found[positions, "softmax", s] for s in twins}
            excess = [more[s] - (base[s][what] - base[s]["64"]) for s in twins]
            cells = [_interval([own[s][what] for s in seeds], ""), _interval([*more.values()], "+")]
            cells.append(_interval(excess, "+") if row != "softmax" and excess else "")
            lines.append(f"| {positions} | {row} | {len(seeds)} | {what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _interval(values: list[float], sign: str) -> str:
    mean = mean_over_seeds(values)
    return f"{mean.mean:{sign}.3f} [{mean.low:{sign}.3f}, {mean.high:{sign}.3f}]"


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0, or 2 with one line on what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("windows"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1000, help="of 1,024 tokens")
    parser.add_argument("--positions", choices=RUNS, nargs="+", default=[*RUNS])
    parser.add_argument("--tokens", type=int, default=6000, help="of the test text")
    parser.add_argument("--measure", action="store_true", help="only what is trained already")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
        print(table(measured(given)))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def measured(given: argparse.Namespace) -> dict[tuple[str, str, int], dict[str, float]]:
    """Losses by positions, row and seed, printed as they come."""
    found = {}
    for seed in range(given.seeds):
        for positions in given.positions:
            for row in RUNS[positions]:
                run = given.out / f"{positions}-{row}-seed{seed}"
                if not given.measure:
                    recipe = recipe_of(positions, row, seed, given.steps)
                    train(recipe, run, data=given.data, device="cpu")
                if not (run / "model.safetensors").exists():
                    continue
                key = positions, row, seed
                found[key] = losses(run, given.data, given.tokens, positions == "rope")
                print(json.dumps([*key, found[key]]), flush=True)
    return found


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
