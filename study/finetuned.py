"""A trained network fine-tuned with and without a controller: runs that go on, and their records.

A run is trained in a folder of its own, with a checkpoint; each row of what is measured is written
as it comes. A finished one is a file as `pidformer report --publish` writes them, for the pages.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

import pidformer as pf
from pidformer.convert import GainRamp
from pidformer.data.text import Perturbation
from pidformer.errors import InputError
from pidformer.evaluation.language import LanguageSetup
from pidformer.files import atomic_path, write_whole
from pidformer.ledger import Ledger
from pidformer.models.gains import resolve_gains
from pidformer.report.collect import SHARED, read_run
from pidformer.report.publish import first_line, shrink
from pidformer.results import Record, as_text
from pidformer.runs.model import LanguageModel
from pidformer.runs.recipe import (
    DataRecipe,
    ModelRecipe,
    OptimRecipe,
    Recipe,
    ScheduleRecipe,
    TextRecipe,
    TrainRecipe,
)
from pidformer.runs.twins import recipe_hash
from pidformer.runs.weights import fingerprint
from study import sentences
from study.trained_networks import NAMES, Pretrained

WINDOW = 256
STRENGTHS = (1, 3, 5)
"""Of character noise: rates of 1, 5 and 20 %."""
RAMP = 0.3
CHECKPOINT, CHECKPOINT_SECONDS = "checkpoint.pt", 60.0
ROWS = ("softmax", "pid")
CURVE = 20
"""Points of the training loss that are kept."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Rows by seeds, and how long each is trained."""

    network: str
    data: Path
    also: tuple[Path, ...] = ()
    gains: str = "0.1,0.003,0.03"
    seeds: tuple[int, ...] = (10, 11, 12)
    rows: tuple[str, ...] = ROWS
    """Some of them, for one of several processes that share a study."""
    steps: int = 1000
    batch_size: int = 16
    learning_rate: float = 5e-5
    limit: int | None = None
    """Tokens of each test text."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def embeds(self) -> bool:
        """Whether the network embeds sentences, in place of predicting words."""
        return self.network == NAMES["minilm"]

    @property
    def length(self) -> int:
        """Tokens of a window, or of two sentences."""
        return 2 * sentences.LENGTH if self.embeds else WINDOW

    def loss(self, model: Any, ids: Tensor) -> Tensor:
        """What a step lowers, of a batch (B, N)."""
        if self.embeds:
            return sentences.contrast(model, ids[:, : self.length])
        return model(ids, labels=ids, use_cache=False).loss

    def jobs(self) -> Iterator[tuple[str, int]]:
        """Rows and seeds, the rows of a seed before the next."""
        for seed in self.seeds:
            for variant in self.rows:
                yield variant, seed

    def recipe(self, variant: str, seed: int, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """What was trained, as recipes say it."""
        gains = self.gains if variant == "pid" else None
        model = ModelRecipe(name=self.network, gains=gains, options=dict(sizes), init=self.network)
        made = Recipe(
            task="language",
            seed=seed,
            model=model,
            data=DataRecipe(name=self.data.name, batch_size=self.batch_size),
            text=TextRecipe(length=self.length, tokenizer=self.network),
            optim=OptimRecipe(lr=self.learning_rate, weight_decay=0.01, clip=1.0),
            schedule=ScheduleRecipe(
                steps=self.steps,
                warmup_steps=max(1, self.steps // 10),
                warmup_lr=0.0,
                min_lr=0.0,
                gain_ramp=RAMP if gains else None,
            ),
            train=TrainRecipe(precision="bf16" if self.device.type == "cuda" else "fp32"),
        )
        return made.to_dict()

    def command(self, seed: int) -> str:
        """What a stranger types."""
        words = ["python -m study.retrofit finetune"]
        words += ["--network minilm --data DATA" if self.embeds else "--data DATA"]
        words += ["--also", *(folder.name.upper() for folder in self.also)] if self.also else []
        words += [f"--gains {self.gains} --steps {self.steps} --batch-size {self.batch_size}"]
        words += [f"--limit {self.limit}"] if self.limit is not None else []
        return " ".join([*words, f"--seeds {seed} --device {self.device.type} --out OUT"])

    def cost(self, parameters: int, scored_tokens: int) -> dict[str, float]:
        """Floating-point operations of one run, six per weight and trained token, two per scored.

        Windows overlap by half, so that each scored token is read twice.
        """
        trained = self.steps * self.batch_size * WINDOW
        return {
            "trained_tokens": trained,
            "scored_tokens": scored_tokens,
            "operations": 6.0 * parameters * trained + 2.0 * parameters * 2 * scored_tokens,
        }


def sizes(model: Any) -> dict[str, Any]:
    """The sizes of a Llama or a BERT, by the names that recipes have."""
    names = ["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"]
    names.append("intermediate_size")
    return {name: getattr(model.config, name) for name in names if hasattr(model.config, name)}


def batches(
    tokens: np.ndarray, steps: int, batch_size: int, seed: int, first: int = 0, length: int = WINDOW
) -> Iterator[Tensor]:
    """Windows (B, length + 1) of the training text, a function of seed and step alone."""
    for step in range(first, steps):
        places = np.random.default_rng([seed, step]).integers(len(tokens) - length, size=batch_size)
        rows = [tokens[place : place + length + 1].astype(np.int64) for place in places]
        yield torch.from_numpy(np.stack(rows))


@dataclass(frozen=True)
class Trained:
    seconds: float
    losses: list[float]
    """One for each step."""


def train(
    model: Any,
    tokens: np.ndarray,
    plan: Plan,
    *,
    gains: str | None,
    seed: int,
    folder: Path,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> Trained:
    """Train all weights, AdamW, a tenth of the steps warming up, then cosine; `gains` by a ramp.

    In place: the model is converted unless `gains` is None. A checkpoint in `folder` is gone on
    from, and one is left there at the end.
    """
    if gains is not None:
        pf.convert(model, gains, inplace=True)
    ramp = GainRamp(share=RAMP)
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), plan.learning_rate, weight_decay=0.01)
    warmup = max(1, plan.steps // 10)
    schedule = transformers.get_cosine_schedule_with_warmup(optimizer, warmup, plan.steps)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    path, losses, before = folder / CHECKPOINT, list[float](), 0.0
    if path.exists():
        held = torch.load(path, map_location=plan.device, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(held[name])
        losses, before = held["losses"], held["seconds"]
    begun = saved = time.perf_counter()

    def keep() -> None:
        spent = before + time.perf_counter() - begun
        states = {name: part.state_dict() for name, part in parts.items()}
        with atomic_path(path) as place:
            torch.save(states | {"losses": losses, "seconds": spent}, place)

    model.train()
    first = len(losses)
    for batch in batches(tokens, plan.steps, plan.batch_size, seed, first, plan.length):
        if gains is not None:
            ramp.apply(model, len(losses) / plan.steps)
        losses.append(_step(model, batch.to(plan.device), optimizer, schedule, plan.loss))
        if time.perf_counter() - saved > checkpoint_seconds:
            keep()
            saved = time.perf_counter()
    if len(losses) > first:
        keep()
    model.eval()
    if gains is not None:
        ramp.apply(model, 1.0)
    return Trained(before + time.perf_counter() - begun, losses)


def _step(
    model: Any,
    ids: Tensor,
    optimizer: Any,
    schedule: Any,
    loss_of: Callable[[Any, Tensor], Tensor],
) -> float:
    device = ids.device.type
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        loss = loss_of(model, ids)
    if not math.isfinite(value := float(loss.detach())):
        raise InputError("the loss is no number; choose smaller gains or more steps of warm-up")
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    return value


@dataclass(frozen=True, kw_only=True)
class NetworkSetup(LanguageSetup):
    """A text to show to a network of transformers; its records go to the folder `run`."""

    network: Pretrained
    facts: Mapping[str, Any]

    @cached_property
    def loaded(self) -> LanguageModel:
        return LanguageModel(self.network.model.eval(), self.network.tokenizer, WINDOW)

    @cached_property
    def ledger(self) -> Ledger:
        about = {
            "data": Path(self.data).name,
            "data_hash": self.corpus.fingerprint[:16],
            "split": self.split,
            "limit": self.limit,
            "precision": self.precision,
            "command": self.command,
        }
        return Ledger("language", self.run, {**self.facts, **about})


def measured(given: Pretrained, plan: Plan, folder: Path, gains: str | None) -> Iterator[Record]:
    """Perplexity of every text, strided by half a window: clean, and of the first with noise.

    Of a network that embeds sentences, how near they stay to themselves with noise.
    """
    law = None if gains is None else as_text(resolve_gains(gains, 1))
    facts = {"weights": fingerprint(given.model), "gains": law}
    if plan.embeds:
        yield from sentences.measured_sentences(given, plan, folder, facts, STRENGTHS)
        return
    for text in (plan.data, *plan.also):
        setup = NetworkSetup(
            run=folder,
            data=text,
            split="test",
            limit=plan.limit,
            precision="tf32" if plan.device.type == "cuda" else "fp32",
            device=plan.device,
            network=given,
            facts=facts,
        )
        yield setup.measure("strided")
        for strength in STRENGTHS if text == plan.data else ():
            yield setup.measure("strided", noise=Perturbation(kind="characters", strength=strength))


def publish(
    plan: Plan, seed: int, recipe: Mapping[str, Any], records: Sequence[Record],
    trained: Trained, details: Mapping[str, Any], path: Path,
) -> None:  # fmt: skip
    """One file of a study: the run, and what was measured of it."""
    first = first_line(
        path.parent.name,
        path.stem,
        recipe,
        recipe_hash(recipe),
        plan.command(seed),
        records,
        metrics={"train_seconds": trained.seconds, "parameters": float(details["parameters"])},
        details={"loss": details["loss"]},
    )
    lines = [first]
    for record in shrink(records):
        own = {k: v for k, v in record.settings.items() if k not in SHARED and v is not None}
        lines.append(replace(record, settings=own | {"command": plan.command(seed)}))
    write_whole(path, "".join(line.to_json() + "\n" for line in lines))


def curve(losses: Sequence[float], plan: Plan, tokens: int) -> list[list[float]]:
    """Means over parts of the training, by epochs of the text."""
    parts = [part for part in np.array_split(np.array(losses), CURVE) if len(part)]
    ends = np.cumsum([len(part) for part in parts]) * plan.batch_size * plan.length / tokens
    return [
        [round(float(x), 4), round(float(y.mean()), 5)] for x, y in zip(ends, parts, strict=True)
    ]


def finished(path: Path, plan: Plan, recipe: Mapping[str, Any]) -> bool:
    """Whether a run is published; refused if it is that of another plan."""
    if not path.exists():
        return False
    held = read_run(path)
    said = held.header.settings.get("command")
    if identity(held.recipe) != identity(recipe) or said != plan.command(held.seed):
        raise InputError(
            f"{path} was made otherwise, by {said}; choose another --out, or its options"
        )
    return True


def identity(recipe: Mapping[str, Any]) -> str:
    """16 hex digits of all that a recipe says."""
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]
