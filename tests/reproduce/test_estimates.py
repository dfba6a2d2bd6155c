"""How long a study's jobs are expected to take, and what is begun by that."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from pidformer.reproduce import make_plan
from pidformer.reproduce.jobs import JobState, Spent, Times, duration, estimates, seconds_left
from pidformer.reproduce.run import _fits, look

STUDY = Path(__file__).parents[2] / "study" / "tiny-imagenet-100.yaml"
LONG = STUDY.with_name("tiny-imagenet-100-long.yaml")


def test_a_longer_training_of_a_deeper_model_is_expected_to_take_longer(tmp_path):
    (tmp_path / "tiny-imagenet-100").mkdir()
    plan = make_plan(tmp_path / "out", study=STUDY, data=tmp_path)
    guess = {j.arguments["run"].name: j.seconds for j in plan.jobs if j.kind == "train"}
    assert guess["pid_15-seed10"] < guess["pid_24-seed10"] < guess["pid-seed10"]
    spent = {job.id: Spent() for job in plan.jobs}
    assert estimates(plan, spent, set()) == {job.id: job.seconds for job in plan.jobs}
    slow = {"train.pid-seed10": Spent(3 * guess["pid-seed10"], 1)}
    found = estimates(plan, spent | slow, {"train.pid-seed10"})
    for name in ("p-seed11", "p_40-seed10", "pid_24-seed10"):  # lengths learn from each other
        assert found[f"train.{name}"] == pytest.approx(3 * guess[name])
    assert found["analyze.p-seed11"] == plan.by_id["analyze.p-seed11"].seconds  # of another kind
    assert estimates(plan, spent | slow, set())["train.p-seed11"] == guess["p-seed11"]  # not done


def test_an_estimate_is_of_the_latest_like_jobs(tmp_path):
    """Many processes share a GPU at first, few at the end, when jobs take less time."""
    (tmp_path / "tiny-imagenet-100").mkdir()
    plan = make_plan(tmp_path / "out", study=STUDY, data=tmp_path, only=["main", "short"])
    trained = [job for job in plan.jobs if job.kind == "train"]
    order = trained[:10][::-1]  # not the plan's order
    paces = [9.0, 9.0, 9.0, 9.0, 9.0, 5.0, 4.0, 3.0, 2.0, 1.0]
    spent = {job.id: Spent() for job in plan.jobs}
    for at, (job, pace) in enumerate(zip(order, paces, strict=True)):
        spent[job.id] = Spent(pace * job.seconds, 1, float(at))
    found = estimates(plan, spent, {job.id for job in order})
    assert found[trained[-1].id] == pytest.approx(3.0 * trained[-1].seconds)


def test_processes_that_share_a_gpu_are_expected_to_slow_each_other_down(tmp_path):
    """The long study: 7.6, 14 and 24 minutes for a training, two, four and seven at once."""
    (tmp_path / "tiny-imagenet-100").mkdir()
    plan = make_plan(tmp_path / "out", study=LONG, data=tmp_path, only=["long"])
    spent = {job.id: Spent() for job in plan.jobs}
    train = plan.jobs[0]
    for at_once, measured in ((1, 405), (2, 450), (4, 840), (7, 1420)):
        shared = replace(plan, at_once=at_once)
        found = estimates(shared, spent, set())[train.id]
        assert found == pytest.approx(measured, rel=0.12)
        known = estimates(shared, spent | {train.id: Spent(500.0, 1)}, {train.id})
        assert known["train.pid-seed30"] == pytest.approx(500.0)
        assert look(shared).left == pytest.approx(
            sum(estimates(shared, spent, set()).values()) / at_once
        )


def test_times_of_runs_that_were_made_elsewhere_are_learned_from(tmp_path):
    out = tmp_path / "out"
    for place in (
        tmp_path / "tiny-imagenet-100",
        out / "results" / "tiny-imagenet-100",
        out / "jobs",
    ):
        place.mkdir(parents=True)
    asked = {"study": STUDY, "data": tmp_path, "only": ["main"], "seeds": 1}
    before = make_plan(out, **asked)
    done = before.jobs[0].arguments["run"].name
    (out / "results" / "tiny-imagenet-100" / f"{done}.jsonl").touch()
    for job in before.jobs[:2]:
        Times(out / "jobs").write(job, Spent(2 * job.seconds, 1))
    plan = make_plan(out, **asked)
    assert {job.arguments["run"].name for job in plan.past} == {done}
    estimate = {line.job.id: line.estimate for line in look(plan).lines}
    for job in before.jobs[:2]:
        other = plan.by_id[job.id.replace(done, "pid-seed10")]
        assert estimate[other.id] == pytest.approx(2 * other.seconds)


def test_what_was_begun_elsewhere_and_left_there_begins_anew(tmp_path):
    """Only OUT/jobs came along: a training that was nearly done there takes its whole time here."""
    (tmp_path / "tiny-imagenet-100").mkdir()
    plan = make_plan(tmp_path / "out", study=STUDY, data=tmp_path, only=["main"], seeds=1)
    train, looked = plan.jobs[:2]
    for job in (train, looked):
        Times(plan.out / "jobs").write(job, Spent(job.seconds - 1, 1))
    whole = sum(job.seconds for job in plan.jobs[:5])
    lines = look(plan).lines
    assert [line.spent for line in lines[:2]] == [0.0, 0.0]
    assert _fits(train, lines, whole) and not _fits(train, lines, whole - 1)
    train.arguments["run"].mkdir(parents=True)  # with its checkpoint
    assert _fits(train, look(plan).lines, whole - train.seconds - looked.seconds + 2)


def test_what_is_left_counts_no_job_below_nothing(tmp_path):
    """One that takes longer than expected makes up for no other; one without a guess is unknown."""
    plan = make_plan(tmp_path)
    states = [("waiting", 10.0, 4.0), ("waiting", 3.0, 5.0), ("waiting", None, 0.0),
              ("done", 10.0, 4.0)]  # fmt: skip
    jobs = plan.jobs[: len(states)]
    lines = [
        JobState(job=job, state=state, spent=spent, estimate=estimate)
        for job, (state, estimate, spent) in zip(jobs, states, strict=True)
    ]
    assert seconds_left(lines) == 6.0
    unknown = replace(plan, jobs=tuple(replace(job, seconds=None) for job in plan.jobs))
    spent = {job.id: Spent() for job in plan.jobs}
    assert set(estimates(unknown, spent, set()).values()) == {None}
    first, *_, last = [job.id for job in plan.jobs if job.kind == "train"]
    assert estimates(unknown, spent | {first: Spent(7.0, 1)}, {first})[last] == 7.0


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "?"), (0.4, "0 s"), (99.4, "99 s"), (100, "1.7 min"), (5999, "100.0 min"),
        (6000, "1.7 h"), (9.9 * 3600, "9.9 h"), (9.95 * 3600, "10 h"), (21.4 * 3600, "21 h"),
        (41_623 * 3600, "41,623 h"),
    ],
)  # fmt: skip
def test_a_duration_is_said_in_its_unit(seconds, shown):
    assert duration(seconds) == shown


def test_times_are_kept_with_their_order(tmp_path):
    (tmp_path / "tiny-imagenet-100").mkdir()
    (tmp_path / "jobs").mkdir()
    plan = make_plan(tmp_path / "out", study=STUDY, data=tmp_path, only=["main"], seeds=1)
    times, (first, second) = Times(tmp_path / "jobs"), plan.jobs[:2]
    for place, job in enumerate((second, first)):
        times.write(job, Spent(2.5, 3))
        os.utime(tmp_path / "jobs" / f"{job.id}.json", (place, place))
    assert times.of(first.id) == Spent(2.5, 3, 1.0) and times.of(second.id) == Spent(2.5, 3, 0.0)
    for text in ("", "[]", "{}", '{"seconds": null, "starts": 1}'):  # of a disk that was full, say
        (tmp_path / "jobs" / f"{first.id}.json").write_text(text)
        assert times.of(first.id) == Spent()


def test_a_run_is_begun_only_if_it_would_end_in_time(tmp_path):
    (tmp_path / "tiny-imagenet-100").mkdir()
    plan = make_plan(tmp_path / "out", study=STUDY, data=tmp_path, only=["main"], seeds=1)
    lines = [JobState(job=j, state="waiting", spent=0.0, estimate=10.0) for j in plan.jobs]
    train, evaluate = plan.jobs[:2]
    assert _fits(train, lines, 50.0) and not _fits(train, lines, 49.0)
    assert _fits(evaluate, lines, -1.0)  # what is trained is measured
    lines[0] = replace(lines[0], spent=8.0)  # begun by a process that was killed
    assert _fits(train, lines, 42.0) and not _fits(train, lines, 41.0)
    start = replace(train, id="train.backbone", needs=())  # what only the second run is made for
    lines[5] = replace(lines[5], job=replace(lines[5].job, needs=(start.id,)))
    lines = [JobState(job=start, state="waiting", spent=0.0, estimate=10.0), *lines]
    assert _fits(start, lines, 60.0) and not _fits(start, lines, 59.0)
