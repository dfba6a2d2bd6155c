import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest
import torch

from pidformer import results
from pidformer.errors import InputError
from pidformer.reproduce import Job, Plan, job_kinds, jobs, run_plan
from pidformer.reproduce import run as run_module
from pidformer.reproduce.claims import claimed
from pidformer.reproduce.job_kinds import JobSetting, is_done
from pidformer.reproduce.run import look, make_folders
from pidformer.runs.folder import load_weights, save_weights
from tests.processes import Process, ends_well, warm
from tests.reproduce.tiny import records_of, tiny_plan

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("undrawn")]

CPU = JobSetting(device="cpu")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A tiny plan, worked through without disturbance."""
    root = tmp_path_factory.mktemp("whole")
    plan = tiny_plan(root / "inputs", root / "out")
    return run_plan(plan, CPU, is_shown=False)


def starts(out):
    paths = (out / "jobs").glob("*.json")
    return {path.stem: json.loads(path.read_text())["starts"] for path in paths}


def test_a_plan_is_worked_through(whole):
    assert {line.state for line in whole.lines} == {"done"} and not whole.failed
    assert whole.report.exists() and whole.left == 0 and whole.spent > 0
    assert set(starts(whole.plan.out).values()) == {1}
    assert list((whole.plan.out / "claims").iterdir()) == []
    json.dumps(whole.to_dict())


def test_records_name_the_command_that_makes_them_alone(whole):
    records = results.read(whole.plan.out / "runs" / "pid-seed0")
    commands = {r.settings["command"] for r in records if r.settings.get("command")}
    assert {command.split()[1] for command in commands} == {"evaluate", "analyze"}
    assert all("reproduce" not in command for command in commands)


def test_a_second_run_does_nothing(whole):
    before = records_of(whole.plan.out)
    again = run_plan(whole.plan, CPU, is_shown=False)
    assert records_of(whole.plan.out) == before and not again.failed
    assert set(starts(whole.plan.out).values()) == {1}


def test_what_is_done_is_read_from_the_folders(whole):
    plan = whole.plan
    run = plan.out / "runs" / "softmax-seed0"
    kept = results.read(run)
    rows = [r for r in kept if r.settings.get("row") != "noise"]
    results.rewrite(run, rows)
    states = {line.job.id: line.state for line in look(plan).lines}
    assert states["evaluate.softmax"] == "waiting" and states["train.softmax"] == "done"
    assert states["report"] == "waiting"  # it showed a record that is gone
    results.rewrite(run, kept)
    assert {line.state for line in look(plan).lines} == {"done"}


def test_a_job_is_done_when_its_process_has_let_go_of_it(whole):
    """Its time is written last; a plan that looked on said "train ...: 0 s"."""
    plan = whole.plan
    with claimed(plan.out / "claims", "train.softmax"):
        states = {line.job.id: line.state for line in look(plan).lines}
        assert states["train.softmax"].startswith("running (") and states["train.pid"] == "done"
    assert {line.state for line in look(plan).lines} == {"done"}


def test_no_network_is_built_to_see_what_is_done(whole, monkeypatch):
    """Several processes look at a hundred finished runs, again and again."""
    job_kinds._outline.cache_clear()
    job_kinds._SEEN.clear()
    monkeypatch.setattr("pidformer.runs.open.load", lambda *args, **options: 1 / 0)
    assert {line.state for line in look(whole.plan).lines} == {"done"}


def test_other_weights_make_what_was_measured_undone(whole, tmp_path):
    plan = tiny_plan(tmp_path / "inputs", tmp_path / "out")
    shutil.copytree(whole.plan.out / "runs", plan.out / "runs")
    run = plan.out / "runs" / "pid-seed0"
    before = {job.id for job in plan.jobs if is_done(job)}
    assert before >= {"evaluate.softmax", "analyze.pid"} and "evaluate.pid" in before
    tensors = load_weights(run / "model.safetensors")
    tensors["cls_token"] += 1e-3
    save_weights(run / "model.safetensors", tensors)
    assert before - {j.id for j in plan.jobs if is_done(j)} == {"evaluate.pid", "analyze.pid"}


def test_half_an_analysis_is_none(whole):
    plan = whole.plan
    job = plan.by_id["analyze.pid"]
    run = job.arguments["run"]
    kept = results.read(run)
    results.rewrite(run, kept[:-1])  # killed before the certificate
    assert not is_done(job)
    run_plan(plan, CPU, is_shown=False)
    assert is_done(job) and len(results.read(run)) == len(kept)


def test_a_failed_job_stops_what_needs_it_and_nothing_else(tmp_path, capsys):
    plan = tiny_plan(tmp_path / "inputs", tmp_path / "out", analyze=False)
    (tmp_path / "inputs" / "pid.yaml").write_text("optim: {rl: 1}")
    found = run_plan(plan, CPU, is_shown=True)
    places = [line.partition("]")[0] for line in capsys.readouterr().err.splitlines()]
    assert places == ["[1/5", "[2/5", "[3/5", "[5/5"]  # what needs the failed one is counted too
    states = {line.job.id: line.state for line in found.lines}
    assert states["train.pid"] == states["evaluate.pid"] == "failed"
    assert states["evaluate.softmax"] == states["report"] == "done"
    assert "optim.lr" in found.failed["train.pid"]


def test_what_failed_here_and_was_done_elsewhere_has_not_failed(tmp_path, monkeypatch):
    """Memory runs out in one of two processes that share a GPU; the other does the job."""
    plan = tiny_plan(tmp_path / "inputs", tmp_path / "out", analyze=False)
    inner, tries = run_module.do, []

    def do(job, setting):
        tries.append(job.id)
        inner(job, setting)
        if job.id == "train.pid":  # the folder is as if another process had made it by now
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(run_module, "do", do)
    found = run_plan(plan, CPU, is_shown=False)
    assert not found.failed and {line.state for line in found.lines} == {"done"}
    assert sorted(tries) == sorted(job.id for job in plan.jobs)


def test_a_damaged_file_stops_its_run_and_nothing_else(whole, tmp_path):
    plan = tiny_plan(tmp_path / "inputs", tmp_path / "out", analyze=False)
    shutil.copytree(whole.plan.out / "runs", plan.out / "runs")
    damaged = plan.out / "runs" / "pid-seed0" / "results.jsonl"
    damaged.write_text("{\n")
    (plan.out / "runs" / "softmax-seed0" / "results.jsonl").unlink()
    seen = look(plan)
    assert set(seen.failed) == {"evaluate.pid"} and str(damaged) in seen.failed["evaluate.pid"]
    found = run_plan(plan, CPU, is_shown=False)
    states = {line.job.id: line.state for line in found.lines}
    assert states["evaluate.softmax"] == "done" and states["evaluate.pid"] == "failed"


def test_to_look_writes_nothing(tmp_path):
    plan = tiny_plan(tmp_path / "inputs", tmp_path / "out")
    plan.out.mkdir()
    assert {line.state for line in look(plan).lines} == {"waiting"}
    assert list(plan.out.iterdir()) == []


def test_a_job_on_other_images_is_another(whole):
    job = whole.plan.by_id["evaluate.pid"]
    assert is_done(job)
    assert not is_done(replace(job, arguments={**job.arguments, "limit": 5}))


def test_times_that_cannot_be_written_stop_nothing(whole, tmp_path, monkeypatch):
    def full(path, text):
        raise OSError(28, "No space left")

    monkeypatch.setattr(jobs, "write_whole", full)
    plan = tiny_plan(tmp_path / "inputs", tmp_path / "out", analyze=False)
    shutil.copytree(whole.plan.out / "runs", plan.out / "runs")
    found = run_plan(plan, CPU, is_shown=False)
    assert not found.failed and {line.state for line in found.lines} == {"done"}


def test_a_recorded_command_can_be_typed(whole, tmp_path):
    job = whole.plan.by_id["evaluate.pid"]
    run = tmp_path / "my runs" / "pid"
    command = job_kinds._command(replace(job, arguments={**job.arguments, "run": run, "data": run}))
    assert shlex.split(command)[:3] == ["pidformer", "evaluate", str(run)]


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left"),
        torch.linalg.LinAlgError("no\nconvergence"),
        MemoryError("32 GB"),
    ],
)
def test_what_breaks_in_a_job_breaks_no_other(whole, tmp_path, monkeypatch, error):
    def analyze(*args, **options):
        raise error

    monkeypatch.setattr(job_kinds, "analyze", analyze)
    plan = tiny_plan(tmp_path / "inputs", tmp_path / "out")
    shutil.copytree(whole.plan.out / "runs", plan.out / "runs")
    for run in (plan.out / "runs").iterdir():
        results.rewrite(run, [r for r in results.read(run) if r.kind != "analysis"])
    found = run_plan(plan, CPU, is_shown=False)
    assert set(found.failed) == {"analyze.softmax", "analyze.pid"}
    told = found.failed["analyze.pid"]
    assert told.startswith(type(error).__name__) and "\n" not in told and found.report.exists()
    story = plan.out / "jobs" / "analyze.pid.txt"
    assert story.read_text().startswith("Traceback") and str(error) in story.read_text()
    monkeypatch.undo()
    run_plan(plan, CPU, is_shown=False)
    assert not story.exists()  # the same command, and it did not break


def test_a_story_may_name_a_file_whose_name_is_no_text(tmp_path):
    """Or the plan ended with it, and all its other jobs."""
    (tmp_path / "jobs").mkdir()
    job = Job(id="train.pid", kind="train", title="", arguments={})
    error = RuntimeError("cannot read \udcff.jpg")
    assert "cannot read" in run_module._told(Plan(out=tmp_path, jobs=()), job, error)
    told = (tmp_path / "jobs" / "train.pid.txt").read_text(encoding="utf-8")
    assert r"RuntimeError: cannot read \udcff.jpg" in told


def test_what_a_killed_process_was_writing_goes_although_all_is_done(tmp_path):
    left = tmp_path / "jobs" / ".publish.pid.1-1-00000000.part.json"
    left.parent.mkdir()
    left.write_text("{")
    os.utime(left, (0, 0))
    lock = tmp_path / "claims" / "train.pid-seed0.lock"  # of a job that was done by then
    lock.parent.mkdir()
    lock.touch()
    with claimed(lock.parent, "train.softmax-seed0"):
        make_folders(Plan(out=tmp_path, jobs=()))
        assert [path.name for path in lock.parent.iterdir()] == ["train.softmax-seed0.lock"]
    assert not left.exists()


def test_processes_of_one_call_share_the_jobs_and_tell_what_failed(whole, tmp_path, monkeypatch):
    warm(monkeypatch)
    plan = tiny_plan(tmp_path / "inputs", tmp_path / "out", analyze=False)
    (tmp_path / "inputs" / "pid.yaml").write_text("optim: {rl: 1}")
    found = run_plan(plan, CPU, jobs=2, is_shown=False, poll=0.1)
    states = {line.job.id: line.state for line in found.lines}
    assert states["train.pid"] == states["evaluate.pid"] == "failed"
    assert states["evaluate.softmax"] == states["report"] == "done"
    assert "optim.lr" in found.failed["train.pid"]
    rows = [r for r in records_of(whole.plan.out)["softmax-seed0"] if r["kind"] != "analysis"]
    expected = without_inputs({"softmax-seed0": rows})
    assert without_inputs(records_of(tmp_path / "out")) == expected


def test_processes_are_as_many_as_there_are_cores_and_runs(tmp_path, monkeypatch):
    plan = tiny_plan(tmp_path / "inputs", tmp_path / "out")
    monkeypatch.setattr(run_module, "usable_cores", lambda: 64)
    assert run_module.check_jobs(None, plan, "cpu") == run_module.check_jobs(7, plan, "cpu") == 2
    monkeypatch.setattr(run_module, "usable_cores", lambda: 1)
    assert run_module.check_jobs(None, plan, "cpu") == 1
    with pytest.raises(InputError, match="jobs must be at least 1, got 0"):
        run_module.check_jobs(0, plan, "cpu")


SCRIPT = """
import sys, torch
from pathlib import Path
torch.set_num_threads(1)
from pidformer.reproduce import run_plan
from pidformer.reproduce.job_kinds import JobSetting
from tests.reproduce.tiny import tiny_plan
plan = tiny_plan(Path(sys.argv[1]), Path(sys.argv[2]))
jobs = int(sys.argv[3]) if len(sys.argv) > 3 else 1
found = run_plan(plan, JobSetting(device="cpu"), jobs=jobs, is_shown=False, poll=0.1)
sys.exit(1 if found.failed else 0)
"""


def test_two_processes_share_the_jobs(whole, tmp_path):
    tiny_plan(tmp_path / "inputs", tmp_path / "out")
    ends_well(*(Process(SCRIPT, tmp_path / "inputs", tmp_path / "out") for _ in range(2)))
    assert set(starts(tmp_path / "out").values()) == {1}  # each job ran once
    found, expected = records_of(tmp_path / "out"), records_of(whole.plan.out)
    assert without_inputs(found) == without_inputs(expected)


def test_a_killed_call_takes_its_processes_along_and_goes_on_later(whole, tmp_path):
    plan = tiny_plan(tmp_path / "inputs", tmp_path / "out")
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "inputs"), str(tmp_path / "out"), "2"]
    parent = subprocess.Popen(command)
    claims = tmp_path / "out" / "claims"
    assert waited(lambda: claims.is_dir() and list(claims.glob("*.lock")))
    workers = psutil.Process(parent.pid).children(recursive=True)
    parent.kill()
    parent.wait()
    assert not psutil.wait_procs(workers, timeout=60)[1]
    found = run_plan(plan, CPU, is_shown=False)
    # not the temporary names, at one of which the end may have fallen
    assert not found.failed and list(claims.glob("[!.]*")) == []
    expected = without_inputs(records_of(whole.plan.out))
    assert without_inputs(records_of(tmp_path / "out")) == expected


def waited(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def without_inputs(records):
    """The suite's file lies elsewhere; so do the commands' words."""
    for lines in records.values():
        for line in lines:
            line["settings"].pop("command", None)
    return records
