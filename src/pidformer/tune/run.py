"""Trying gains on a frozen model, stable ones only: a grid, or what Optuna proposes. Every trial is
a record, so a stopped search can be resumed."""

import importlib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import nn

from pidformer.control import PIDGains
from pidformer.control.stability import check_range, is_stable
from pidformer.convert import convert
from pidformer.devices import as_device
from pidformer.errors import InputError, check_known
from pidformer.evaluation.setup import Setup, data_location
from pidformer.fields import number_range
from pidformer.files import model_folder, named_data
from pidformer.ledger import Found, Ledger
from pidformer.models import PixelModel
from pidformer.nn import LearnedGains, controlled_attention
from pidformer.report.metrics import compare_accuracy, compare_loss
from pidformer.results import Measurement, Record, as_text
from pidformer.robustness import PGD, Noise, evaluate
from pidformer.runs.model import HUB
from pidformer.runs.open import open_subject, task_of
from pidformer.statistics import Crossed

Scores = dict[str, float]
Goals = Mapping[str, Literal["maximize", "minimize"]]
"""Scores that a search looks at, as Optuna says it."""
MOST = 100_000
"""Points of a grid; more would be a typing error."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """Levels of each gain: those stable on [kappa_min, 1] are tried, and plain attention."""

    p: tuple[float, ...] = (0.1, 0.2, 0.4, 0.6, 0.8)
    i: tuple[float, ...] = (0.0, 0.1, 0.3)
    d: tuple[float, ...] = (0.0, 0.05)
    beta: tuple[float, ...] = (1.0,)
    kappa_min: float = 0.0

    def __post_init__(self) -> None:
        check_range(self.kappa_min)
        count = len(self.p) * len(self.i) * len(self.d) * len(self.beta)
        if count > MOST:
            raise InputError(f"at most {MOST} gains can be tried, the levels make {count} or more")
        self._every()  # refuses what no controller has

    def allows(self, gains: PIDGains) -> bool:
        return gains.kind == "softmax" or is_stable(gains, self.kappa_min)

    def grid(self) -> list[PIDGains]:
        """Every stable combination, plain attention first, then by growing load."""
        every = self._every()
        stable = [gains for gains in every if gains.kind != "softmax" and self.allows(gains)]
        if not stable:
            raise InputError(
                f"none of the {len(every)} gains is stable for kappa >= {self.kappa_min:g}; "
                "2p + i + 4d must stay below 2 (1 + kappa_min), with p > 0"
            )
        return [PIDGains(), *sorted(stable, key=_load)]

    def _every(self) -> list[PIDGains]:
        levels = itertools.product(self.p, self.i, self.d, self.beta)
        return [PIDGains(p=p, i=i, d=d, beta=beta) for p, i, d, beta in levels]


def read_levels(text: str, name: str) -> tuple[float, ...]:
    """ "0:0.8:0.2" is 0, 0.2, ... 0.8; "0,0.1,0.3" a list.

    >>> read_levels("0:0.4:0.2", "p")
    (0.0, 0.2, 0.4)
    """
    found = number_range(text, MOST)
    if not found:
        raise InputError(f"--{name} must be FIRST:LAST:STEP or a list, as 0:0.8:0.2, got {text!r}")
    return tuple(found)


def search_grid(space: Space, trials: int | None, score: Callable[[PIDGains], Scores]) -> None:
    """Score every point of the grid, or the first `trials` of them."""
    for gains in space.grid()[:trials]:
        score(gains)


def search_optuna(
    space: Space,
    trials: int,
    score: Callable[[PIDGains], Scores],
    *,
    goals: Goals,
    known: Sequence[tuple[PIDGains, Scores]],
    seed: int,
) -> None:
    """Let Optuna propose `trials` stable gains in the ranges of the space, after those `known`."""
    try:
        optuna: Any = importlib.import_module("optuna")
    except ImportError:
        raise InputError(
            "--search optuna needs Optuna: pip install 'pidformer[search]'; --search grid does not"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    levels = {"p": space.p, "i": space.i, "d": space.d, "beta": space.beta}
    spread = {
        name: optuna.distributions.FloatDistribution(min(own), max(own))
        for name, own in levels.items()
    }
    study = optuna.create_study(directions=list(goals.values()))

    def note(gains: PIDGains, scores: Scores) -> None:
        if gains.kind == "softmax":
            return  # outside the ranges
        params = {n: min(max(getattr(gains, n), own.low), own.high) for n, own in spread.items()}
        values = [scores[name] for name in goals]
        study.add_trial(
            optuna.trial.create_trial(params=params, distributions=spread, values=values)
        )

    def proposal() -> PIDGains:
        """The first stable gains that the sampler comes up with; proposals are not trials yet."""
        for _ in range(200):
            trial = study.ask(spread)
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            gains = PIDGains(**{name: round(trial.params[name], 4) for name in spread})
            if gains.kind != "softmax" and space.allows(gains):
                return gains
        raise InputError("no stable gains were proposed in 200 tries; narrow --p, --i or --d")

    for gains, scores in known:
        note(gains, scores)
    if not known:
        score(PIDGains())
    for done in range(max(1, len(known)), trials):
        # From what is known and its own number alone, so that a search that was stopped goes on
        # as if it had not been.
        number = (seed + 1000 * done) % 2**32
        study.sampler = optuna.samplers.TPESampler(seed=number, n_startup_trials=8)
        gains = proposal()
        note(gains, score(gains))


def _load(gains: PIDGains) -> tuple[float, ...]:
    """How near the edge of stability, then the gains themselves so that the order is fixed."""
    return (gains.p + gains.i / 2 + 2 * gains.d, gains.p, gains.i, gains.d, gains.beta)


Metric = Literal["clean", "pgd", "noise", "ppl"]
Search = Literal["grid", "optuna"]
THREATS = {"pgd": PGD(step_size=0.15 / 255), "noise": Noise()}


class Tuned(NamedTuple):
    """What a search found; every trial is in `trials`, plain attention among them."""

    trials: tuple[Record, ...]
    best: Record
    """Best by the metric; ties go to the better clean score."""
    front: tuple[Record, ...]
    """Trials that no other beats in both the clean score and the metric, by clean score."""

    def difference(self, record: Record) -> Crossed | None:
        """Minus plain attention, in points or nats per token; None where no interval is known."""
        pair, is_text = [self.trials[0], record], record.settings["metric"] == "ppl"
        if not all({"right", "block_nll"} & trial.details.keys() for trial in pair):
            return None
        found = (compare_loss if is_text else compare_accuracy)([pair])
        return None if math.isnan(found.low) else found

    @property
    def verdict(self) -> str:
        """Whether the best gains clearly differ from plain attention."""
        found = self.difference(self.best)
        if self.best is self.trials[0]:
            return "no gains beat plain attention"
        if found is None or found.verdict == 0:
            reason = "no interval is known" if found is None else "zero lies in their interval"
            return f"the best gains are not told from plain attention: {reason}"
        return "the best gains beat plain attention on the data that they were chosen on"

    def to_dict(self) -> dict[str, Any]:
        def line(record: Record) -> dict[str, Any]:
            minus = {"minus_plain": (found := self.difference(record)) and found[:3]}
            return {"gains": record.settings["gains"]} | dict(record.metrics) | minus

        return {
            "verdict": self.verdict,
            "best": line(self.best),
            "plain": line(self.trials[0]),
            "front": [line(record) for record in self.front],
            "trials": [line(record) for record in self.trials],
        }


def tune(
    run: str | Path,
    *,
    data: str | Path | None = None,
    out: str | Path | None = None,
    metric: Metric | None = None,
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

    `run` is what `open_subject` or `load_text` take. `metric` is what is sought: "clean" accuracy
    (images, the default), accuracy under "pgd" or "noise" (the paper's), or "ppl" (text). Trials
    are "tune" records of the run, or in a folder in `out`; one that is there is not run again.
    `watch(record, was_there)` sees each. `split` is one that the data have. Choose gains on
    one half of the data and report on the other: the best of many looks better than it is.
    """
    check_known("search", search, get_args(Search))
    if trials is not None and trials < 1:
        raise InputError(f"trials must be at least 1, got {trials}")
    space, folder = space or Space(), trials_folder(run, out, data)
    is_text = task_of(run) == "language"
    metric = metric or ("ppl" if is_text else "clean")
    check_known("metric", metric, get_args(Metric))
    if is_text != (metric == "ppl"):
        known = "metric is ppl" if is_text else "metrics are clean, pgd and noise"
        raise InputError(f"{run} is for {'text' if is_text else 'images'}; its {known}")
    place = as_device(device)
    if is_text:
        score, facts = _language(Path(run), data, split, limit, place)
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
    facts |= {"metric": metric, "seed": seed, "limit": limit, "command": command}
    trying = _Trying(Ledger("tune", folder, facts), score, watch)
    goals: Goals = {"ppl": "minimize"} if is_text else {"clean": "maximize", metric: "maximize"}
    if search == "grid":
        search_grid(space, trials, trying.measure)
    else:
        there = trying.known(space)
        search_optuna(space, trials or 32, trying.measure, goals=goals, known=there, seed=seed)
    return _found(list(trying.used.values()), goals)


def trials_folder(run: str | Path, out: str | Path | None, data: Any) -> Path:
    """Where the trials go: the run folder, or one in `out`; never what others saved."""
    if Path(run).exists() or ":" not in str(run):
        return Path(run)
    named_data(data, f"{run} needs data")
    if out is None:
        raise InputError(f"{run} is no run folder; say where its trials go with --out DIR")
    if Path(out).resolve().is_relative_to(Path(str(run).removeprefix(HUB)).resolve()):
        raise InputError(f"{out} is in {run}, which stays as it is; name another --out")
    return model_folder(out, str(run))


@dataclass
class _Trying:
    """The trials of one search: those that the ledger has, and those that are added."""

    ledger: Ledger
    score: Callable[[PIDGains], Found]
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
        found = self.ledger.finished(about)
        record = found or self.ledger.add(about, lambda: self.score(gains))
        self.watch(record, found is not None)
        self.used[gains] = record
        return dict(record.metrics)


def put_gains(model: nn.Module, gains: PIDGains) -> None:
    """The same gains in every layer of a model that is in use."""
    attention = controlled_attention(model)
    if any(isinstance(module.gains, LearnedGains) for module in attention):
        raise InputError("the run has learned its gains; there is nothing to tune")
    if not attention:
        convert(model.model if isinstance(model, PixelModel) else model, gains, inplace=True)
    for module in attention:
        module.gains = gains


def _images(setup: Setup, metric: Metric) -> tuple[Callable[[PIDGains], Found], dict[str, Any]]:
    threat = THREATS.get(metric)
    rows: Mapping[str, Any] = {"clean": None} | ({metric: threat} if threat else {})

    def score(gains: PIDGains) -> Found:
        put_gains(setup.model, gains)
        found = evaluate(setup.model, setup.clean, rows, seed=setup.seed)
        scores = {row: record.metrics["top1"] for row, record in found.items()}
        scores["images"] = found["clean"].metrics["images"]
        return scores, {"gains": gains.to_dict(), "right": found[metric].details["right"]}

    about = {"data": str(setup.location), "data_hash": setup.data_hash, "split": setup.split}
    about |= {"model": setup.subject.name, "label": setup.subject.label}
    return score, about | {"weights": setup.subject.facts["weights"], "threat": as_text(threat)}


def _language(
    run: Path, data: Any, split: str, limit: int | None, place: torch.device
) -> tuple[Callable[[PIDGains], Found], dict[str, Any]]:
    from pidformer.evaluation.language import LanguageSetup  # needs the extra `lm`

    data = named_data(data, f"{run} needs text")
    setup = LanguageSetup(run=run, data=data, split=split, limit=limit, device=place, block=None)
    model, _, length = setup.loaded
    names = ("model", "label", "weights", "data", "data_hash", "split")

    def score(gains: PIDGains) -> Found:
        put_gains(model, gains)
        found, details = setup.scores("segments", length, length)
        scores = {name: found[name] for name in ("ppl", "tokens")}
        return scores, {"gains": gains.to_dict(), **details}

    return score, {name: setup.ledger.settings[name] for name in names} | {"threat": None}


def _found(trials: list[Record], goals: Goals) -> Tuned:
    plain = next((r for r in trials if r.details["gains"]["p"] == 0), trials[0])
    trials = [plain, *(r for r in trials if r is not plain)]

    def values(record: Record) -> list[float]:
        """The larger, the better."""
        scores = record.metrics
        return [scores[n] if aim == "maximize" else -scores[n] for n, aim in goals.items()]

    def is_beaten(record: Record) -> bool:
        mine = values(record)
        return any(
            all(a >= b for a, b in zip(values(other), mine, strict=True)) and values(other) != mine
            for other in trials
        )

    front = sorted((r for r in trials if not is_beaten(r)), key=values, reverse=True)
    best = max(trials, key=lambda record: values(record)[::-1])
    return Tuned(tuple(trials), best, tuple(front))
