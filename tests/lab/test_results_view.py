"""Records listed and filtered."""

import csv
import io
import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from pidformer import results
from pidformer.lab.results_view import (
    COLUMNS,
    NONE,
    ResultsKnobs,
    as_csv,
    chosen,
    csv_file,
    lines,
    python_for,
    report_command,
    report_of,
)
from pidformer.lab.runs import Catalogue

RESULTS = Path(__file__).parents[2] / "results"
"""The published records of the repository."""


@pytest.fixture(scope="module")
def runs(home, tmp_path_factory):
    import shutil

    folder = tmp_path_factory.mktemp("runs")
    for model in ("softmax", "pid"):
        shutil.copytree(home / f"digits-{model}", folder / model)
        kept = [r for r in results.read(folder / model) if r.kind in ("train", "evaluate")]
        results.rewrite(folder / model, kept)
        for row, top1 in (("clean", 90.0), ("=fgsm", 40.5)):
            settings = {"row": row, "model": model, "data_hash": "0", "weights": "w" + model}
            settings |= {"threat": "None", "domain": "pixel"}
            metrics = {"top1": top1, "images": 100.0, "seconds": float("nan")}
            results.append(
                folder / model,
                results.Record(kind="robustness", metrics=metrics, settings=settings),
            )
    return Catalogue([folder], home).runs


def test_every_finite_metric_is_a_line(runs):
    found = lines(runs, ResultsKnobs(kind="robustness"))
    assert len(found) == 2 * 2 * 2  # runs, rows, finite metrics
    assert {line[3] for line in found} == {"top1", "images"}


def test_filters_narrow_the_lines(runs):
    assert list(chosen(runs, ResultsKnobs(runs="pid"))) == ["pid"]
    assert set(chosen(runs, ResultsKnobs(runs="nobody"))) == {"softmax", "pid"}
    (line,) = lines(runs, ResultsKnobs(runs="pid", kind="robustness", find="FGSM top1"))
    assert line[4] == 40.5
    assert lines(runs, ResultsKnobs(find="no such thing")) == []
    assert lines(runs, ResultsKnobs(runs=NONE)) == []


def test_a_run_whose_name_has_commas_is_chosen_alone(runs):
    gains = replace(runs[1], folder=runs[1].folder.with_name("pid-0.4,0.1,0.05"))
    knobs = ResultsKnobs(runs="pid-0.4%2C0.1%2C0.05")
    assert chosen([*runs, gains], knobs) == {"pid-0.4,0.1,0.05": gains}


def test_the_command_of_a_report_is_one_that_works(runs, tmp_path):
    twins = report_command(runs)
    assert twins.startswith("pidformer report ") and "--mixed" not in twins
    other = replace(runs[0], recipe=runs[0].recipe | {"data": runs[0].recipe["data"] | {"size": 9}})
    assert report_command([other, runs[1]]).endswith(" --mixed")
    spaced = replace(runs[0], folder=tmp_path / "my run")
    assert shlex.split(report_command([spaced])) == ["pidformer", "report", str(spaced.folder)]


def test_the_twin_of_a_run_has_other_gains_before_it_has_another_seed(runs, home, monkeypatch):
    softmax, pid = runs
    again = replace(softmax, folder=softmax.folder.with_name("softmax-seed1"))
    other = pid.recipe | {"data": pid.recipe["data"] | {"name": "cifar10"}}
    foreign = replace(pid, folder=pid.folder.with_name("elsewhere"), recipe=other)
    catalogue = Catalogue([], home)
    catalogue.__dict__["runs"] = [softmax, again, foreign, pid]
    names = ["softmax", "softmax-seed1", "elsewhere", "pid"]
    assert catalogue.twin("softmax", names) == "pid"
    assert catalogue.twin("pid", names) == "softmax"
    assert catalogue.twin("softmax", names[:3]) == "softmax-seed1"
    assert catalogue.twin("softmax", ["softmax"]) is None


def test_the_download_holds_the_lines_and_no_formula(runs, tmp_path):
    found = lines(runs, ResultsKnobs(kind="robustness"))
    head, *rows = csv.reader(io.StringIO(as_csv(found)))
    assert tuple(head) == COLUMNS and len(rows) == len(found)
    assert {row[2] for row in rows} == {"clean", "'=fgsm"}
    assert csv_file(found, tmp_path) == csv_file(found, tmp_path)


def test_only_the_last_record_of_training_is_listed(runs):
    steps = {line[5] for line in lines(runs, ResultsKnobs(runs="pid", kind="train"))}
    (pid,) = [run for run in runs if run.label == "pid"]
    assert steps == {max(record.step for record in pid.of("train"))}


@pytest.mark.slow
def test_the_report_is_that_of_the_report_command(runs, tmp_path):
    made = report_of(runs, tmp_path)
    assert json.loads((made / "report.json").read_text())["runs"] == 2
    assert "Table 1" in (made / "report.html").read_text() and (made / "report.md").exists()


@pytest.mark.slow
def test_published_runs_have_a_report_a_command_and_python_that_work(home, tmp_path, capsys, run):
    published = Catalogue([RESULTS / "finetune"], home).runs
    taken = [each for each in published if each.seed == 100]
    made = report_of(taken, tmp_path)
    assert json.loads((made / "report.json").read_text())["runs"] == len(taken) == 2
    assert report_of(taken[:1], tmp_path) != made
    code, out, _ = run(*shlex.split(report_command(taken))[1:], "--out", tmp_path / "again")
    assert code == 0 and "2 runs" in out
    capsys.readouterr()
    exec(python_for(taken), {})
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()} == {
        "softmax-seed100",
        "pid-seed100",
    }


@pytest.mark.slow
def test_the_report_is_made_once_for_its_records(runs, tmp_path, monkeypatch):
    """Drawing takes seconds, and memory that each thread keeps."""
    before = report_of(runs, tmp_path)
    monkeypatch.setattr("pidformer.lab.results_view.write_report", None)
    assert report_of(runs, tmp_path) == before
    with pytest.raises(TypeError):
        report_of(runs[:1], tmp_path)
