"""A study file as a plan: what it may hold, and that it can be worked through."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from pidformer import results
from pidformer.control import PIDGains, as_feedback
from pidformer.errors import InputError
from pidformer.evaluation.suite import load_suite
from pidformer.models.build import build_classifier
from pidformer.reproduce import make_plan, reproduce, run_plan
from pidformer.reproduce import plan as study
from pidformer.reproduce.job_kinds import JobSetting, check_recipes
from pidformer.reproduce.study import StudyPlan, StudyRow, gains_by_layer, load_study, read_measures
from pidformer.training.recipe import load_recipe
from study.pages import write_results
from study.records import read_studies
from tests.training.tiny import tiny_recipe

ROOT = Path(__file__).parents[2]
AB = [["a", "b"]]
STUDY = ROOT / "study" / "tiny-imagenet-100.yaml"


@pytest.fixture(scope="module")
def shipped():
    return load_study(STUDY)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"expects": {"Clean": "better"}},
            "hypotheses.H1.text is missing; study keys without a default",
        ),
        ({"text": "x", "expects": {"Clean": "good"}}, "expects 'good' of Clean; it may expect"),
        ({"text": "x", "expects": {"Clean": "better"}}, "and `pairs` or a `correlation`"),
        ({"text": "x", "expects": {}, "pairs": AB}, "needs metrics in `expects`"),
        ({"text": "x", "expects": ["Clean"]}, "hypotheses.H1.expects must be a section of keys"),
        (
            {"text": "x", "expects": {"Clean": None}, "pairs": ["a"]},
            "hypotheses.H1.pairs must be a list",
        ),
        ({"text": "x", "expects": {"Clean": None}, "pairs": [["a", "c"]]}, "row of the study 'c'"),
        (
            {"text": "x", "expects": {"Clean": None}, "correlation": "r"},
            "H1.correlation must be one of largest",
        ),
        ({"text": "x", "expected": {}}, "unknown study key 'hypotheses.H1.expected'"),
        (
            {
                "text": "x",
                "expects": {"X": None},
                "pairs": [["a", "b"]] * 2,
                "against": [["a", "b"]],
            },
            "has 2 pairs and 1 against them",
        ),
    ],
)
def test_a_hypothesis_that_makes_no_sense_gets_one_clear_line(tmp_path, given, said):
    groups = {"g": {"seeds": [10], "rows": {"a": {}, "b": {}}}}
    fields = {"recipe": "x", "data": ["x"], "suites": {}, "groups": groups}
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(fields | {"hypotheses": {"H1": given}}))
    with pytest.raises(InputError, match=said):
        load_study(path)
    fine = {"text": "x", "expects": {"Clean": None}, "pairs": AB}
    path.write_text(yaml.safe_dump(fields | {"hypotheses": {"H1": fine}}))
    assert load_study(path).hypotheses[0].pairs == (("a", "b"),)


def test_control_where_it_is_to_act():
    gains = PIDGains(p=0.6, i=0.3, beta=0.5)
    none = PIDGains(beta=0.5)
    assert gains_by_layer(gains, 4, act="early") == [gains, gains, none, none]
    assert gains_by_layer(gains, 4, act="late") == [none, none, gains, gains]
    every = gains_by_layer(gains, 7, act="every-3")
    assert [layer for layer, own in enumerate(every) if own == gains] == [3, 6]
    averaged = gains_by_layer(gains, 4, average=True)
    assert [own.i for own in averaged[1:]] == [0.3, 0.15, pytest.approx(0.1)]
    half = as_feedback("0.6,0.3,0.1,0.5,implicit,step=0.5")
    stepped = gains_by_layer(half, 3, average=True, act="every-1")
    assert [own.i for own in stepped[1:]] == [0.3, 0.15] and stepped[2].step == 0.5
    for act in ("middle", "every-0", "every-"):
        with pytest.raises(InputError, match="act must be early, late or every-K"):
            gains_by_layer(gains, 4, act=act)


def test_a_row_takes_every_way_to_write_gains(tmp_path):
    """Another discretisation, or another method: what the row says is what the network has."""
    texts = ["0.8,0.5,0.05,0.1,implicit", "0.8,0.5,0.05,0.1,step=0.5", "xsa", "laplacian"]
    path = tmp_path / "rows.yaml"
    rows = {f"row{n}": {"gains": text} for n, text in enumerate(texts)}
    rows["late"] = {"gains": texts[0], "act": "late"}
    path.write_text(yaml.safe_dump(FIELDS | {"groups": {"g": GROUP | {"rows": rows}}}))
    size = [f"model.options.{o}" for o in ("embed_dim=32", "num_heads=2", "depth=12")]
    found = {
        row.name: load_recipe("digits/pid.yaml", [*size, *row.overrides])
        for row in load_study(path).rows
    }
    models = {
        name: build_classifier(own.to_dict()["model"], num_classes=3, channels=1, image_size=8)
        for name, own in found.items()
    }
    assert [models[f"row{n}"].gains for n in range(4)] == [as_feedback(t) for t in texts]
    assert models["late"].gains[-1] == as_feedback(texts[0])


def test_the_plan_takes_groups_and_seeds(tmp_path, shipped):
    (tmp_path / "tiny-imagenet-100").mkdir()
    plan = make_plan(tmp_path / "out", study=STUDY, data=tmp_path, only=["main"], seeds=2)
    trained = [job.arguments["run"].name for job in plan.jobs if job.kind == "train"]
    assert trained[:4] == [f"{name}-seed10" for name in ("softmax", "p", "pid", "pid_learned")]
    assert len(trained) == 8 and trained[4] == "softmax-seed11"
    kinds = [job.kind for job in plan.jobs[:5]]
    assert kinds == ["train", "analyze", "evaluate", "evaluate", "publish"]
    suites = [job.arguments["suite"] for job in plan.jobs[2:4]]
    assert all(load_suite(name).rows for name in suites)
    whole = make_plan(tmp_path / "out", study=STUDY, data=tmp_path)
    runs = [job.arguments["run"] for job in whole.jobs if job.kind == "train"]
    assert len(runs) == len(set(runs)) == len({(r.name, s) for r in shipped.rows for s in r.seeds})


def test_a_run_whose_records_came_from_elsewhere_is_not_made_again(tmp_path):
    (tmp_path / "tiny-imagenet-100").mkdir()
    out, asked = tmp_path / "out", {"study": STUDY, "data": tmp_path, "only": ["main"]}
    records = out / "results" / "tiny-imagenet-100"
    records.mkdir(parents=True)
    (records / "p-seed10.jsonl").touch()
    trained = [j.arguments["run"].name for j in make_plan(out, **asked, seeds=1).jobs[::5]]
    assert trained == ["softmax-seed10", "pid-seed10", "pid_learned-seed10"]
    (out / "runs" / "p-seed10").mkdir(parents=True)  # made here, so judged by its folder
    assert len(make_plan(out, **asked, seeds=1).jobs[::5]) == 4
    (out / "runs" / "p-seed10").rmdir()
    for name in ("softmax", "pid", "pid_learned"):
        (records / f"{name}-seed10.jsonl").touch()
    assert reproduce(out, **asked, seeds=1, is_shown=False).lines == ()


@pytest.mark.slow
def test_what_the_study_cannot_do_gets_one_clear_line(tmp_path):
    with pytest.raises(InputError, match="unknown group of the study 'mian'; did you mean 'main'"):
        make_plan(tmp_path, study=STUDY, data=tmp_path, only=["mian"])
    with pytest.raises(InputError, match="no data, say where with --data DIR"):
        reproduce(tmp_path / "out", study=STUDY)
    with pytest.raises(InputError, match="no study at imagenet; give a YAML file, such as study/"):
        make_plan(tmp_path, study="imagenet")
    with pytest.raises(InputError, match="unknown scale 'study'"):
        make_plan(tmp_path, scale="study")
    (tmp_path / "tiny-imagenet-100").mkdir()
    for minutes in (-1, 0, float("nan")):
        for dry_run in (False, True):
            with pytest.raises(InputError, match="minutes must be positive, got"):
                reproduce(tmp_path, study=STUDY, data=tmp_path, minutes=minutes, dry_run=dry_run)


GROUP = {"seeds": [0], "rows": {"a": {}}}
FIELDS = {"recipe": "x", "data": [], "suites": {"study": None}, "groups": {"g": GROUP}}


def with_row(row, name="a"):
    return FIELDS | {"groups": {"g": GROUP | {"rows": {name: row}}}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (FIELDS | {"suite": {}}, "unknown study key 'suite'; did you mean 'suites'"),
        ({k: v for k, v in FIELDS.items() if k != "recipe"}, "recipe is missing; study keys"),
        ([1], "study key must be a section of keys, got"),
        (FIELDS | {"groups": ["g"]}, "groups must be a section of keys"),
        (FIELDS | {"groups": {"g": {"rows": {"a": {}}}}}, "groups.g.seeds is missing; study keys"),
        (FIELDS | {"groups": {"g": GROUP | {"seeds": []}}}, "groups.g.seeds must be numbers"),
        (FIELDS | {"groups": {"g": GROUP | {"seeds": 3}}}, "groups.g.seeds must be a list"),
        (
            FIELDS | {"groups": {"g": GROUP | {"images": "both"}}},
            "groups.g.images must be one of odd, even, all",
        ),
        (
            FIELDS | {"groups": {"g": GROUP | {"rows": ["a"]}}},
            "groups.g.rows must be a section of keys",
        ),
        (
            FIELDS | {"groups": {"g": GROUP | {"rows": {"a": {"gain": "1,0,0"}}}}},
            "unknown study key 'groups.g.rows.a.gain'; did you mean 'groups.g.rows.a.gains'",
        ),
        (FIELDS | {"suites": ["study"]}, "suites must be a section of keys"),
        (FIELDS | {"suites": {"study": 0}}, "suites.study.limit must be at least 1, got 0"),
        (
            FIELDS | {"suites": {"study": {"limits": 1}}},
            "study key 'suites.study.limits'; did you mean",
        ),
        (FIELDS | {"suites": {"study": {"seeds": 0}}}, "suites.study.seeds must be a list"),
        (FIELDS | {"suites": {"study": {"domain": "pixels"}}}, "must be one of pixel, normalized"),
        (FIELDS | {"suites": {"study": {"curve": "fgsm"}}}, "needs both `curve` and `eps`"),
        (FIELDS | {"suites": {"a/x.yaml": 1, "b/x.yaml": 1}}, "two suites are called x"),
        (FIELDS | {"overrides": "seed=1"}, "overrides must be a list, got 'seed=1'"),
        (FIELDS | {"data": "tiny-imagenet-100"}, "data must be a list, got"),
        (FIELDS | {"recipe": 3}, "recipe must be text, got 3"),
        (FIELDS | {"primary": {"rows": ["a"]}}, "primary.metrics is missing"),
        (FIELDS | {"primary": ["a"]}, "primary must be a section of keys"),
        (FIELDS | {"contrasts": [["a"]]}, "contrasts must have 2 entries, got"),
        (FIELDS | {"choose": {"groups": ["g"]}}, "choose.metrics is missing"),
        (FIELDS | {"choose": {"groups": ["gg"], "metrics": []}}, "unknown group of the study 'gg'"),
        (
            FIELDS | {"choose": {"groups": ["g"], "without": ["b"], "metrics": ["Clean"]}},
            "unknown row of the groups to choose from 'b'",
        ),
        (FIELDS | {"contrasts": 3}, "contrasts must be a list, got 3"),
        (FIELDS | {"contrasts": [["a", "b"]]}, "unknown row of the study 'b'"),
        (FIELDS | {"groups": {"g": GROUP | {"set": "seed=1"}}}, "groups.g.set must be a list"),
        (
            FIELDS | {"groups": {"g": GROUP | {"depth": "x"}}},
            "groups.g.depth must be a whole number",
        ),
        (FIELDS | {"groups": {"g": GROUP | {"seeds": [-1]}}}, "groups.g.seeds must be numbers"),
        (FIELDS | {"groups": {"g": GROUP | {"images": []}}}, "g.images must be one of odd, even"),
        (FIELDS | {"groups": {1: GROUP}}, "a group is named by letters, digits, .* got 1"),
        (with_row({}, name="a/b"), "a row is named by letters, digits, dots, _ and -, got 'a/b'"),
        (with_row({}, name=1), "a row is named by letters, digits, dots, _ and -, got 1"),
        (with_row({"gains": 0.4}), "rows.a.gains must be text, got 0.4"),
        (with_row({"gains": "xsaa"}), "unknown preset 'xsaa'; did you mean 'xsa'"),
        (with_row({"gains": "deit,step=2"}), r"step must be in \(0, 1\]"),
        (with_row({"gains": "0.4,0,0", "act": 3}), "rows.a.act must be text, got 3"),
        (with_row({"act": "late"}), "row a has `act` and no `gains`"),
        (with_row({"learn": True}), "row a has `learn` and no `gains`"),
        (with_row({"set": "seed=1"}), "rows.a.set must be a list, got"),
        (
            FIELDS | {"groups": {"g": GROUP, "h": GROUP | {"set": ["optim.lr=1"]}}},
            "row a differs between groups g and h; name it anew",
        ),
        (
            FIELDS | {"recipe": "digits/pid.yaml", "suites": {"stuby": None}},
            "unknown suite 'stuby'; did you mean 'study'",
        ),
    ],
)
def test_a_study_that_is_written_wrong_gets_one_clear_line(tmp_path, fields, message):
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(fields))
    with pytest.raises(InputError, match=message):
        study.study_plan(tmp_path / "out", data=None, study=load_study(path))


def test_a_study_that_is_no_yaml_is_said_to_be_none(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("groups: [")
    with pytest.raises(InputError, match="is not YAML") as refused:
        load_study(path)
    assert "\n" not in str(refused.value)


def test_a_row_may_be_in_several_groups(tmp_path):
    """With seeds of each group's own; it is planned once for each seed."""
    groups = {"g": GROUP, "h": GROUP | {"seeds": [0, 1]}}
    path = tmp_path / "shared.yaml"
    path.write_text(yaml.safe_dump(FIELDS | {"recipe": "digits/pid.yaml", "groups": groups}))
    plan = study.study_plan(tmp_path / "out", data=None, study=load_study(path))
    assert [j.id for j in plan.jobs if j.kind == "train"] == ["train.a-seed0", "train.a-seed1"]


def test_a_candidate_is_chosen_from_the_rows_that_are_not_left_out(tmp_path):
    groups = {"g": GROUP | {"rows": {"a": {}, "b": {}, "c": {}}}}
    choose = {"groups": ["g"], "without": ["b"], "metrics": ["Clean"]}
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(FIELDS | {"groups": groups, "choose": choose}))
    assert load_study(path).choice.rows == ("a", "c")


def test_a_measure_of_some_seeds_leaves_out_the_others(tmp_path):
    suites = {"study": None, "autoattack": {"limit": 8, "seeds": [7]}}
    fields = {"recipe": "digits/pid.yaml", "suites": suites}
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(FIELDS | fields | {"groups": {"g": GROUP | {"seeds": [7, 3]}}}))
    plan = study.study_plan(tmp_path / "out", data=None, study=path)
    found = {job.id.removeprefix("evaluate.") for job in plan.jobs if job.kind == "evaluate"}
    assert found == {"a-seed7.study", "a-seed7.autoattack", "a-seed3.study"}


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    small = {"rows": ["clean", {"fgsm": {"eps": 0.05}}, {"corruptions": {"names": ["fog"]}}]}
    sampled = {"rows": [{"spsa": {"eps": 0.05, "steps": 2, "samples": 2}}]}
    for name, rows in (("small", small), ("sampled", sampled)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(rows))
    (tmp_path / "budgets.yaml").write_text(yaml.safe_dump(small))
    suites = read_measures(
        {
            str(tmp_path / "small.yaml"): None,
            str(tmp_path / "sampled.yaml"): 8,
            str(tmp_path / "budgets.yaml"): {"domain": "normalized", "limit": 16},
            "curve": {"curve": "fgsm,pgd", "eps": "1,2", "limit": 8, "seeds": [10]},
            "later": {"curve": "fgsm", "eps": "3", "limit": 8, "seeds": [11]},
        }
    )
    monkeypatch.setattr(study, "LOOK", 8)
    recipe = tmp_path / "tiny.yaml"
    fields = tiny_recipe("schedule.epochs=1", "train.ema=null", "model.gains=null").to_dict()
    recipe.write_text(yaml.safe_dump(fields))
    rows = [
        StudyRow(name=name, group="main", overrides=overrides, seeds=(10,), suites=suites)
        for name, overrides in {
            "softmax": (),
            "leaky": ("model.gains=0.4,0.1,0,1", "model.options.integral_leak=0.5"),
        }.items()
    ]
    return StudyPlan(name="tiny", recipe=str(recipe), data=(), rows=tuple(rows))


@pytest.mark.slow
def test_a_study_is_trained_measured_published_and_not_done_twice(tmp_path, tiny):
    plan = study.study_plan(tmp_path / "out", data=None, study=tiny)
    setting = JobSetting(device="cpu")
    none = run_plan(plan, setting, is_shown=False, minutes=0.01)
    assert {line.state for line in none.lines} == {"waiting"}
    found = run_plan(plan, setting, is_shown=False, minutes=60)
    assert not found.failed and {line.state for line in found.lines} == {"done"}
    before = {run.name: len(results.read(run)) for run in (tmp_path / "out" / "runs").iterdir()}
    again = run_plan(plan, setting, is_shown=False)
    assert {line.state for line in again.lines} == {"done"}
    assert before == {r.name: len(results.read(r)) for r in (tmp_path / "out" / "runs").iterdir()}
    check_recipes(plan)
    longer = tuple(replace(row, overrides=("schedule.epochs=2",)) for row in tiny.rows)
    other = study.study_plan(tmp_path / "out", data=None, study=replace(tiny, rows=longer))
    with pytest.raises(InputError, match=r"softmax-seed10 holds a run of another recipe"):
        check_recipes(other)  # a second study of the same rows in this folder
    (made,) = read_studies([tmp_path / "out" / "results"])
    assert [v.name for v in made.variants] == ["softmax", "leaky"]
    page = write_results([tmp_path / "out" / "results"], tmp_path / "docs").others[0].read_text()
    measured = {(r.settings["row"], r.settings["domain"]) for r in made.runs[0].of("robustness")}
    assert {("fgsm@2/255", "pixel"), ("pgd@1/255", "pixel"), ("fgsm", "normalized")} <= measured
    assert "FGSM, normalized, 16 images" in page
    assert "integral leak 0.5" in page and "SPSA, 8 images" in page and "similarity" in page
