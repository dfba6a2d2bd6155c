"""Top-5, corruptions by type, budgets, domains and layers on the page, from real evaluations."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from scipy import stats

from pidformer import results
from pidformer.evaluation.images import run_suite
from pidformer.evaluation.setup import Setup
from pidformer.evaluation.suite import curve_suite, load_suite
from pidformer.report.publish import publish, shrink
from pidformer.report.table_view import minus
from pidformer.results import Record
from pidformer.runs.open import open_subject
from study.classification import classification_sections
from study.comparisons import compare_all
from study.image_metrics import top5_metrics
from study.image_sections import curves_section, similarity_section, table1_section
from study.records import read_studies
from tests.report.fresh import classifiers
from tests.study.made import cells, page_of, study_of

SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Runs with a suite, a curve, and the suite again in the normalised domain."""
    root = tmp_path_factory.mktemp("details")
    runs = classifiers(root / "runs", seeds=SEEDS)
    for run in runs:
        settings = {"location": "digits", "device": torch.device("cpu"), "limit": 40}
        setup = Setup(subject=open_subject(run), **settings)
        run_suite(setup, curve_suite(["fgsm"], [8 / 255, 24 / 255]), is_shown=False)
        other = replace(setup, domain="normalized")
        run_suite(other, load_suite(root / "runs" / "tiny.yaml"), is_shown=False)
    publish(runs, root / "results" / "digits")
    (study,) = read_studies([root / "results"])
    return runs, study


def numbers(runs, variant, metric, **settings):
    """A metric of each seed, from the run folders themselves."""
    chosen = sorted(run for run in runs if run.name.startswith(f"{variant}-"))
    found = []
    for run in chosen:
        own = [
            r.metrics[metric]
            for r in results.read(run)
            if all(r.settings.get(key) == value for key, value in settings.items())
        ]
        assert len(own) == 1
        found += own
    return np.array(found)


def over_seeds(gain):
    low, high = stats.t.interval(0.95, len(gain) - 1, gain.mean(), stats.sem(gain))
    return minus(f"{gain.mean():+.2f} [{low:+.2f}, {high:+.2f}]")


def section(study, title):
    return next(s for s in classification_sections(study) if s.title == title)


def test_top5_is_the_mean_over_seeds_and_its_difference_is_over_seeds(measured):
    runs, study = measured
    found = section(study, "Top-5")
    gain = np.subtract(
        *(numbers(runs, v, "top5", row="fgsm", domain="pixel") for v in ("pid", "softmax"))
    )
    place = cells(found.body[2], "")[3:].index("FGSM, 40 images")
    assert cells(found.body[4], "pid minus softmax")[1 + place].strip("*") == over_seeds(gain)


def test_table_1_sets_both_accuracies_side_by_side_and_marks_what_is_resolved(measured):
    runs, study = measured
    (found,) = table1_section(study)
    names = [(v, name) for v in ("softmax", "pid") for name in ("top1", "top5")]
    values = [numbers(runs, v, name, row="fgsm", domain="pixel") for v, name in names]
    said = cells(found.body[1], "FGSM, 40 images")[1:]
    wanted = [f"{one.mean():.2f}" for one in values]
    assert [cell.replace("*", "").split(" / ") for cell in said] == [wanted[:2], wanted[2:]]
    compared = compare_all(study, top5_metrics(study.runs))
    top5 = next(one for one in compared if one.metric.title == "FGSM, 40 images")
    assert said[1].endswith("**") == top5.is_resolved and "**" not in said[0]
    assert "Clean, normalized" not in found.body[1] and "FGSM, normalized" in found.body[1]


def test_each_type_of_corruption_has_the_mean_over_its_severities(measured):
    runs, study = measured
    found = section(study, "Corruptions by type")
    gain = sum(
        numbers(runs, "pid", "top1", row=f"corruption/fog/{s}", domain="pixel")
        - numbers(runs, "softmax", "top1", row=f"corruption/fog/{s}", domain="pixel")
        for s in (1, 3)
    )
    assert cells(found.body[1], "fog")[2].strip("*") == over_seeds(gain / 2)
    assert "pid" not in cells(found.body[1], "")[1:2] and cells(found.body[1], "contrast")
    assert found.findings[0].startswith("**pid** minus softmax (3 seeds). ")


def test_another_domain_has_tables_of_its_own(measured):
    _, study = measured
    first = classification_sections(study)[0].body
    place = first.index("In the normalized domain, sample of 40 images:")
    heads = [cells(table, "")[3:] for table in (first[place - 3], first[place + 1])]
    assert all("normalized" not in title for title in heads[0])
    assert heads[1] and all("normalized" in title for title in heads[1])


def test_a_table_names_the_seeds_that_it_is_about(measured):
    _, study = measured
    kept = [
        replace(run, records=tuple(r for r in run.records if r.settings.get("domain") == "pixel"))
        if run.seed or run.variant == "softmax"
        else run
        for run in study.runs
    ]
    body = classification_sections(study.only(kept))[0].body
    table = body[body.index("In the normalized domain, sample of 40 images:") + 1]
    assert cells(table, "pid")[2] == "0" and "| softmax |" not in table
    assert cells(body[2], "pid")[2] == "0, 1, 2"


def test_a_curve_has_a_table_a_panel_and_commands_that_make_it_again(measured):
    runs, study = measured
    (found,) = curves_section(study)
    gain = np.subtract(*(numbers(runs, v, "top1", row="fgsm@8/255") for v in ("pid", "softmax")))
    row = cells(found.body[1], "FGSM 8/255, 40 images")
    assert row[-1].strip("*") == over_seeds(gain)
    (panel, words), (ahead, _) = found.panels
    figure = Figure()
    ahead.draw(figure)
    line = next(line for line in figure.axes[0].lines if line.get_label() == "pid")
    assert line.get_xdata()[0] == pytest.approx(8) and line.get_ydata()[0] == pytest.approx(
        gain.mean()
    )
    figure = Figure()
    panel.draw(figure)
    line = next(line for line in figure.axes[0].lines if line.get_label() == "pid")
    rows = ({"row": "clean", "domain": "pixel"}, {"row": "fgsm@8/255"}, {"row": "fgsm@24/255"})
    wanted = [numbers(runs, "pid", "top1", **settings).mean() for settings in rows]
    assert np.allclose(line.get_xdata(), [0, 8, 24]) and np.allclose(line.get_ydata(), wanted)
    assert words == "Accuracy by budget under FGSM"
    text = page_of(study)
    assert "`pidformer evaluate RUN --data DATA --curve fgsm --eps 24 --limit 40`" in text
    assert "--suite curve" not in text
    flat = [
        replace(run, records=tuple(r for r in run.records if "@" not in str(r.settings.get("row"))))
        for run in study.runs
    ]
    assert curves_section(study.only(flat)) == []


def test_layers_are_means_over_the_seeds_that_were_looked_into():
    study = study_of({"softmax": (1, 1, 1), "pid": (2, 2, 2)})
    assert similarity_section(study, {"g": ["softmax", "pid"]}) == []
    runs = []
    for place, run in enumerate(study.runs):
        blocks = [0.1 * place, 0.2 * place, 0.3 * place]
        details = {"similarity": {"blocks": blocks, "patch": [9, 9, 9]}, "other": [1]}
        details |= {"effective_rank": [10 * x for x in blocks]} if run.variant == "pid" else {}
        settings = {"what": "token_similarity", "label": run.label}
        record = Record(kind="analysis", metrics={}, settings=settings, details=details)
        runs.append(replace(run, records=tuple(shrink([record]) if place != 5 else ())))
    (found,) = similarity_section(study.only(runs), {"g": ["softmax", "pid"], "none": ["x"]})
    lines = []
    for panel, _ in found.panels:
        figure = Figure()
        panel.draw(figure)
        lines += [(line.get_label(), *line.get_ydata()) for line in figure.axes[0].lines]
    assert [line[0] for line in lines] == ["softmax", "pid", "pid"]
    assert np.allclose(
        [line[1:] for line in lines], [[0.1, 0.2, 0.3], [0.35, 0.7, 1.05], [3.5, 7, 10.5]]
    )
