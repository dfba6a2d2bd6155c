"""Rehearse a plan before it is paid for: a few real steps of each kind of job, at its real size.

The findings are kept in OUT/rehearsal.json, from which later estimates of the plan start. The file
is written kind by kind, so an interrupted rehearsal resumes with the kinds it lacks.
"""

import gc
import hashlib
import json
import shutil
import time
import warnings
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pidformer import results
from pidformer.data import open_images
from pidformer.data.benchmarks import open_corrupted, open_shift
from pidformer.data.segmentation import open_segmentation
from pidformer.data.storage import fits_in_memory
from pidformer.data.text import open_corpus
from pidformer.devices import as_device, usable_cores
from pidformer.display import Display
from pidformer.errors import InputError, cut, is_out_of_memory
from pidformer.evaluation.setup import Setup
from pidformer.evaluation.suite import Row, UnderThreat
from pidformer.fields import typed
from pidformer.files import out_folder, write_whole
from pidformer.reproduce.job_kinds import WEIGHTS, JobSetting, do, setup_of, suite_of
from pidformer.reproduce.jobs import Job, Plan, duration
from pidformer.reproduce.made_up import PUBLISHED
from pidformer.runs.model import load_language
from pidformer.runs.open import open_subject
from pidformer.training import load_recipe
from pidformer.training import rehearse as training

FILE_NAME = "rehearsal.json"
PLACE = "rehearsing"
"""Folder in OUT for runs and made-up sets, until every kind was tried."""
PROBE = 8
"""Images that a row is tried on first."""
LONGEST = 20.0
"""Seconds that a row may take on a whole batch; a slower one is judged by its first images."""
FEW = {"language": 512, "segmentation": 2, "analysis": 72}
"""Tokens, scenes or images of the smallest measurement; the spectra of an analysis take 64."""
ENOUGH = 4.0
"""Seconds that the largest measurement takes, if the real one is not smaller."""


@dataclass(frozen=True, kw_only=True)
class Rehearsed:
    """A kind of job: what one of them would take, or why it would fail."""

    kind: str
    title: str
    count: int
    """Jobs of the kind in the plan."""
    seconds: float | None = None
    speed: str = ""
    loading: str = ""
    memory: int = 0
    disk: int = 0
    failure: str | None = None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """All kinds of a plan's jobs."""

    device: str
    is_made_up: bool
    plan: str
    """A hash of the jobs: a rehearsal of another plan is not resumed."""
    kinds: tuple[Rehearsed, ...] = ()
    longest: float = 0.0
    """Hours of the runs that follow upon each other: more devices do not make it shorter."""
    is_whole: bool = False

    @property
    def hours(self) -> float:
        """Hours on one device."""
        return sum((kind.seconds or 0.0) * kind.count for kind in self.kinds) / 3600

    @property
    def disk(self) -> int:
        return sum(kind.disk * kind.count for kind in self.kinds)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"hours": round(self.hours, 3), "disk": self.disk}


def like(job: Job) -> str:
    """The name of a job's kind: all seeds of a recipe cost the same."""
    about = job.arguments
    more = (about.get("suite"), about.get("domain"), about.get("curve"))
    words = (_name(about.get("run", "")).rpartition("-seed")[0], *more)
    return ".".join([job.kind, *(str(word) for word in words if word is not None)])


def _name(run: str | Path) -> str:
    return ".".join(Path(run).parts[-2:])


def rehearse(
    plan: Plan, setting: JobSetting, *, is_made_up: bool = False, is_shown: bool = True
) -> Rehearsal:
    """Try each kind of job; `is_made_up`: the plan's data are made-up files, not published ones."""
    kinds: dict[str, list[Job]] = {}
    for job in plan.jobs:
        if job.kind not in ("report", "publish"):
            kinds.setdefault(like(job), []).append(job)
    display = Display(is_shown=is_shown)
    place = out_folder(out_folder(plan.out) / PLACE)
    jobs = json.dumps([[job.to_dict() for job in plan.jobs], setting.overrides]).encode()
    fresh = Rehearsal(
        device=_device_name(setting.device),
        is_made_up=is_made_up,
        plan=hashlib.sha256(jobs).hexdigest()[:16],
    )
    done = _resumed(plan.out, fresh)
    tried = {found.kind: found for found in done.kinds}
    waiting = {jobs[0].arguments["run"] for kind, jobs in kinds.items() if kind not in tried}
    for number, (kind, (job, *others)) in enumerate(kinds.items(), 1):
        title = f"[{number}/{len(kinds)}] {job.title}"
        trial = _Trial(plan, job, setting, place, is_made_up)
        if kind in tried:
            display.say(f"{title}: tried before")
            if job.kind == "train" and job.arguments["run"] in waiting and not trial.is_trained:
                trial.train("train.compile=none")  # its folder is gone: any weights will do
            continue
        display.say(title)
        begun = time.monotonic()
        tried[kind] = found = _tried(trial, kind, 1 + len(others))
        gc.collect()
        torch.cuda.empty_cache()  # it would count as memory of the next kind
        how = found.failure or f"{duration(found.seconds)} {found.speed}"
        display.say(f"  {how} (tried for {time.monotonic() - begun:.0f} s)")
        done = replace(
            done,
            kinds=tuple(tried[kind] for kind in kinds if kind in tried),
            longest=round(_longest(plan, tried) / 3600, 3),
            is_whole=number == len(kinds),
        )
        write_whole(plan.out / FILE_NAME, json.dumps(done.to_dict(), indent=1))
    shutil.rmtree(place, ignore_errors=True)
    return done


def _longest(plan: Plan, tried: Mapping[str, Rehearsed]) -> float:
    """Seconds until the last job ends, with a device for each."""
    seconds = {kind: found.seconds or 0.0 for kind, found in tried.items()}
    ends: dict[str, float] = {}
    for job in plan.jobs:  # in order: what is needed comes first
        begins = max((ends.get(need, 0.0) for need in job.needs), default=0.0)
        ends[job.id] = begins + seconds.get(like(job), 0.0)
    return max(ends.values())


def read_rehearsal(path: Path) -> Rehearsal | None:
    """The file that `rehearse` writes, if it is there and undamaged."""
    try:
        held = json.loads(path.read_text())
        known = {field.name for field in fields(Rehearsal)}
        return typed(Rehearsal, {name: value for name, value in held.items() if name in known})
    except (OSError, ValueError, AttributeError):
        return None


def _resumed(out: Path, fresh: Rehearsal) -> Rehearsal:
    """The interrupted rehearsal of the same plan in OUT, without what failed; else `fresh`."""
    held = read_rehearsal(out / FILE_NAME)
    if held is None or held.is_whole:
        return fresh
    same = (held.device, held.is_made_up, held.plan) == (fresh.device, fresh.is_made_up, fresh.plan)
    kinds = tuple(kind for kind in held.kinds if kind.failure is None)
    return replace(fresh, kinds=kinds) if same else fresh


def with_rehearsal(plan: Plan) -> Plan:
    """The plan with the estimates of its rehearsal, if there was one."""
    if (held := read_rehearsal(plan.out / FILE_NAME)) is None:
        return plan
    seconds = {kind.kind: kind.seconds for kind in held.kinds if kind.seconds}
    jobs, past = (
        tuple(replace(job, seconds=seconds.get(like(job), job.seconds)) for job in given)
        for given in (plan.jobs, plan.past)
    )
    where = f"{held.device} (rehearsed{', made-up data' if held.is_made_up else ''})"
    return replace(plan, jobs=jobs, past=past, timed_on=where)


def _tried(trial: "_Trial", kind: str, count: int) -> Rehearsed:
    facts: dict[str, Any] = {"kind": kind, "title": trial.job.title, "count": count}
    try:
        with warnings.catch_warnings():  # a model that has hardly been trained
            warnings.filterwarnings("ignore", "clean accuracy .* is that of chance")
            return Rehearsed(**facts, **trial.measured())
    except Exception as error:
        if is_out_of_memory(error):
            return Rehearsed(**facts, failure="does not fit into memory; take a smaller batch")
        is_told = isinstance(error, InputError | OSError)
        line = str(error) if is_told else f"{type(error).__name__}: {error}"
        return Rehearsed(**facts, failure=cut(line, 300))  # as the job would, others go on


@dataclass
class _Trial:
    """One job, tried with runs in a folder that is thrown away."""

    plan: Plan
    job: Job
    setting: JobSetting
    place: Path
    is_made_up: bool

    @property
    def run(self) -> Path:
        """The folder of the job's rehearsed training."""
        return self.place / _name(self.job.arguments["run"])

    @property
    def is_trained(self) -> bool:
        return (self.run / WEIGHTS).exists()

    def measured(self) -> dict[str, Any]:
        if self.job.kind == "train":
            return self.train()
        if not self.is_trained:
            raise InputError("its training could not be rehearsed")
        if self.job.kind == "analyze":
            return {"seconds": self._analysis()}
        if self.job.arguments["task"] == "classification":
            return self._suite()
        return {"seconds": self._rows()}

    def train(self, *more_given: str) -> dict[str, Any]:
        about = self.job.arguments
        given = [*self.setting.overrides, *more_given, f"seed={about['seed']}"]
        for text in about.get("overrides", ()):
            name, _, value = text.partition("=")
            if name == "segmentation.backbone":  # of a run that was rehearsed too, perhaps before
                start = self.place / _name(value)
                text = f"{name}={start if (start / WEIGHTS).exists() else 'null'}"
            given.append(text)
        recipe = load_recipe(about["recipe"], given)
        more: dict[str, Any] = {}
        if self._is_replaced:
            real = PUBLISHED[recipe.data.name]
            per_step = recipe.data.batch_size * (recipe.text.length if recipe.text else 1)
            more = {"steps_per_epoch": real.train // per_step, "validated": real.val}
            more["is_streamed"] = True
        pace = training.rehearse_training(
            recipe, self.run, data=about["data"], device=self.setting.device, **more
        )
        unit = pace.unit[0]
        return {
            "seconds": pace.seconds,
            "speed": f"{pace.speed:,.0f} {unit}/s",
            "loading": f"{pace.loading_speed:,.0f} {unit}/s",
            "memory": pace.memory,
            "disk": pace.disk,
        }

    def _suite(self) -> dict[str, Any]:
        """The rows of a suite, each on a few images."""
        about, device = self.job.arguments, as_device(self.setting.device)
        begun, run = training.clock(), about["run"]
        whole = setup_of(self.job, open_subject(self.run), self.setting.device)
        images = len(whole.source)
        if self._is_replaced:
            images = min(PUBLISHED["imagenet"].val, about.get("limit") or PUBLISHED["imagenet"].val)
        batch = min(whole.at_once, len(whole.source))
        few, many = (replace(whole, limit=min(count, batch)) for count in (PROBE, batch))
        start = training.clock() - begun
        pixels = whole.source.channels * whole.image_size**2
        passes = 0 if fits_in_memory(images * pixels, device) else 1  # kept, or read for each row
        read = partial(many.batches, many.source, resident=not passes)
        load = training.timed(lambda: deque(read(), 0), device) / len(many.source)
        clean = _row_seconds(UnderThreat("clean", None), few, many)
        total, missing = start + images * load * (1 - passes), []
        known = {_cost(None): clean}
        own = [j for j in self.plan.jobs if (j.kind, j.arguments.get("run")) == ("evaluate", run)]
        there = {key for job in own[: own.index(self.job)] for key in _measured(job)}
        for key in _measured(self.job):
            row, *_ = key
            if not self._is_replaced and (reason := row.missing(whole)) is not None:
                missing.append(f"{row.name.split('/')[0]} ({reason})")
            elif key in there:  # no row is measured twice
                continue
            elif isinstance(row, UnderThreat):
                if (cost := _cost(row.threat)) not in known:
                    known[cost] = _row_seconds(row, few, many)
                total += images * (known[cost] + passes * load)
            else:  # of what is replaced, as if all published sets were there
                count = PUBLISHED[vars(row)["set"]].val if self._is_replaced else _size(row, whole)
                total += count * (clean + load)
        return {
            "seconds": total,
            "speed": f"{1 / clean:,.0f} images/s",
            "loading": f"{1 / load:,.0f} images/s",
            "missing": tuple(dict.fromkeys(missing)),
        }

    def _rows(self) -> float:
        """Scenes or text: by what more of them take."""
        about = self.job.arguments
        if about["task"] == "language":
            split = about["suite"] if about["suite"] in ("valid", "test") else "test"
            text = PUBLISHED["wikitext-103"]
            real = text.val if split == "valid" else text.test
            tokenizer = load_language(self.run).tokenizer
            there = len(open_corpus(about["data"], split, tokenizer).tokens)
        else:
            real, there = PUBLISHED["ade20k"].val, len(open_segmentation(about["data"], "val"))
        count = real if self._is_replaced else there
        return self._line(about["task"], min(count, about.get("limit") or count), there)[1]

    def _analysis(self) -> float:
        """Whole for a few images; of more, the spectra are no more."""
        about = self.job.arguments
        there = len(open_images(about["data"] or "digits", "val"))
        count = min(about["limit"], PUBLISHED["imagenet"].val if self._is_replaced else there)
        few, seconds = self._line("analysis", count, there, spectrum_limit=1)
        return self._seconds(min(FEW["analysis"], count)) + seconds - few

    def _line(self, what: str, count: int, there: int, **more: Any) -> tuple[float, float]:
        """Seconds for few inputs and for `count`, measured or on a line through those there are."""
        few, most = min(FEW[what], count, there), min(count, there)
        self._seconds(max(few - 1, 1), **more)  # what is done once in a process
        size, short = few, self._seconds(few, **more)
        long = short
        while size < most and (size == few or long < ENOUGH):
            size = min(3 * size, most)
            long = self._seconds(size, **more)
        each = (long - short) / (size - few) if long > short else long / size  # noise
        return short, long + each * (count - size)

    def _seconds(self, limit: int, **more: Any) -> float:
        """Seconds of the job on `limit` inputs, measured afresh."""
        (self.run / results.FILE_NAME).unlink(missing_ok=True)
        own = {"run": self.run, "limit": limit, "out": self.run / "looked"} | more
        job = replace(self.job, arguments={**self.job.arguments, **own})
        return training.timed(partial(do, job, self.setting), as_device(self.setting.device))

    @property
    def _is_replaced(self) -> bool:
        return self.is_made_up and self.job.arguments["data"] is not None


def _measured(job: Job) -> list[tuple[Row, Any, Any]]:
    """The rows of an evaluation, each with what makes it a measurement of its own."""
    about = job.arguments
    return [
        (row, about.get("limit"), about.get("domain") if isinstance(row, UnderThreat) else None)
        for row in suite_of(about).rows
    ]


def _cost(threat: Any) -> str:
    """What a threat's time depends on: not on its budget, unless that is nothing."""
    about = vars(threat) if threat is not None else {}
    sizes = {k: bool(v) if k in ("eps", "step_size") else v for k, v in about.items()}
    return f"{type(threat).__name__} {sizes}"


def _row_seconds(row: Row, few: Setup, many: Setup) -> float:
    """Seconds of an image."""

    def taken(setup: Setup) -> float:
        work = partial(row.measure, setup, lambda done: None)
        return training.timed(work, setup.device) / len(setup.source)

    first = taken(few)
    if first * len(few.source) < LONGEST / 10:  # else what is done once matters little
        first = taken(few)
    return first if first * len(many.source) > LONGEST else taken(many)


def _size(row: Row, setup: Setup) -> int:
    """Images of a shifted or corrupted set that is there."""
    fields = vars(row)
    if fields["set"] == "ood":
        return len(open_images(setup.location, "ood")) + len(setup.source)
    place = setup.place(fields["set"])
    if "corruption" in fields:
        return len(open_corrupted(place, fields["corruption"], fields["severity"]))
    return len(open_shift(place))


def _device_name(device: str) -> str:
    place, cores = as_device(device), f"{usable_cores()} CPU core(s)"
    return f"one {torch.cuda.get_device_name(place)}, {cores}" if place.type == "cuda" else cores
