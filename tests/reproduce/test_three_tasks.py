"""Tables 2 and 3 through the same plan, with tiny models."""

import pytest
import yaml

from pidformer import results
from pidformer.reproduce import Job, Plan, make_plan, run_plan
from pidformer.reproduce.job_kinds import JobSetting
from pidformer.reproduce.plan import _report_of_recipes
from tests.data.pairs import write_parquet
from tests.training.test_segmentation import recipe as tiny_segmenter
from tests.training.tiny_language import tiny_language

pytestmark = pytest.mark.slow


def plan_of(recipe, task, data, suites, root):
    path = root / f"{task}.yaml"
    path.write_text(yaml.safe_dump(recipe.to_dict()))
    out = root / "out"
    about = {"run": out / "runs" / "pid-seed0", "data": data, "task": task}
    more = {"recipe": str(path), "seed": 0}
    jobs = [Job(id="train", kind="train", title="train", arguments=about | more)]
    for suite in suites:
        own = about | {"suite": suite, "curve": None}
        needs = (jobs[-1].id,)
        job = Job(id=f"evaluate.{suite}", kind="evaluate", title=suite, arguments=own, needs=needs)
        jobs.append(job)
    return Plan(out=out, jobs=(*jobs, _report_of_recipes(out, jobs)))


def check(plan, kind, words):
    found = run_plan(plan, JobSetting(device="cpu"), is_shown=False)
    assert not found.failed and {line.state for line in found.lines} == {"done"}
    run = plan.jobs[0].arguments["run"]
    records = [r for r in results.read(run) if r.kind == kind]
    assert len(records) == 2
    again = run_plan(plan, JobSetting(device="cpu"), is_shown=False)
    assert not again.failed and len([r for r in results.read(run) if r.kind == kind]) == 2
    text = (plan.out / "report" / "report.md").read_text()
    assert words in text and "evaluate_" in text
    return records


def test_segmentation(tmp_path):
    data = write_parquet(tmp_path / "camvid")
    recipe = tiny_segmenter("schedule.epochs=1")
    plan = plan_of(recipe, "segmentation", data, ("single", "multi"), tmp_path)
    records = check(plan, "segmentation", "## Table 2: segmentation")
    assert {r.settings["views"] for r in records} == {"single", "multi"}


def test_language(tmp_path):
    pytest.importorskip("transformers")
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("the cat sat on the mat and the dog ran\n" * 60)
    recipe = tiny_language("schedule.epochs=1")
    plan = plan_of(recipe, "language", tmp_path, ("valid", "test"), tmp_path)
    records = check(plan, "language", "## Table 3: language")
    assert {r.settings["split"] for r in records} == {"valid", "test"}


def test_the_papers_segmenters_start_from_its_classifiers(tmp_path):
    (tmp_path / "ade20k").mkdir()
    plan = make_plan(tmp_path / "out", scale="paper", data=tmp_path, only=["table2"], seeds=1)
    assert "backbones" in plan.blocked[0].reason
    (tmp_path / "imagenet").mkdir()
    plan = make_plan(tmp_path / "out", scale="paper", data=tmp_path, only=["table2"], seeds=1)
    job = plan.by_id["train.ade20k.segmenter_tiny_pid-seed0"]
    assert job.needs == ("train.imagenet.deit_tiny_pid-seed0",)
    run = tmp_path / "out" / "runs" / "imagenet" / "deit_tiny_pid-seed0"
    assert job.arguments["overrides"] == (f"segmentation.backbone={run}",)
    assert plan.by_id[job.needs[0]].arguments["run"] == run
    assert not any(j.kind == "evaluate" and "imagenet" in j.id for j in plan.jobs)
