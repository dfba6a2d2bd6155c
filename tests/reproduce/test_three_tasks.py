"""Tables 2 and 3 through the same plan, with tiny models."""

import shlex
from dataclasses import replace

import pytest
import yaml
from PIL import Image

from pidformer import results
from pidformer.errors import InputError
from pidformer.evaluation.language import robustness_rows
from pidformer.report.rerun import measure_command
from pidformer.reproduce import Job, Plan, make_plan, reproduce, run_plan
from pidformer.reproduce.job_kinds import LAST_ROWS, JobSetting
from pidformer.reproduce.plan import _report_of_recipes
from pidformer.reproduce.run import look
from pidformer.robustness.segmentation import segmentation_threats
from pidformer.runs.folder import load_weights, read_model_info
from pidformer.runs.weights import fingerprint
from pidformer.training import load_recipe
from tests.data.pairs import write_parquet
from tests.training.test_segmentation import OPTIONS
from tests.training.test_segmentation import recipe as tiny_segmenter
from tests.training.tiny_language import tiny_language

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("undrawn")]


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
    assert words in text and "pidformer evaluate" in text
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


def study_of(recipe, data, suites, root, **more):
    (root / "tiny.yaml").write_text(yaml.safe_dump(recipe.to_dict() | {"seed": 0}))
    rows = {"p": {"gains": "0.6,0,0,1"}}
    groups = {"g": {"seeds": [10], "images": "all", "rows": rows} | more}
    fields = {"recipe": str(root / "tiny.yaml"), "data": [data], "suites": suites, "groups": groups}
    (root / "study.yaml").write_text(yaml.safe_dump(fields))
    return make_plan(root / "out", study=root / "study.yaml", data=root)


@pytest.mark.parametrize("task", ["segmentation", "language"])
def test_a_study_of_scenes_or_text_is_measured_under_threats_and_published(tmp_path, task):
    if task == "language":
        pytest.importorskip("transformers")
        (tmp_path / "novels").mkdir()
        for split in ("train", "valid", "test"):
            text = "the cat sat on the mat and the dog ran\n" * 60
            (tmp_path / "novels" / f"{split}.txt").write_text(text)
        recipe, data, suites = tiny_language("schedule.epochs=1"), "novels", ("test", "robustness")
    else:
        write_parquet(tmp_path / "camvid")
        recipe, data = tiny_segmenter("schedule.epochs=1"), "camvid"
        suites = ("single", "robustness")
    plan = study_of(recipe, data, dict.fromkeys(suites), tmp_path)
    kinds = [job.kind for job in plan.jobs]
    assert kinds == ["train", "evaluate", "evaluate", "publish"]
    found = run_plan(plan, JobSetting(device="cpu"), is_shown=False)
    assert not found.failed and {line.state for line in found.lines} == {"done"}
    published = tmp_path / "out" / "results" / "study" / "p-seed10.jsonl"
    text = published.read_text()
    assert LAST_ROWS[task] in text and "--suite robustness" in text


def test_the_rows_with_which_robustness_ends_are_the_last():
    assert list(segmentation_threats())[-1] == LAST_ROWS["segmentation"]
    *_, (name, changes) = robustness_rows()
    assert LAST_ROWS["language"] == f"strided/test/{name}"
    assert changes == {"window": 1024, "is_sliding": True}


def test_a_study_names_no_suite_of_another_task(tmp_path):
    write_parquet(tmp_path / "camvid")
    for suites, said in (
        ({"study": None}, "unknown suite of segmentation 'study'"),
        ({"single": {"domain": "normalized"}}, "for classification alone"),
    ):
        with pytest.raises(InputError, match=said):
            study_of(tiny_segmenter(), "camvid", suites, tmp_path)


def photos(root):
    for label in ("dark", "light"):
        for k in range(6):
            folder = root / "photos" / ("val" if k < 2 else "train") / label
            folder.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (16, 16), (40 * k, 90, 200)).save(folder / f"{k}.png")
    tiny = [f"model.options={OPTIONS}", "model.gains=null", "data.image_size=16"]
    tiny += ["data.batch_size=4", "data.workers=0", "schedule.epochs=1", "schedule.warmup_epochs=0"]
    recipe = load_recipe("custom/photos_softmax.yaml", [*tiny, "train.precision=fp32"])
    (root / "photos.yaml").write_text(yaml.safe_dump(recipe.to_dict() | {"seed": 0}))
    return {"recipe": str(root / "photos.yaml"), "data": ["photos"], "set": ["optim.lr=1e-3"]}


def test_a_row_starts_from_a_backbone_with_its_gains_and_seed(tmp_path):
    write_parquet(tmp_path / "camvid")
    backbone = photos(tmp_path)
    recipe = tiny_segmenter("schedule.epochs=1")
    plan = study_of(recipe, "camvid", {"single": None}, tmp_path, backbone=backbone)
    assert [job.id for job in plan.jobs][:2] == ["train.p_backbone-seed10", "train.p-seed10"]
    assert plan.jobs[0].arguments["overrides"] == ("optim.lr=1e-3", "model.gains=0.6,0,0,1")
    assert plan.jobs[1].needs == (plan.jobs[0].id,)
    found = run_plan(plan, JobSetting(device="cpu"), is_shown=False)
    assert not found.failed and {line.state for line in found.lines} == {"done"}
    runs = tmp_path / "out" / "runs"
    recorded = read_model_info(runs / "p-seed10")["backbone"]
    weights = load_weights(runs / "p_backbone-seed10" / "model.safetensors")
    assert recorded["weights"] == fingerprint(weights) and recorded["gains"] == "0.6,0,0,1"
    published = (tmp_path / "out" / "results" / "study" / "p-seed10.jsonl").read_text()
    assert '"backbone": "p_backbone-seed10"' in published


def test_backbones_that_a_study_cannot_have(tmp_path):
    write_parquet(tmp_path / "camvid")
    backbone = photos(tmp_path)
    for own, said in (
        (tiny_segmenter(), "cannot start from one of segmentation"),
        (load_recipe("digits/pid.yaml"), "a run of classification cannot start"),
    ):
        suites = {"single": None} if own.task == "segmentation" else {}
        given = backbone | ({"recipe": "camvid/pid.yaml"} if own.task == "segmentation" else {})
        with pytest.raises(InputError, match=said):
            study_of(own, "camvid", suites, tmp_path, backbone=given)
    rename = backbone | {"data": ["elsewhere"]}
    plan = study_of(tiny_segmenter(), "camvid", {"single": None}, tmp_path, backbone=rename)
    assert not plan.jobs and plan.blocked[0].reason == f"no elsewhere in {tmp_path}"


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "no test text in"), ("\n \n", "holds no text"), (b"\xfd7zXZ\x00 cut", "zero bytes")],
)
def test_a_text_that_cannot_be_measured_is_refused_before_training(tmp_path, text, said):
    (tmp_path / "novels").mkdir()
    for split in ("train", "valid"):
        words = "the cat sat on the mat and the dog ran\n" * 60
        (tmp_path / "novels" / f"{split}.txt").write_text(words)
    if text is not None:
        data = text if isinstance(text, bytes) else text.encode()
        (tmp_path / "novels" / "test.txt").write_bytes(data)
    study_of(tiny_language("schedule.epochs=1"), "novels", {"valid": None, "test": None}, tmp_path)
    asked = {"study": tmp_path / "study.yaml", "data": tmp_path, "is_shown": False}
    assert reproduce(tmp_path / "out", **asked, dry_run=True).lines
    with pytest.raises(InputError, match=said):
        reproduce(tmp_path / "out", **asked)
    assert not (tmp_path / "out" / "runs").exists()


def test_sliding_perplexity_in_tf32_is_a_measurement_of_its_own(run, tmp_path):
    """On a CPU the products are the same; the record says what was asked for."""
    pytest.importorskip("transformers")
    (tmp_path / "novels").mkdir()
    for split in ("train", "valid", "test"):
        words = "the cat sat on the mat and the dog ran\n" * 60
        (tmp_path / "novels" / f"{split}.txt").write_text(words)
    recipe, setting = tiny_language("schedule.epochs=1"), JobSetting(device="cpu")
    for suite in ({"precision": "tf32"}, None):
        plan = study_of(recipe, "novels", {"valid": suite}, tmp_path)
        assert {line.state for line in look(plan).lines if line.job.kind == "evaluate"} == {
            "waiting"
        }
        assert not run_plan(plan, setting, is_shown=False).failed
    made = results.read(tmp_path / "out" / "runs" / "p-seed10")
    slid = {r.settings["precision"]: r for r in made if r.kind == "language"}
    assert set(slid) == {"tf32", "fp32"}
    typed = shlex.split(slid["tf32"].settings["command"])
    assert run(*typed[1:])[0] == 0  # what a person would type asks for the same measurement
    assert results.read(tmp_path / "out" / "runs" / "p-seed10") == made
    printed = shlex.split(measure_command(slid["tf32"]))
    assert printed[:2] == typed[:2] and printed[-2:] == ["--precision", "tf32"]
    assert "--precision" not in measure_command(slid["fp32"])
    too = dict(slid["tf32"].settings) | {"attention": "tf32"}
    command = measure_command(replace(slid["tf32"], settings=too))
    assert command == f"PIDFORMER_TF32=1 {shlex.join(printed)}"
    assert slid["tf32"].metrics["loss"] == slid["fp32"].metrics["loss"]
    with pytest.raises(InputError, match="precision is for language alone"):
        study_of(tiny_segmenter(), "camvid", {"single": {"precision": "tf32"}}, tmp_path)
