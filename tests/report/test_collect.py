import pytest

import pidformer as pf
from pidformer import results
from pidformer.report.collect import check_twins, collect, inputs_hash
from tests.report.records import robustness, twins, write_run


def test_runs_are_found_below_and_softmax_comes_first(tmp_path):
    twins(tmp_path / "deep" / "runs")
    (tmp_path / "deep" / "notes").mkdir()
    runs = collect([tmp_path, tmp_path / "deep"])  # the same ones twice
    labels = [run.label for run in runs]
    assert labels == ["softmax-seed0", "softmax-seed1", "pid-seed0", "pid-seed1"]
    assert [len(run.gains) for run in runs] == [0, 0, 1, 1]
    check_twins(runs)


def test_a_record_that_says_little_is_completed_from_the_recipe(tmp_path):
    (run,) = collect([write_run(tmp_path / "pid-seed3", "pid", 3)])
    about = run.of("train")[0].settings
    assert about["train_seed"] == 3 and about["gains"] == str(run.gains[0])
    assert about["label"] == "pid-seed3" and len(about["recipe"]) == 16


def test_twins_share_a_recipe_whatever_they_log(tmp_path):
    one = write_run(tmp_path / "a", "pid", 0)
    other = write_run(tmp_path / "b", "softmax", 1, overrides=["data.workers=3"])
    first, second = collect([one, other])
    recipes = [run.of("train")[0].settings["recipe"] for run in (first, second)]
    assert recipes[0] == recipes[1]


def test_other_recipes_are_refused_with_the_difference(tmp_path):
    write_run(tmp_path / "a", "softmax", 0)
    write_run(tmp_path / "b", "pid", 0, overrides=["optim.lr=0.5"])
    with pytest.raises(pf.InputError, match=r"optim.lr: 0.004 -> 0.5.*--mixed"):
        check_twins(collect([tmp_path]))


def test_other_data_is_refused_with_the_difference(tmp_path):
    write_run(tmp_path / "a", "softmax", 0, rows={"clean": 0.9})
    write_run(tmp_path / "b", "pid", 0, rows={"clean": 0.9}, data_hash="e" * 16)
    with pytest.raises(pf.InputError, match=r"different data.*dddd.*eeee.*--mixed"):
        check_twins(collect([tmp_path]))


def test_a_model_without_a_recipe_is_no_twin(tmp_path):
    write_run(tmp_path / "a", "softmax", 0)
    (tmp_path / "timm-deit").mkdir()
    (tmp_path / "timm-deit" / "recipe.yaml").write_text("model: {gains: null}")
    record = robustness(tmp_path / "timm-deit", "clean", 0.5)
    (tmp_path / "timm-deit" / "recipe.yaml").unlink()
    results.append(tmp_path / "timm-deit", record)
    with pytest.raises(pf.InputError, match="no recipe to compare"):
        check_twins(collect([tmp_path]))


def test_measurements_of_earlier_weights_are_left_out(tmp_path):
    folder = write_run(tmp_path / "a", "pid", 0, rows={"clean": 0.5, "fgsm": 0.3}, weights="old")
    results.append(folder, robustness(folder, "clean", 0.9, weights="new"))
    (run,) = collect([folder])
    assert run.left_out == 2 and len(run.of("robustness")) == 1
    assert run.of("robustness")[0].metrics["top1"] == 90


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(pf.InputError, match="no folder"):
        collect([tmp_path / "gone"])
    with pytest.raises(pf.InputError, match="no run in"):
        collect([tmp_path])
    with pytest.raises(pf.InputError, match="at least one"):
        collect([])


def test_the_hash_follows_the_records(tmp_path):
    folder = write_run(tmp_path / "a", "pid", 0)
    before = inputs_hash([tmp_path])
    assert before == inputs_hash([tmp_path])
    results.append(folder, robustness(folder, "clean", 0.9))
    assert inputs_hash([tmp_path]) != before
