"""Trying gains on a frozen model: every trial is a record, and a stopped search goes on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import nn

from pidformer.control import PIDGains
from pidformer.convert import convert
from pidformer.devices import as_device
from pidformer.errors import InputError, unknown
from pidformer.evaluation.setup import Setup, data_location
from pidformer.ledger import Ledger
from pidformer.models import PixelModel
from pidformer.nn import LearnedGains, controlled_attention
from pidformer.results import Measurement, Record, as_text
from pidformer.robustness import PGD, Noise, evaluate
from pidformer.runs.folder import read_recipe
from pidformer.runs.open import open_subject
from pidformer.tune.search import Scores, Space, search_grid, search_optuna

Metric = Literal["clean", "pgd", "noise", "ppl"]
Search = Literal["grid", "optuna"]
THREATS = {"pgd": PGD(step_size=0.15 / 255), "noise": Noise()}


class Tuned(NamedTuple):
    """What a search found; every trial is in `trials`, plain attention among them."""

    trials: tuple[Record, ...]
    best: Record
    """By the metric; of equals the one with the better clean score."""
    front: tuple[Record, ...]
    """Trials that no other beats in both the clean score and the metric, by clean score."""

    def to_dict(self) -> dict[str, Any]:
        def line(record: Record) -> dict[str, Any]:
            return {"gains": record.settings["gains"]} | dict(record.metrics)

        return {
            "best": line(self.best),
            "plain": line(self.trials[0]),
            "front": [line(record) for record in self.front],
            "trials": [line(record) for record in self.trials],
        }


def tune(
    run: str | Path,
    *,
    data: str | Path | None = None,
    metric: Metric = "clean",
    space: Space | None = None,
    search: Search = "grid",
    trials: int | None = None,
    split: str = "valid",
    limit: int | None = None,
    batch_size: int = 128,
    seed: int = 0,
    device: str = "auto",
    command: str | None = None,
    watch: Callable[[Record, bool], None] = lambda record, is_old: None,
) -> Tuned:
    """Sweep the gains of a frozen model over validation data; its weights do not change.

    `metric` is what is sought: "clean" accuracy, accuracy under "pgd" or "noise" (the paper's), or
    "ppl" of a language model. Trials are recorded in the run's results as "tune"; one that is
    there is not run again. `watch(record, was_there)` is told of each. `split` is one that the data
    have; "valid" is the validation data of texts and images alike. Choose gains on one half of the
    data and report on the other: the best of many is better than it looks.
    """
    run, space = Path(run), space or Space()
    _check(metric, search, trials)
    is_language = read_recipe(run).get("task") == "language"
    if is_language != (metric == "ppl"):
        raise InputError(
            f"run {run} is for {read_recipe(run).get('task')}; "
            + ("its metric is ppl" if is_language else "its metrics are clean, pgd and noise")
        )
    place = as_device(device)
    if is_language:
        score, facts = _language(run, data, split, limit, place)
    else:
        subject = open_subject(run)
        setup = Setup(
            subject=subject,
            location=data_location(subject, data),
            device=place,
            split="val" if split == "valid" else split,  # as image sets call it
            seed=seed,
            limit=limit,
            batch_size=batch_size,
        )
        score, facts = _images(setup, metric)
    facts |= {"model": str(run), "label": run.resolve().name, "metric": metric, "seed": seed}
    facts |= {"limit": limit, "command": command}
    trying = _Trying(Ledger("tune", run, facts), score, watch)
    names, directions = _objectives(metric)
    if search == "grid":
        search_grid(space, trials, trying.measure)
    else:
        known = trying.known(space)
        search_optuna(
            space,
            trials or 32,
            trying.measure,
            names=names,
            directions=directions,
            known=known,
            seed=seed,
        )
    return _found(list(trying.used.values()), names, directions)


@dataclass
class _Trying:
    """The trials of one search: those that the ledger has, and those that are added."""

    ledger: Ledger
    score: Callable[[PIDGains], Scores]
    watch: Callable[[Record, bool], None]
    used: dict[PIDGains, Record] = field(default_factory=dict)

    def known(self, space: Space) -> list[tuple[PIDGains, Scores]]:
        """The trials that are there and allowed, all of which count as used."""
        asked = Measurement.of(self.ledger.kind, self.ledger.settings)
        for measurement, record in self.ledger.found.items():
            gains = PIDGains.from_dict(record.details["gains"])
            if measurement == replace(asked, gains=measurement.gains) and space.allows(gains):
                self.used[gains] = record
                self.watch(record, True)
        return [(gains, dict(record.metrics)) for gains, record in self.used.items()]

    def measure(self, gains: PIDGains) -> Scores:
        about = {"gains": str(gains)}
        record = self.ledger.finished(about)
        is_old = record is not None
        if record is None:
            record = self.ledger.write(about, self.score(gains), {"gains": gains.to_dict()})
        self.watch(record, is_old)
        self.used[gains] = record
        return dict(record.metrics)


def put_gains(model: nn.Module, gains: PIDGains) -> None:
    """The same gains in every layer of a model that is in use."""
    attention = controlled_attention(model)
    if any(isinstance(module.gains, LearnedGains) for module in attention):
        raise InputError("the run has learned its gains; there is nothing to tune")
    if not attention:
        inner = model.model if isinstance(model, PixelModel) else model
        convert(inner, gains, inplace=True)
    for module in attention:
        module.gains = gains


def _images(setup: Setup, metric: Metric) -> tuple[Callable[[PIDGains], Scores], dict[str, Any]]:
    threat = THREATS.get(metric)
    rows: Mapping[str, Any] = {"clean": None} | ({metric: threat} if threat else {})

    def score(gains: PIDGains) -> Scores:
        put_gains(setup.model, gains)
        found = evaluate(setup.model, setup.clean, rows, seed=setup.seed)
        return {row: record.metrics["top1"] for row, record in found.items()} | {
            "images": found["clean"].metrics["images"],
            "seconds": sum(record.metrics["seconds"] for record in found.values()),
        }

    about = {"data": str(setup.location), "data_hash": setup.data_hash, "split": setup.split}
    return score, about | {"weights": setup.subject.facts["weights"], "threat": as_text(threat)}


def _language(
    run: Path, data: Any, split: str, limit: int | None, place: torch.device
) -> tuple[Callable[[PIDGains], Scores], dict[str, Any]]:
    from pidformer.evaluation.language import LanguageSetup  # needs the extra `lm`

    if data is None:
        raise InputError(f"{run} needs text: say where with --data DIR")
    setup = LanguageSetup(run=run, data=data, split=split, limit=limit, device=place)
    facts = {name: setup.ledger.settings[name] for name in ("data", "data_hash", "split")}

    def score(gains: PIDGains) -> Scores:
        put_gains(setup.loaded.model, gains)
        found, _ = setup.scores("segments", setup.loaded.length, setup.loaded.length)
        return {name: found[name] for name in ("ppl", "tokens")}

    return score, facts | {"weights": setup.ledger.settings["weights"], "threat": None}


def _objectives(metric: Metric) -> tuple[list[str], list[str]]:
    if metric == "ppl":
        return ["ppl"], ["minimize"]
    if metric == "clean":
        return ["clean"], ["maximize"]
    return ["clean", metric], ["maximize", "maximize"]


def _found(trials: list[Record], names: list[str], directions: list[str]) -> Tuned:
    plain = next((r for r in trials if r.details["gains"]["p"] == 0), trials[0])
    trials = [plain, *(r for r in trials if r is not plain)]
    signs = [1 if direction == "maximize" else -1 for direction in directions]

    def values(record: Record) -> list[float]:
        return [sign * record.metrics[name] for sign, name in zip(signs, names, strict=True)]

    def is_beaten(record: Record) -> bool:
        mine = values(record)
        return any(
            all(a >= b for a, b in zip(values(other), mine, strict=True)) and values(other) != mine
            for other in trials
        )

    front = sorted((r for r in trials if not is_beaten(r)), key=values, reverse=True)
    best = max(trials, key=lambda record: values(record)[::-1])
    return Tuned(tuple(trials), best, tuple(front))


def _check(metric: str, search: str, trials: int | None) -> None:
    if metric not in get_args(Metric):
        raise unknown("metric", metric, get_args(Metric))
    if search not in get_args(Search):
        raise unknown("search", search, get_args(Search))
    if trials is not None and trials < 1:
        raise InputError(f"trials must be at least 1, got {trials}")
