"""Records listed and filtered."""

import csv
import io

import pytest

from pidformer import results
from pidformer.lab.results import COLUMNS, ResultsKnobs, as_csv, chosen, csv_file, lines, report_of
from pidformer.lab.runs import Shelf


@pytest.fixture(scope="module")
def runs(home, tmp_path_factory):
    import shutil

    folder = tmp_path_factory.mktemp("runs")
    for model in ("softmax", "pid"):
        shutil.copytree(home / f"digits-{model}", folder / model)
        for row, top1 in (("clean", 90.0), ("=fgsm", 40.5)):
            settings = {"row": row, "model": model, "data_hash": "0", "weights": "w" + model}
            settings |= {"threat": "None", "domain": "pixel"}
            metrics = {"top1": top1, "images": 100.0, "seconds": float("nan")}
            results.append(
                folder / model,
                results.Record(kind="robustness", metrics=metrics, settings=settings),
            )
    return Shelf.of([folder], home).runs


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


def test_the_download_holds_the_lines_and_no_formula(runs, tmp_path):
    found = lines(runs, ResultsKnobs(kind="robustness"))
    head, *rows = csv.reader(io.StringIO(as_csv(found)))
    assert tuple(head) == COLUMNS and len(rows) == len(found)
    assert {row[2] for row in rows} == {"clean", "'=fgsm"}
    assert csv_file(found, tmp_path) == csv_file(found, tmp_path)


def test_only_the_last_record_of_training_is_listed(runs):
    steps = {line[5] for line in lines(runs, ResultsKnobs(runs="pid", kind="train"))}
    assert len(steps) == 1


@pytest.mark.slow
def test_the_report_is_that_of_the_report_command(runs, tmp_path):
    made = report_of(runs, tmp_path)
    assert made.runs == 2 and "Table 1" in made.page.read_text()
