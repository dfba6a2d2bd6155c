"""Which gains to try: a grid, or what Optuna proposes; stable ones only."""

import importlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pidformer.control import PIDGains
from pidformer.control.stability import check_range, is_stable
from pidformer.errors import InputError
from pidformer.fields import number_range

Scores = dict[str, float]
MOST = 100_000
"""Points of a grid; more would be a slip of the pen."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """Levels of each gain. Only what is stable for kernel eigenvalues in [kappa_min, 1] counts.

    Plain attention (all gains zero) is always among them: what the others are compared with.
    """

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
        for level in itertools.product(self.p, self.i, self.d, self.beta):
            PIDGains(**dict(zip("pid", level[:3], strict=True)), beta=level[3])

    def allows(self, gains: PIDGains) -> bool:
        return gains.kind == "softmax" or is_stable(gains, self.kappa_min)

    def grid(self) -> list[PIDGains]:
        """Every stable combination, plain attention first, then by growing load."""
        every = [
            PIDGains(p=p, i=i, d=d, beta=beta)
            for p, i, d, beta in itertools.product(self.p, self.i, self.d, self.beta)
        ]
        stable = [gains for gains in every if gains.kind != "softmax" and self.allows(gains)]
        if not stable:
            raise InputError(
                f"none of the {len(every)} gains is stable for kappa >= {self.kappa_min:g}; "
                "2p + i + 4d must stay below 2 (1 + kappa_min), with p > 0"
            )
        return [PIDGains(), *sorted(stable, key=_load)]


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
    names: Sequence[str],
    directions: Sequence[str],
    known: Sequence[tuple[PIDGains, Scores]],
    seed: int,
) -> None:
    """Let Optuna propose `trials` gains inside the ranges of the space, after those `known`.

    Stability is a constraint of the search: what breaks it is never run.
    """
    try:
        optuna: Any = importlib.import_module("optuna")
    except ImportError:
        raise InputError(
            "--search optuna needs Optuna: pip install 'pidformer[search]'; --search grid does not"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    ranges = {name: (min(levels), max(levels)) for name, levels in _levels(space).items()}
    spread = {
        name: optuna.distributions.FloatDistribution(low, high)
        for name, (low, high) in ranges.items()
    }
    study = optuna.create_study(directions=list(directions))

    def note(gains: PIDGains, scores: Scores) -> None:
        if gains.kind == "softmax":
            return  # outside the ranges
        params = {n: min(max(getattr(gains, n), low), high) for n, (low, high) in ranges.items()}
        values = [scores[name] for name in names]
        study.add_trial(
            optuna.trial.create_trial(params=params, distributions=spread, values=values)
        )

    for gains, scores in known:
        note(gains, scores)
    done = len(known)
    if not done:
        score(PIDGains())
        done = 1
    while done < trials:
        # From what is known and its own number alone, so that a search that was stopped goes on
        # as if it had not been.
        number = (seed + 1000 * done) % 2**32
        study.sampler = optuna.samplers.TPESampler(seed=number, n_startup_trials=8)
        gains = _proposal(study, spread, space, optuna.trial.TrialState.FAIL)
        note(gains, score(gains))
        done += 1


def _proposal(study: Any, spread: Any, space: Space, failed: Any) -> PIDGains:
    """The first stable gains that the sampler comes up with; proposals are not trials yet."""
    for _ in range(200):
        trial = study.ask(spread)
        study.tell(trial, state=failed)
        gains = PIDGains(**{name: round(trial.params[name], 4) for name in spread})
        if gains.kind != "softmax" and space.allows(gains):
            return gains
    raise InputError("no stable gains were proposed in 200 tries; narrow --p, --i or --d")


def _levels(space: Space) -> dict[str, tuple[float, ...]]:
    return {"p": space.p, "i": space.i, "d": space.d, "beta": space.beta}


def _load(gains: PIDGains) -> tuple[float, ...]:
    """How near the edge of stability, then the gains themselves so that the order is fixed."""
    return (gains.p + gains.i / 2 + 2 * gains.d, gains.p, gains.i, gains.d, gains.beta)
