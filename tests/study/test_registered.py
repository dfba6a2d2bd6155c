"""A registered study: group by group, on its half of the images, with what explains it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from scipy import stats

from pidformer import PIDGains, results
from pidformer.control import spectral_radius
from pidformer.report.panels import GOOD, GREY, save_panels
from pidformer.report.publish import publish
from pidformer.report.table_view import minus
from pidformer.results import Record
from study import classification, training_length
from study.classification import classification_sections
from study.comparisons import compare_all
from study.predictors import (
    MEASURED,
    RADIUS,
    prediction_section,
    worst_radius,
)
from study.records import load_registered, read_studies
from tests.report.fresh import classifiers
from tests.study.made import cells, outcomes, study_of


@pytest.mark.slow
def test_seeds_kept_for_confirming_are_judged_on_the_other_half_of_the_images(
    tmp_path, monkeypatch
):
    runs = classifiers(tmp_path / "runs", seeds=(0, 10))
    for run in runs:  # as if all images had been taken
        kept = []
        for r in results.read(run):
            settings = dict(r.settings) | {"limit": None}
            kept.append(
                Record(
                    kind=r.kind,
                    metrics=r.metrics,
                    settings=settings,
                    details=r.details,
                    step=r.step,
                )
            )
        results.rewrite(run, kept)
    publish(runs, tmp_path / "results" / "digits")
    publish(runs, tmp_path / "results" / "tiny-imagenet-100")
    unregistered, study = read_studies([tmp_path / "results"])
    titles = [section.title for section in classification_sections(unregistered)]
    assert titles == ["", "Top-5", "Corruptions by type"]
    first, whole, asked, _, confirmed, *_, searched = classification_sections(study)
    titles = [section.title for section in (first, whole, asked, searched)]
    assert titles == ["Primary comparisons", "All images (post hoc)", "Hypotheses", "Searched"]
    assert searched.body[0].startswith(
        "Seeds below 10: what rows were chosen by; they report nothing. Every second image (0, 2,"
    )
    both = [
        outcomes([r for r in runs if r.name.endswith("seed10")], name, "clean")[0]
        for name in ("softmax", "pid")
    ]
    wanted = minus(f"{100 * (both[1].mean() - both[0].mean()):+.2f} [")
    assert cells(whole.body[1], "pid minus softmax")[1].startswith(wanted)
    halves = [100 * both[0][half::2].mean() for half in (0, 1)]
    words = "softmax is right on {:.1f} % of the even images and on {:.1f} % of the odd ones"
    assert words.format(*halves) in whole.body[0]
    plan = load_registered("tiny-imagenet-100")
    other = replace(plan, halves=plan.halves | {"main": 0})
    monkeypatch.setattr(classification, "load_registered", lambda _: other)
    even = classification_sections(study)[4]
    assert even.body[0] == "Every second image (0, 2, 4, ...) of the validation set."
    half = outcomes([r for r in runs if r.name.endswith("seed10")], "softmax", "clean")[0, 0::2]
    assert cells(even.body[1], "softmax")[3] == f"{100 * half.mean():.2f}"
    gain = outcomes([r for r in runs if r.name.endswith("seed10")], "pid", "clean")[0, 0::2]
    wanted = minus(f"{100 * (gain.mean() - half.mean()):+.2f} [")
    assert cells(even.body[3], "pid minus softmax")[1].startswith(wanted)
    late = outcomes([r for r in runs if r.name.endswith("seed10")], "softmax", "clean")
    early = outcomes([r for r in runs if r.name.endswith("seed0")], "softmax", "clean")
    assert cells(confirmed.body[1], "softmax")[3] == f"{100 * late[0, 1::2].mean():.2f}"
    assert cells(searched.body[1], "softmax")[3] == f"{100 * early[0, 0::2].mean():.2f}"


def test_a_registered_study_is_shown_by_group_and_its_claims_are_corrected_together(clean):
    values = {"softmax": (5, 6, 7, 6, 5), "p": (6, 7.1, 7.9, 7, 6)}
    values |= {"pid": (5.1, 5.8, 7.3, 5.9, 5.2), "pid_learned": (6.1, 7.0, 8.1, 7, 5.9)}
    values |= {"pi": (4, 6, 8, 6, 5), "pi_leaky": (5, 7.1, 8.9, 7, 6), "mine": (1, 2, 3, 4, 5)}
    study = replace(study_of(values, seeds=range(10, 15)), name="tiny-imagenet-100")
    first, whole, asked, _, main, gains, integral, mine = classification_sections(study)
    assert [s.title.split(":")[0] for s in (main, gains, integral)] == [
        "`main`",
        "`gains`",
        "`integral`",
    ]
    assert mine.title == "Rows that are not registered"
    assert cells(integral.body[-1], "pi_leaky minus pi")[1].strip("*").startswith("+1.00 [")
    assert cells(integral.body[1], "softmax") and "| p |" not in integral.body[1]  # with its twin
    said = {
        line.split(" |")[0]: cells(first.body[-1], line.split(" |")[0][2:])
        for line in first.body[-1].splitlines()[2:]
    }
    gain = [np.subtract(values[row], values["softmax"]) for row in ("p", "pid", "pid_learned")]
    ps = sorted(stats.ttest_1samp(one, 0).pvalue for one in gain)
    low, high = stats.t.interval(0.95, 4, gain[0].mean(), stats.sem(gain[0]))
    found = ["Clean", "better", "odd", f"+1.00 [{low:+.2f}, {high:+.2f}]", "5"]
    assert said["| p minus softmax"][1:6] == found
    assert {line[6] for line in said.values()} == {
        f"{min(1, k * p):.2g}"
        for k, p in zip((12, 11, 10), ps, strict=True)  # of twelve
    }
    assert first.body[1].startswith("Holm's p is over 12; the 9 that no run has answered")
    lacking = [f"{row} (no PGD)" for row in ("p", "pid", "pid_learned")]
    lacking += [f"{row}_short (no seeds)" for row in ("p", "pid", "pi_averaged")]
    assert first.findings == [f"Not decided yet, a look at what is there: {', '.join(lacking)}."]
    ((panel, words),) = first.panels
    figure = Figure()
    panel.draw(figure)
    (axes,) = figure.axes
    drawn = [tick.get_text() for tick in axes.get_yticklabels()]
    colors = [line.get_color() for line in axes.lines if len(line.get_xdata()) == 1]
    assert drawn == [f"{name} (odd)" for name in ("pid_learned", "pid", "p")]
    assert colors == [GOOD, GREY, GOOD] and whole.title == "All images (post hoc)"
    assert words.endswith("coloured after Holm: Clean")
    assert (
        cells(asked.body[1], "H1, primary")[3]
        == "better: p on Clean, pid_learned on Clean; not resolved: 1"
    )
    assert ("pi_leaky", "pi") in load_registered("tiny-imagenet-100").contrasts


def test_a_difference_that_was_asked_for_is_bold_once_all_its_seeds_are_in(clean):
    values = {"softmax": (5, 6, 7), "pi": (4, 6, 8), "pi_leaky": (5, 7.01, 9)}
    for seeds, mark in (((10, 11, 12), "**"), ((10, 11), "")):
        own = {name: found[: len(seeds)] for name, found in values.items()}
        study = replace(study_of(own, seeds), name="tiny-imagenet-100")
        integral = next(s for s in classification_sections(study) if "`integral`" in s.title)
        (cell,) = cells(integral.body[-1], "pi_leaky minus pi")[1:]
        gain = np.subtract(own["pi_leaky"], own["pi"])
        low, high = stats.t.interval(0.95, len(gain) - 1, gain.mean(), stats.sem(gain))
        assert low > 0 and cell == minus(
            f"{mark}{gain.mean():+.2f} [{low:+.2f}, {high:+.2f}]{mark}"
        )


@pytest.mark.slow
def test_rows_that_differ_in_length_alone_are_set_side_by_side(clean, tmp_path):
    def of(name, numbers, epochs, gains, seeds=(10, 11)):
        about = {"model": {"gains": gains}, "schedule": {"epochs": epochs, "warmup_epochs": 1}}
        return study_of({name: numbers}, seeds, recipe=about, twin=f"t{epochs}").runs

    runs = [
        *of("softmax", (5, 6), 100, None),
        *of("softmax_40", (3, 4), 40, None),
        *of("softmax_other", (3, 4, 5), 40, None, seeds=(15, 16, 17)),
        *of("p", (5.5, 6.4), 100, "0.6,0,0,1"),
        *of("p_40", (5, 7), 40, "0.6,0,0,1"),
        *of("p_other", (4, 5.2, 6.1), 40, "0.6,0,0,1", seeds=(15, 16, 17)),
        *of("alone", (9, 9), 100, "0.1,0,0,1"),
    ]
    study = study_of({"softmax": (5, 6)}, (10, 11)).only(runs)
    (found,) = training_length.length_section(study)
    assert "alone" not in found.body[1]
    assert cells(found.body[1], "p_40")[1:4] == ["40", "10, 11", "+2.50 [−3.85, +8.85]"]  # noqa: RUF001
    assert cells(found.body[1], "p_other")[3].startswith("**+1.10 [")  # in the picture: more seeds
    panels = [panel for panel, _ in found.panels]
    save_panels(panels, tmp_path / "x.png", columns=2)
    figure = Figure()
    panels[0].draw(figure)
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    assert list(lines["softmax"].get_ydata()) == [4, 5.5]
    assert list(lines["p"].get_ydata()) == [pytest.approx(5.1), pytest.approx(5.95)]
    short = [run for run in runs if run.variant in ("softmax", "p")]
    assert training_length.length_section(study.only(short)) == []


def test_a_length_without_a_softmax_row_of_its_own_has_no_difference(clean):
    def of(name, numbers, epochs, gains):
        about = {"model": {"gains": gains}, "schedule": {"epochs": epochs}}
        return study_of({name: numbers}, recipe=about, twin=f"t{epochs}").runs

    runs = [*of("softmax", (5, 6, 7), 15, None), *of("p", (6, 7.1, 8), 15, "0.6,0,0,1")]
    study = study_of({"softmax": (5, 6, 7)}).only(
        [*runs, *of("p_300", (17, 18, 19), 300, "0.6,0,0,1")]
    )
    (found,) = training_length.length_section(study)
    assert cells(found.body[1], "p")[3].startswith("**+1.03 [")
    assert cells(found.body[1], "p_300")[3] == "-"
    panels, _ = training_length.length_figure([study])
    (points,) = panels[0].draw.keywords["series"].values()
    assert [point.x for point in points] == [15]


def test_the_margin_is_set_beside_the_accuracy(clean):
    kappas = torch.linspace(0, 1, 2001, dtype=torch.float64)
    for text in ("0.6,0,0,1", "0.5,0.5,0,1", "0.8,0.5,0.05,0.1"):
        gains = PIDGains.parse(text)
        assert worst_radius(gains) == pytest.approx(
            float(spectral_radius(kappas, gains).max()), abs=2e-3
        )
    runs = list(study_of({"softmax": (5, 6, 7)}).runs)
    given = {"a": "0.2,0,0,1", "b": "0.6,0,0,1", "c": "0.5,0.5,0,1", "d": "0.8,0.5,0.05,0.1"}
    for place, (name, gains) in enumerate(given.items()):
        own = {name: (5 + place, 6 + place, 7 + place)}
        runs += study_of(own, recipe={"model": {"gains": gains}}).runs
    study = study_of({"softmax": (5, 6, 7)}).only(runs)
    compared = compare_all(study, [clean])
    (found,) = prediction_section(study, compared)
    radii = [worst_radius(PIDGains.parse(text)) for text in given.values()]
    rank = stats.spearmanr(radii, range(4))
    assert f"{RADIUS} and the difference in Clean, 4 rows with softmax" in found.findings[0]
    assert f"{rank.statistic:+.2f}" in found.findings[0]
    assert cells(found.body[1], "d")[2] == f"{radii[3]:.3f}"
    assert len(found.panels) == 1  # nothing else is known of the control
    measured = {name: 2.0 - 0.1 * place for place, name in enumerate(given)}
    certified = [
        replace(run, records=(*run.records, _certificate(measured[run.variant])))
        if run.variant in measured
        else run
        for run in runs
    ]
    (found,) = prediction_section(study.only(certified), compared)
    assert f"{MEASURED} and the difference in Clean, 4 rows with softmax" in found.findings[1]
    assert minus("rank correlation -1.00") in found.findings[1] and len(found.panels) == 2
    assert cells(found.body[1], "d")[3] == "1.700"
    few = study.only(runs[:6])
    assert prediction_section(few, compare_all(few, [clean])) == []


def _certificate(radius):
    settings = {"what": "certificate", "label": "x"}
    return Record(kind="analysis", metrics={"worst_radius": radius}, settings=settings)


def test_rows_of_each_twin_have_panels_of_their_own(clean, tmp_path):
    given = {"a": "0.2,0,0,1", "b": "0.6,0,0,1", "c": "0.5,0.5,0,1", "d": "0.8,0.5,0.05,0.1"}
    runs = []
    for twin, height in (("", 1), ("_bare", 20)):
        own = {f"softmax{twin}": (5, 6, 7)}
        runs += study_of(own, twin=f"t{twin}").runs
        for name, gains in given.items():
            own = {f"{name}{twin}": (5 + height, 6 + height, 7 + height)}
            runs += study_of(own, twin=f"t{twin}", recipe={"model": {"gains": gains}}).runs
    study = study_of({"softmax": (5, 6, 7)}).only(runs)
    (found,) = prediction_section(study, compare_all(study, [clean]))
    heights = []
    for panel, _ in found.panels:
        figure = Figure()
        panel.draw(figure)
        (axes,) = figure.axes
        points = next(line for line in axes.lines if len(line.get_xdata()) == 4)
        heights.append((axes.get_title(), set(points.get_ydata())))
    assert heights == [("minus softmax", {1}), ("minus softmax_bare", {20})]
    assert "level" in found.findings[0]


LONG = {
    "softmax": (50, 51, 52),
    "p": (52, 53.1, 54),
    "pid": (52.1, 53, 54.2),
    "pid_paper": (50, 52, 51),
}


@pytest.mark.slow
def test_a_study_of_all_images_speaks_of_no_halves_and_counts_the_seeds_still_to_come(clean):
    study = replace(study_of(LONG, seeds=(30, 31, 32)), name="tiny-imagenet-100-long")
    assert plan_metrics() == {"Clean", "FGSM", "PGD"}
    first, asked, _, group = classification_sections(study)
    assert (first.title, asked.title) == ("Primary comparisons", "Hypotheses")
    assert first.body[0].startswith("Seeds from 10 on and all images of the validation set")
    text = "\n".join([*first.body, *asked.body, *group.body])
    assert "half" not in text and "Every second" not in text
    assert cells(first.body[-1], "pid minus softmax")[4] == "3 of 5"
    assert first.findings == [
        "Not decided yet, a look at what is there: pid (3 of 5 seeds), pid_paper (3 of 5 seeds)."
    ]
    assert group.title == "`long`: 300 epochs, the paper's claims (3 of 5 seeds)"
    assert cells(group.body[1], "pid")[2] == "30, 31, 32 (3 of 5)"
    assert any("(3 of 5 seeds)" in line for line in group.findings)
    ((panel, _),) = first.panels
    figure = Figure()
    panel.draw(figure)
    labels = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert labels == ["pid_paper", "pid"]
    whole = {row: (*own, *(own[0] + k for k in (0.1, 0.2))) for row, own in LONG.items()}
    study = replace(study_of(whole, seeds=range(30, 35)), name="tiny-imagenet-100-long")
    first, _, _, group = classification_sections(study)
    assert first.findings == [
        "Not decided yet, a look at what is there: pid (no FGSM), pid_paper (no FGSM)."
    ]
    assert "of 5" not in group.title
    fewer = study.only([r for r in study.runs if r.variant != "pid_paper" and r.seed < 33])
    title = next(s.title for s in classification_sections(fewer) if s.title.startswith("`long`"))
    assert title.endswith("(0 to 3 of 5 seeds)")


def plan_metrics():
    return {metric for _, metric in load_registered("tiny-imagenet-100-long").primary}


def test_a_search_is_shown_on_the_images_of_its_group(clean):
    own = {"softmax_search": (50, 51), "p_larger": (52, 53.1)}
    runs = [*study_of(LONG, (30, 31, 32)).runs, *study_of(own, (0, 1)).runs]
    study = replace(study_of(LONG, (30, 31, 32)).only(runs), name="tiny-imagenet-100-long")
    searched = classification_sections(study)[-1]
    assert searched.title == "Searched"
    assert searched.body[0].startswith(
        "Seeds below 10: what rows were chosen by; they report nothing. All images of"
    )
    assert [line[:4] for line in searched.findings] == ["**p_"]
