"""The demonstration from start to end: train, measure, draw, write."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pidformer import results
from pidformer.demo.display import Display
from pidformer.demo.measure import MADE_BY, Job
from pidformer.demo.page import write_report
from pidformer.demo.summary import MODELS, SHOWN_BUDGET, ModelSummary, summarise
from pidformer.demo.words import verdicts
from pidformer.demo.workers import MOST, run_jobs, usable_cores
from pidformer.devices import as_device
from pidformer.errors import InputError
from pidformer.training import load_recipe


@dataclass(frozen=True, kw_only=True)
class Demo:
    """What was made and found."""

    out: Path
    report: Path
    seeds: int
    models: dict[str, ModelSummary]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The table, for machines."""
        return {
            "out": str(self.out),
            "report": str(self.report),
            "seeds": list(range(self.seeds)),
            "eps": SHOWN_BUDGET,
            "seconds": round(self.seconds, 1),
            "models": [model.to_dict() for model in self.models.values()],
            "verdicts": {name: said._asdict() for name, said in verdicts(self.models).items()},
        }


def demo(
    out: str | Path = "demo",
    *,
    seeds: int = 2,
    device: str = "cpu",
    workers: int | None = None,
    overrides: Sequence[str] = (),
    is_shown: bool = True,
) -> Demo:
    """Softmax and PID twins on the digits, with and without the residual around attention.

    Trains the four recipes digits/*.yaml with seeds 0 to `seeds` - 1 into OUT/runs, measures them,
    and writes OUT/results.jsonl, OUT/figures/*.png and OUT/report.html. Run again, it goes on where
    it stopped. `workers` processes share the jobs (one a core by default, at most four), started
    afresh: a script that calls this needs the usual `if __name__ == "__main__":`. `overrides` go to
    every recipe.
    """
    begun = time.perf_counter()
    out = Path(out)
    if seeds < 1:
        raise InputError(f"seeds must be at least 1, got {seeds}")
    device = str(as_device(device))
    jobs = _jobs(out, seeds, device, tuple(overrides))
    epochs = load_recipe(jobs[0].recipe, overrides).schedule.epochs
    if workers is None:
        workers = min(usable_cores(), len(jobs), MOST)
    _make_folders(out)
    records: list[results.Record] = []
    with Display(jobs, epochs, is_shown=is_shown) as display:
        display.say(
            f"Training {len(jobs)} small transformers on handwritten digits, {workers} at a time."
        )
        for ended in run_jobs(jobs, workers):
            display.look()
            if ended is not None:
                job, found = ended
                display.done(job, found[0].metrics["top1"])
                records += found
    foreign = [r for r in results.read(out) if r.settings.get("by") != MADE_BY]
    results.rewrite(out, foreign + records)
    models = summarise(records)
    report = write_report(out, models, records, seconds=time.perf_counter() - begun)
    seconds = time.perf_counter() - begun
    return Demo(out=out, report=report, seeds=seeds, models=models, seconds=seconds)


def _jobs(out: Path, seeds: int, device: str, overrides: tuple[str, ...]) -> list[Job]:
    return [
        Job(
            model=model,
            seed=seed,
            run=out / "runs" / f"{model}-seed{seed}",
            device=device,
            overrides=overrides,
        )
        for seed in range(seeds)
        for model in MODELS
    ]


def _make_folders(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; --out names a folder")
    try:
        for folder in ("runs", "figures"):
            (out / folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot write to {out} ({error.strerror}); choose another --out"
        ) from None
