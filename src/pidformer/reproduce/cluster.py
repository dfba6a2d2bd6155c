"""The jobs of a plan as tasks of a Ray cluster, whose nodes share the disk of `--out`.

Ray chooses the node, and reruns a lost node's task elsewhere, which resumes from the run folder.
"""

import os
import socket
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pidformer.errors import InputError, cut
from pidformer.interrupts import Interrupted, Stopping
from pidformer.reproduce.display import PlanDisplay
from pidformer.reproduce.job_kinds import JobSetting
from pidformer.reproduce.jobs import Job, Plan
from pidformer.reproduce.run import (
    Outcome,
    Tried,
    attempt,
    look,
    make_folders,
    note,
    ready_jobs,
)

TICK = 1.0
LOSSES = 10
"""Nodes or processes that a job may lose before it has failed."""
MEMORY = 2**30
"""Bytes that are kept free for a job; of the node, not of its GPU."""
_SAVING = 60.0
"""Seconds that interrupted jobs have to save."""


def run_on_cluster(
    plan: Plan,
    setting: JobSetting,
    address: str,
    *,
    is_shown: bool = True,
    minutes: float | None = None,
) -> Outcome:
    """Work on the plan on the cluster at `address` ("auto" or HOST:PORT) until it is done."""
    begun = time.monotonic()
    ray = _connected(address)
    try:
        setting = replace(setting, device=_device(ray, setting.device))
        make_folders(plan)
        return _work(ray, plan, setting, begun, is_shown=is_shown, minutes=minutes)
    finally:
        ray.shutdown()


def _work(
    ray: Any,
    plan: Plan,
    setting: JobSetting,
    begun: float,
    *,
    is_shown: bool,
    minutes: float | None,
) -> Outcome:
    task = ray.remote(_task)
    done: set[str] = set()
    broken: dict[str, str] = {}
    running: dict[Any, Job] = {}
    # entered only now: the handler of SIGTERM that Ray brings, in C++, aborts before jobs can save
    with Stopping() as stopping, PlanDisplay(plan, is_shown=is_shown) as display:
        try:
            while stopping.number is None:
                found = look(plan, done, broken)
                display.update(found.lines)
                begun_ids = {job.id for job in running.values()}
                for job in ready_jobs(found, done, minutes, begun):
                    if job.id not in begun_ids:
                        asked = task.options(name=job.id, max_retries=LOSSES, **needs(job, setting))
                        running[asked.remote(os.getcwd(), plan, job, setting)] = job
                if not running:
                    return found
                ended, _ = ray.wait(list(running), num_returns=1, timeout=TICK)
                for reference in ended:
                    job = running.pop(reference)
                    if (tried := _answer(ray, reference, job)) is None:
                        time.sleep(TICK)  # a node that was given up may still hold it
                    else:
                        note(tried, done, broken, display)
            raise Interrupted(stopping.number)
        finally:
            for reference in running:
                ray.cancel(reference)  # training saves
            ray.wait(list(running), num_returns=len(running), timeout=_SAVING)


def needs(job: Job, setting: JobSetting) -> dict[str, float]:
    """What a node must have free for a job."""
    is_report = job.kind in ("report", "publish")
    gpus = 0 if is_report or setting.device == "cpu" else 1
    return {"num_cpus": 1, "num_gpus": gpus, "memory": MEMORY}


def _task(folder: str, plan: Plan, job: Job, setting: JobSetting) -> Tried | None:
    """On a node: the job, in the folder that the command was started in."""
    with suppress(OSError):
        os.chdir(folder)
    if not (plan.out / "claims").is_dir():
        where = f"{socket.gethostname()} does not see {Path(folder) / plan.out}"
        return Tried(job, 0.0, f"{where}; choose an --out on a disk that all nodes share")
    return attempt(plan, job, setting)


def _answer(ray: Any, reference: Any, job: Job) -> Tried | None:
    try:
        found: Tried | None = ray.get(reference)
    except ray.exceptions.RayError as error:  # lost too often, or killed for its memory
        lines = str(error).strip().splitlines() or [""]
        return Tried(job, 0.0, cut(f"{type(error).__name__}: {lines[0]}", 200))
    return found


def _connected(address: str) -> Any:
    """Ray, connected to the cluster; what is wrong with that is one line."""
    try:
        import ray
    except ImportError:
        raise InputError(
            "--cluster needs Ray: pip install 'pidformer[cluster]'; --jobs does not"
        ) from None
    _check_address(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        ray.shutdown()
        line = cut(" ".join(str(error).split()), 160)
        hint = "start one with `ray start --head`, or give HOST:PORT"
        if "ersion mismatch" in line:
            hint = "all nodes and this command need the same Ray and Python"
        raise InputError(f"no Ray cluster at {address} can be used ({line}); {hint}") from None
    return ray


def _check_address(address: str) -> None:
    """Refuse an address where nothing listens, before Ray retries for minutes."""
    if address == "auto":
        folder = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
        noted = Path(folder, "ray", "ray_current_cluster")
        if os.environ.get("RAY_ADDRESS") or not noted.is_file():
            return
        address = noted.read_text().strip()  # of a head that may have died
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(
            f"--cluster takes auto, or HOST:PORT of a Ray cluster's head (6379 by default), got "
            f"{address!r}"
        )
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise InputError(
            f"no Ray cluster at {address} ({error.strerror or error}); start one with `ray start "
            "--head`, and give its HOST:PORT or auto"
        ) from None


def _device(ray: Any, device: str) -> str:
    """What the jobs run on: GPUs where the cluster has any."""
    kinds = ("auto", "cpu", "cuda")
    if device not in kinds:
        raise InputError(f"on a cluster, device must be {', '.join(kinds)}; got {device!r}")
    nodes: list[Mapping[str, Any]] = [node for node in ray.nodes() if node["Alive"]]
    gpus = sum(node["Resources"].get("GPU", 0) for node in nodes)
    if device == "cuda" and not gpus:
        raise InputError(f"none of the cluster's {len(nodes)} node(s) has a GPU; use --device cpu")
    if not any(node["Resources"].get("CPU", 0) >= 1 for node in nodes):
        raise InputError("none of the cluster's nodes has a free core; start some with `ray start`")
    return "cuda" if gpus and device != "cpu" else "cpu"
