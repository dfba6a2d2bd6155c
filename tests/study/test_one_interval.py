"""One pair of models has one interval: in `evaluate`, `report`, the demo and results.md."""

import json

import numpy as np
import pytest
from scipy import stats

from pidformer.cli import main
from pidformer.report.collect import collect
from pidformer.report.demo.models import MODELS, DemoModel, residual_verdict
from pidformer.report.publish import publish
from pidformer.report.table_view import minus
from pidformer.report.write import write_report
from pidformer.robustness.compare import Group, compare, group_runs
from pidformer.statistics import Crossed
from study.comparisons import difference_text
from study.records import read_studies
from tests.report.fresh import GAINS, classifiers
from tests.study.made import cells, outcomes, page_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("undrawn")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return classifiers(tmp_path_factory.mktemp("one") / "runs", seeds=(0, 1, 2))


def told(lines, row):
    (line,) = [line for line in lines if line["row"] == row and line["metric"] == "top-1"]
    (found,) = line["differences"].values()
    return Crossed(found["points"], found["low"], found["high"], found["p"], found["seeds"])


def rows_of(run):
    return {str(record.settings["row"]): record for record in run.of("robustness")}


def demo_headline(runs):
    """What the demonstration would say of these runs."""
    models = {}
    for name in GAINS:
        own = [run for run in collect(runs) if run.label.startswith(f"{name}-")]
        group = Group(MODELS[name], tuple({"clean": rows_of(run)["clean"]} for run in own))
        models[name] = DemoModel(name, group, ((0.5, 0.5),))
    return residual_verdict(models).headline


def test_four_places_give_the_same_interval(runs, tmp_path, capsys):
    gain = 100.0 * (outcomes(runs, "pid", "clean") * 1.0 - outcomes(runs, "softmax", "clean"))
    parts = gain.mean(1).var(ddof=1) / 3, gain.mean(0).var(ddof=1) / 40
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / 2 + parts[1] ** 2 / 39)
    half = stats.t.ppf(0.975, freedom) * np.sqrt(sum(parts))

    suite = str(runs[0].parent / "tiny.yaml")
    options = ["--suite", suite, "--limit", "40", "--device", "cpu", "--json"]
    with pytest.raises(SystemExit):
        main(["evaluate", *map(str, runs), *options])
    evaluated = told(json.loads(capsys.readouterr().out)["table"], "Clean")
    assert evaluated[:3] == pytest.approx((gain.mean(), gain.mean() - half, gain.mean() + half))

    (table,) = write_report(runs, tmp_path / "report").tables
    assert told(table["lines"], "Clean") == evaluated

    softmax, pid = group_runs([rows_of(run) for run in collect(runs)])
    assert compare(softmax, pid, "clean") == evaluated
    words = minus(f"{evaluated.mean:+.1f} points [{evaluated.low:+.1f}, {evaluated.high:+.1f}]")
    assert words in demo_headline(runs)

    published = tmp_path / "results" / "digits"
    publish(runs, published)
    (table,) = write_report([published], tmp_path / "again").tables
    assert told(table["lines"], "Clean") == evaluated  # from published records too
    (study,) = read_studies([published])
    shown = cells(page_of(study), "pid minus softmax")[1].strip("*")
    assert shown == difference_text(evaluated)


def test_corruptions_have_one_interval_too(runs, tmp_path):
    publish(runs, tmp_path / "results" / "digits")
    intervals = []
    for folders in (runs, [tmp_path / "results"]):
        (table,) = write_report(folders, tmp_path / "report").tables
        (line,) = [line for line in table["lines"] if line["metric"] == "mean error"]
        (found,) = line["differences"].values()
        intervals.append((found["points"], found["low"], found["high"]))
    assert intervals[0] == intervals[1]
    (study,) = read_studies([tmp_path / "results"])
    points, low, high = intervals[0]
    shown = Crossed(-points, -high, -low, 0.5, 3)  # accuracy, not error
    assert difference_text(shown) in page_of(study)
