import json
from dataclasses import replace

import pytest

import pidformer as pf
from pidformer.evaluation.suite import load_suite
from pidformer.reproduce import make_plan, reproduce
from pidformer.reproduce.display import plan_table
from pidformer.reproduce.job_kinds import JobSetting, do, is_done
from pidformer.reproduce.jobs import Spent, estimates
from pidformer.reproduce.plan import PARTS, SCALES, TABLE
from pidformer.reproduce.run import look
from pidformer.results import Record, append
from pidformer.runs.folder import write_recipe
from pidformer.training.recipe import load_recipe


def test_the_demo_trains_measures_and_reports_the_twins(tmp_path):
    plan = make_plan(tmp_path / "out", seeds=2)
    kinds = [job.kind for job in plan.jobs]
    assert kinds.count("train") == 4 and kinds[-1] == "report" and kinds.count("analyze") == 4
    assert len(plan.by_id) == len(plan.jobs) == 17
    assert {blocked.part for blocked in plan.blocked} == {"table2", "table3"}
    json.dumps([job.to_dict() for job in plan.jobs])  # plain data


def test_what_is_needed_comes_first_and_a_run_has_one_writer(tmp_path):
    plan = make_plan(tmp_path, seeds=3)
    seen = set()
    by_run = {}
    for job in plan.jobs:
        assert set(job.needs) <= seen
        seen.add(job.id)
        if "run" in job.arguments:
            by_run.setdefault(job.arguments["run"], []).append(job)
    assert len(by_run) == 6
    for jobs in by_run.values():
        assert [job.needs for job in jobs[1:]] == [(job.id,) for job in jobs[:-1]]


def test_only_the_asked_parts(tmp_path):
    table = make_plan(tmp_path, only=["table1"])
    assert not any(job.kind == "analyze" or job.arguments.get("curve") for job in table.jobs)
    figures = make_plan(tmp_path, only=["figures"])
    assert not any(job.arguments.get("suite") == "digits" for job in figures.jobs)


@pytest.mark.parametrize("key", TABLE, ids="-".join)
def test_the_table_names_recipes_and_suites_that_exist(key, tmp_path):
    part, scale = key
    for name in (*TABLE[key].data[:1], "imagenet"):
        (tmp_path / name).mkdir(exist_ok=True)
    plan = make_plan(tmp_path / "out", scale=scale, data=tmp_path, only=[part], seeds=1)
    assert not plan.blocked
    for job in plan.jobs:
        if job.kind == "train":
            assert load_recipe(job.arguments["recipe"]).task == job.arguments["task"]
        if job.kind == "evaluate" and job.arguments["task"] == "classification":
            assert job.arguments["curve"] or load_suite(job.arguments["suite"]).rows


def test_data_is_found_by_its_usual_names(tmp_path):
    plan = make_plan(tmp_path / "out", scale="small", only=["table1"])
    assert plan.blocked[0].state == "no data" and "--data" in plan.blocked[0].reason
    (tmp_path / "another-set").mkdir()
    for data in (tmp_path, tmp_path / "nowhere"):
        plan = make_plan(tmp_path / "out", scale="small", only=["table1"], data=data)
        assert plan.blocked[0].state == "no data" and not plan.jobs
    (tmp_path / "Tiny_ImageNet_100").mkdir()
    plan = make_plan(tmp_path / "out", scale="small", only=["table1"], data=tmp_path)
    assert plan.jobs[0].arguments["data"] == tmp_path / "Tiny_ImageNet_100"
    link = tmp_path / "tiny-imagenet-100"  # the set itself, on another disk under another name
    (tmp_path / "Tiny_ImageNet_100").rename(tmp_path / "images")
    link.symlink_to(tmp_path / "images")
    plan = make_plan(tmp_path / "out", scale="small", only=["table1"], data=link)
    assert plan.jobs[0].arguments["data"] == link


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_two_scales_in_one_folder_have_a_report_each(tmp_path):
    """Their runs are no twins. A part whose trainings all failed keeps no other from its report."""
    (tmp_path / "tiny-imagenet-100").mkdir()
    (tmp_path / "novels").mkdir()
    for scale in ("demo", "small"):
        plan = make_plan(tmp_path / "out", scale=scale, data=tmp_path, seeds=1)
        for job in plan.jobs:
            if job.kind == "train" and job.arguments["task"] == "classification":
                run = job.arguments["run"]
                run.mkdir(parents=True)
                write_recipe(run, load_recipe(job.arguments["recipe"]).to_dict())
                append(run, Record(kind="train", step=1, metrics={"loss": 2.3, "epoch": 1.0}))
        report = plan.by_id["report"]
        assert not is_done(report)
        do(report, JobSetting(device="cpu"))
        assert is_done(report)
        text = (plan.out / "report" / "report.md").read_text()
        assert ("deit_tiny" in text) == (scale == "small")


def test_the_table_shows_folders_as_they_are_called(tmp_path, run):
    for name in ("sets [old]", "sets[/bold]"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        out = ("--out", tmp_path / "out", "--data", folder)
        code, text, _ = run("reproduce", "--scale", "small", "--dry-run", *out)
        assert code == 0 and name.split("/")[0] in text


def test_a_long_plan_shows_what_is_not_done_yet_on_a_low_screen(tmp_path):
    lines = look(make_plan(tmp_path, seeds=4)).lines
    assert len(lines) == 33
    lines = [replace(line, state="done") for line in lines[:10]] + list(lines[10:])
    plan = make_plan(tmp_path, seeds=4)
    assert plan_table(plan, lines).row_count == 33 + len(plan.blocked)
    low = plan_table(plan, lines, 20)
    assert low.row_count == 20 - 6 and next(low.columns[0].cells) == lines[10].job.title
    assert "10 of 33 jobs done" in low.caption


def test_estimates_learn_from_what_was_done(tmp_path):
    plan = make_plan(tmp_path, seeds=2)
    trains = [job for job in plan.jobs if job.kind == "train"]
    spent = {job.id: Spent() for job in plan.jobs} | {trains[0].id: Spent(100.0, 1)}
    found = estimates(plan, spent, {trains[0].id})
    assert found[trains[1].id] == pytest.approx(100.0)
    assert found["report"] == plan.by_id["report"].seconds


def test_all_that_failed_is_shown_with_its_reason(run, tmp_path):
    """Processes that work side by side say nothing themselves, and a terminal shows no lines."""
    for name in ("tiny-imagenet-100", "camvid"):
        (tmp_path / name).mkdir()
    options = ("--data", tmp_path, "--seeds", 1, "--jobs", 1, "--device", "cpu")
    only = ("--only", "table1,table2", "--out", tmp_path / "out")
    code, text, error = run("reproduce", "--scale", "small", *options, *only)
    assert code == 2 and "jobs failed; train.tiny_imagenet_100.deit_tiny_softmax-seed0: " in error
    said = [line for line in text.splitlines() if " failed: " in line]
    assert len(said) == 6 and all(str(tmp_path) in line for line in said[:-1])
    assert said[4].startswith("train.camvid.pid-seed0 failed: ") and "report failed" in said[-1]


def test_a_dry_run_writes_nothing(run, tmp_path):
    out = tmp_path / "out"
    code, text, _ = run("reproduce", "--out", out, "--dry-run")
    assert code == 0 and "waiting" in text and "17 jobs" in text and not out.exists()
    code, text, _ = run("reproduce", "--out", out, "--dry-run", "--json")
    found = json.loads(text)
    assert found["seconds_left"] > 60 and len(found["jobs"]) == 17
    assert {job["state"] for job in found["jobs"]} == {"waiting"} and not out.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scale": "huge"}, "scale"),
        ({"seeds": 0}, "seeds"),
        ({"seeds": 10**9, "dry_run": True}, "seeds must be at least 1, and at most 1000"),
        ({"only": ["table9"]}, "did you mean"),
        ({"device": "tpu"}, "device"),
        ({"jobs": 0}, "jobs must be at least 1, got 0"),
        ({"scale": "small"}, "--data"),
    ],
)
def test_bad_input_is_refused(tmp_path, options, words):
    with pytest.raises(pf.InputError, match=words):
        reproduce(tmp_path / "out", is_shown=False, **options)
    assert not (tmp_path / "out").exists()


def test_every_scale_has_parts():
    assert {scale for _, scale in TABLE} == set(SCALES) and {p for p, _ in TABLE} == set(PARTS)
