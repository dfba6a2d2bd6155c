"""Start a plan: on this machine, on a cluster, or as a rehearsal."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pidformer.devices import as_device
from pidformer.errors import InputError
from pidformer.files import out_folder
from pidformer.reproduce.cluster import run_on_cluster
from pidformer.reproduce.job_kinds import JobSetting, check_recipes, check_texts
from pidformer.reproduce.jobs import Plan
from pidformer.reproduce.made_up import make_sets
from pidformer.reproduce.plan import make_plan
from pidformer.reproduce.rehearsal import PLACE, Rehearsal, rehearse, with_rehearsal
from pidformer.reproduce.run import Outcome, check_jobs, look, run_plan


def reproduce(
    out: str | Path = "reproduction",
    *,
    scale: str = "demo",
    data: str | Path | None = None,
    seeds: int | None = None,
    only: Sequence[str] = (),
    study: str | Path | None = None,
    minutes: float | None = None,
    jobs: int | None = 1,
    cluster: str | None = None,
    device: str = "auto",
    dry_run: bool = False,
    is_shown: bool = True,
) -> Outcome:
    """Train, evaluate, analyse and report what the paper's tables and figures need.

    Run again, even after a kill, it resumes. `jobs` starts that many processes
    here (None: see `check_jobs`); they are started afresh, so a script that asks for several needs
    the usual `if __name__ == "__main__":`. `cluster` is the address of a Ray cluster ("auto", or
    HOST:PORT) whose nodes share the disk of `out`: the jobs become its tasks. `dry_run` only shows
    the plan. With `minutes`, no run is begun that would not end in time by its estimate; what was
    begun is ended.
    """
    plan = make_plan(out, scale=scale, data=data, seeds=seeds, only=only, study=study)
    check_recipes(plan)
    plan = with_rehearsal(plan)
    if cluster is None:
        as_device(device)
    elif jobs not in (None, 1):
        raise InputError("--jobs is for one machine; a cluster runs what its nodes have room for")
    if plan.out.exists() and not plan.out.is_dir():
        raise InputError(f"{out} is a file; --out names a folder")
    if minutes is not None and not minutes > 0:  # NaN too
        raise InputError(f"minutes must be positive, got {minutes}")
    count = 1 if cluster is not None else check_jobs(jobs, plan, device)
    if count > 1 and as_device(device).type == "cuda":
        plan = replace(plan, at_once=count)
    if dry_run or not (plan.jobs or plan.blocked):  # the latter: all was made elsewhere
        return look(plan)
    if not plan.jobs:
        reasons = "; ".join(f"{b.part}: {b.state}, {b.reason}" for b in plan.blocked)
        raise InputError(f"nothing of this plan can be made here ({reasons})")
    check_texts(plan)
    setting = JobSetting(device=device)
    if cluster is not None:
        return run_on_cluster(plan, setting, cluster, is_shown=is_shown, minutes=minutes)
    return run_plan(plan, setting, jobs=count, is_shown=is_shown, minutes=minutes)


def rehearse_plan(
    out: str | Path = "reproduction",
    *,
    scale: str = "demo",
    data: str | Path | None = None,
    device: str = "auto",
    is_shown: bool = True,
    **chosen: Any,
) -> tuple[Rehearsal, Plan]:
    """A few real steps of every kind of job that `reproduce` would do, and the plan.

    The paper's sets, where no `data` are given, are made-up files of their layout and size.
    `chosen` are `seeds`, `only` and `study`.
    """
    as_device(device)
    out_folder(out)
    setting = JobSetting(device=device)
    if data is not None or scale != "paper" or chosen.get("study") is not None:
        plan = make_plan(out, scale=scale, data=data, **chosen)
        return rehearse(plan, setting, is_shown=is_shown), plan
    sets = Path(out) / PLACE / "sets"
    if not (sets / "made").exists():
        shutil.rmtree(sets, ignore_errors=True)
        make_sets(sets)
        (sets / "made").touch()
    plan = make_plan(out, scale=scale, data=sets, **chosen)
    return rehearse(plan, setting, is_made_up=True, is_shown=is_shown), plan
