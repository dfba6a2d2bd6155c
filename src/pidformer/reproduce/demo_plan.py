"""The demonstration as a plan: softmax and PID on the digits, with and without the residual."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pidformer.devices import as_device
from pidformer.display import Display
from pidformer.errors import InputError
from pidformer.files import out_folder
from pidformer.report.demo.models import ATTACKED, MODELS
from pidformer.report.write import DATA_FILE
from pidformer.reproduce.job_kinds import JobSetting, check_recipes
from pidformer.reproduce.jobs import Plan
from pidformer.reproduce.plan import (
    TIMED_ON,
    Evaluation,
    PlanPart,
    check_seeds,
    plan_jobs,
    report_job,
)
from pidformer.reproduce.run import check_jobs, run_plan

PART = PlanPart(
    recipes=tuple(f"digits/{model}.yaml" for model in MODELS),
    train_seconds=11.0,
    evaluations=(Evaluation("clean", 1.0), Evaluation("demo", 5.0, limit=ATTACKED)),
    analyze_limit=1000,
    analyze_seconds=3.0,
    draw=False,
)


@dataclass(frozen=True, kw_only=True)
class Demo:
    out: Path
    seconds: float
    found: Mapping[str, Any]
    """Seeds, budget, models and verdicts, as in OUT/report.json."""

    @property
    def report(self) -> Path:
        return self.out / "report.html"

    def to_dict(self) -> dict[str, Any]:
        about = {"out": str(self.out), "report": str(self.report)}
        return about | dict(self.found) | {"seconds": round(self.seconds, 1)}


def demo_plan(out: str | Path, *, seeds: int = 2) -> Plan:
    """The four models with seeds 0 to `seeds` - 1: trained, attacked, analysed; then the page.

    The runs are where `make_plan` has them at the scale "demo", which can go on from here.
    """
    check_seeds(seeds)
    out = Path(out)
    jobs = plan_jobs(out, [(PART, None)], seeds)
    folders = tuple(job.arguments["run"] for job in jobs if job.kind == "train")
    page = report_job("report.demo", jobs, folders=folders, out=out, page="demo")
    return Plan(out=out, jobs=(*jobs, page), timed_on=TIMED_ON["demo"])


def demo(
    out: str | Path = "demo",
    *,
    seeds: int = 2,
    device: str = "cpu",
    jobs: int | None = None,
    overrides: Sequence[str] = (),
    is_shown: bool = True,
) -> Demo:
    """Softmax and PID twins on the digits, with and without the residual around attention.

    Works through `demo_plan` and writes OUT/figures/*.png and OUT/report.html. Run again, it goes
    on where it stopped. `jobs` processes share the work (by default one per core), started
    afresh: a script that calls this needs the usual `if __name__ == "__main__":`. `overrides` go
    to every recipe.
    """
    begun = time.perf_counter()
    plan = demo_plan(out, seeds=seeds)
    count = check_jobs(jobs, plan, str(as_device(device)))
    out_folder(out)
    check_recipes(plan, overrides)
    if is_shown:
        what = f"{seeds * len(MODELS)} small transformers on handwritten digits"
        line = f"Training {what}, {count} at a time."
        Display().say(line)
    setting = JobSetting(device=device, overrides=tuple(overrides))
    outcome = run_plan(plan, setting, jobs=count, is_shown=is_shown)
    if outcome.failed:
        job, reason = next(iter(outcome.failed.items()))
        raise InputError(f"{job} failed: {reason}")
    found = json.loads((plan.out / DATA_FILE).read_text())
    del found["inputs"]
    return Demo(out=plan.out, seconds=time.perf_counter() - begun, found=found)
