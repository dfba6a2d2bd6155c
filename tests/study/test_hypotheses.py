"""The hypotheses on the page: the differences that were registered, and no more than they say."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from pidformer.report.metrics import Metric
from pidformer.reproduce.study import Hypothesis, Measure, StudyPlan, StudyRow
from pidformer.results import Record
from pidformer.robustness.compare import over_items
from pidformer.statistics import Crossed
from study import predictors
from study.classification import classification_sections
from study.comparisons import (
    Compared,
    Judged,
    compare_all,
    family_text,
    judge,
    judge_primary,
    wins_text,
    with_registered,
)
from study.hypotheses import hypotheses_section
from tests.study.made import cells, metric, study_of

SEEDS = (10, 11, 12)
VALUES = {
    "softmax": (5, 6, 7),
    "p": (6, 7.1, 7.9),
    "pid": (5.1, 5.8, 7.3),
    "softmax_24": (4, 6, 7),
    "p_24": (7, 9.3, 10.2),
}


def plan_of(asked, rows=(*VALUES, "p_late"), primary=()):
    found = [StudyRow(name=n, group="g", overrides=(), seeds=SEEDS, suites={}) for n in rows]
    return StudyPlan(
        name="s", recipe="", data=(), rows=tuple(found), hypotheses=(asked,), primary=primary
    )


def asked(**fields):
    given = {"name": "H1", "text": "it helps", "expects": {"Clean": "better"}}
    return Hypothesis(**given | fields)


def clean_of(_):
    return {"Clean": Metric(title="Clean", find=metric().find, read=metric().read)}


def line(one, study, judged=(), primary=()):
    (section,) = hypotheses_section(study, plan_of(one, primary=primary), [], judged, clean_of)
    rows = section.body[1].splitlines()[2:]
    assert len(rows) == 1
    return [cell.strip() for cell in rows[0].strip("|").split("|")]


def test_seeds_of_all_groups_of_a_row_are_registered():
    """Two groups may share rows, each with seeds of its own."""
    plan = plan_of(asked(pairs=(("p", "softmax"),)))
    more = [replace(row, group="h", seeds=(13,)) for row in plan.rows if row.name[0] in "sp"]
    plan = replace(plan, rows=(*plan.rows, *more))
    (section,) = hypotheses_section(study_of(VALUES, SEEDS), plan, [], (), clean_of)
    assert "(3 of 4 seeds)" in section.body[1]


def interval(values):
    low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    return f"{np.mean(values):+.2f} [{low:+.2f}, {high:+.2f}]".replace("-", "−")  # noqa: RUF001


def test_a_line_has_the_differences_of_its_pairs_and_what_they_say(clean):
    one = asked(pairs=(("p", "softmax"), ("pid", "softmax")), note="as ever")
    name, text, found, said = line(one, study_of(VALUES, SEEDS))
    gains = [np.subtract(VALUES[row], VALUES["softmax"]) for row in ("p", "pid")]
    assert (name, text) == ("H1", "it helps")
    assert found.split("<br>") == [
        "*Clean*, expected better:",
        f"p minus softmax {interval(gains[0])} (3 seeds), better",
        f"pid minus softmax {interval(gains[1])} (3 seeds), not resolved",
        "(as ever)",
    ]
    assert said == "better: p on Clean; not resolved: 1"


def test_seeds_that_are_still_to_come_are_counted(clean):
    one = asked(pairs=(("p", "softmax"),))
    few = study_of({row: VALUES[row][:2] for row in ("p", "softmax")}, SEEDS[:2])
    assert "(2 of 3 seeds)" in line(one, few)[2]
    assert line(one, few)[3] == "not decided yet"
    sure = study_of({"softmax": (5.0, 6.0), "p": (7.0, 8.01)}, SEEDS[:2])
    assert compare_all(sure, [clean])[0].is_resolved and line(one, sure)[3] == "not decided yet"
    single = study_of({row: VALUES[row][:1] for row in ("p", "softmax")}, SEEDS[:1])
    assert "(1 of 3 seeds)" in line(one, single)[2] and line(one, single)[3] == "one seed only"


def test_what_is_not_there_is_said(clean):
    study = study_of(VALUES, SEEDS)
    missing = asked(pairs=(("p_late", "p"),))
    assert line(missing, study)[2:] == [
        "*Clean*, expected better:<br>p_late minus p (no runs yet)",
        "no runs yet",
    ]
    apart = study.only([r for r in study.runs if (r.variant == "p") == (r.seed == SEEDS[0])])
    assert line(asked(pairs=(("p", "softmax"),)), apart)[3] == "no runs yet"
    other = asked(pairs=(("p", "softmax"),), expects={"PGD": None})
    assert line(other, study)[2:] == [
        "*PGD*:<br>p minus softmax (not measured yet)",
        "not measured yet",
    ]


def test_a_primary_difference_has_to_stand_after_the_correction(clean):
    study = study_of(VALUES, SEEDS)
    one = asked(pairs=(("p", "softmax"),))
    primary = (("p", "Clean"),)
    (p,) = (c for c in compare_all(study, [clean]) if c.variant == "p" and c.twin == "softmax")
    stands = line(one, study, [Judged(p, 0.04)], primary)
    assert (stands[0], stands[3]) == ("H1, primary", "better")
    assert line(one, study, [Judged(p, 0.06)], primary)[3] == "not resolved"
    both = asked(pairs=(("p", "softmax"), ("pid", "softmax")))
    assert line(both, study, [Judged(p, 0.04)], primary)[0] == "H1"


def test_the_difference_of_differences_is_over_the_seeds_of_all_four(clean):
    one = asked(pairs=(("p_24", "softmax_24"),), against=(("p", "softmax"),))
    study = study_of(VALUES, SEEDS)
    deep, flat = (
        np.subtract(VALUES[a], VALUES[b]) for a, b in (("p_24", "softmax_24"), ("p", "softmax"))
    )
    _, _, found, said = line(one, study)
    assert found.split("<br>")[1] == (
        f"p_24 minus softmax_24 {interval(deep)} (3 seeds), against p minus softmax "
        f"{interval(flat)} (3 seeds): {interval(deep - flat)} (3 seeds)"
    )
    assert said == "better"
    fewer = study.only([r for r in study.runs if (r.variant, r.seed) != ("softmax", 12)])
    assert line(one, fewer)[2].endswith(f": {interval((deep - flat)[:2])} (2 of 3 seeds)")
    flat_only = study.only([r for r in study.runs if "24" not in r.variant])
    assert line(one, flat_only)[3] == "no runs yet"


def test_the_difference_of_differences_is_paired_image_by_image():
    outcomes = np.random.default_rng(0).random((4, 2, 30))  # rows, seeds, images
    records = [
        [Record(kind="x", metrics={}, details={"at": (row, seed)}) for row in range(4)]
        for seed in range(2)
    ]
    found = over_items(lambda record: outcomes[record.details["at"]])(records)
    change = (outcomes[1] - outcomes[0]) - (outcomes[3] - outcomes[2])  # seeds, images
    seeds, items = change.mean(1).var(ddof=1) / 2, change.mean(0).var(ddof=1) / 30
    freedom = (seeds + items) ** 2 / (seeds**2 / 1 + items**2 / 29)
    half = stats.t.ppf(0.975, freedom) * np.sqrt(seeds + items)
    assert found.mean == pytest.approx(change.mean())
    assert found.high - found.mean == pytest.approx(half)


@pytest.mark.parametrize(
    ("seeds", "gains", "word"),
    [
        (1, (0, 1, 2, 3), "one seed only"),
        (3, (0, 1, 2, 3), "positive"),
        (3, (1, 0, 3, 2), "not resolved"),
        (3, (3, 2, 1, 0, -1), "negative"),
    ],
)
def test_a_correlation_is_said_for_each_twin(clean, seeds, gains, word):
    plain = study_of({"softmax": (5,) * seeds}, SEEDS[:seeds])
    runs = list(plain.runs)
    for place, gain in enumerate(gains):  # p from 0.5 on is the radius too
        own, recipe = {f"r{place}": (5 + gain,) * seeds}, {"gains": f"{0.5 + place / 10},0,0,1"}
        runs += study_of(own, SEEDS[:seeds], recipe={"model": recipe}).runs
    study = plain.only(runs)
    one = asked(correlation=predictors.RADIUS, expects={"Clean": None})
    (section,) = hypotheses_section(study, plan_of(one), compare_all(study, [clean]), [], clean_of)
    _, _, found, said = cells(section.body[1], "H1")
    rank = stats.spearmanr(range(len(gains)), gains).statistic
    assert f"rank correlation {rank:+.2f}".replace("-", "−") in found  # noqa: RUF001
    assert said == word
    assert line(one, study_of(VALUES, SEEDS))[3] == "no runs yet"


def test_rounding_noise_breaks_no_tie_of_a_rank_correlation():
    noise, gains = 1e-12 * np.array([3, 1, 2, 0, 0]), [0.1, 0.2, 0.3, 0.4, 0.2]
    radii = np.array([1, 1, 1, 1.2, 0.9]) + noise
    rows = [
        predictors.Predicted(
            clean=Compared("r", "softmax", metric(), Crossed(gain + 1e-13, 0.0, 1.0, 0.5, 3)),
            known={predictors.RADIUS: radius},
        )
        for radius, gain in zip(radii, gains, strict=True)
    ]
    found = predictors.Correlation(what=predictors.RADIUS, twin="softmax", rows=rows).rank
    assert found == pytest.approx(stats.spearmanr([1, 1, 1, 1.2, 0.9], gains))
    assert found != pytest.approx(stats.spearmanr(radii, gains))


def compared(row, title, p, verdict=1):
    found = Crossed(float(verdict), verdict - 0.5, verdict + 0.5, p, 5)
    return Compared(row, "softmax", Metric(title=title, find=metric().find, read=len), found)


def test_a_win_needs_every_metric_after_the_correction():
    both = [compared("a", "Clean", 0.001), compared("a", "PGD", 0.002)]
    half = [compared("b", "Clean", 0.001), compared("b", "PGD", 0.2)]
    worse = [compared("c", "Clean", 0.001, -1), compared("c", "PGD", 0.002, -1)]
    alone = [compared("d", "Clean", 0.001)]
    every = [*both, *half, *worse, *alone]
    plan = plan_of(asked(), primary=tuple((one.variant, one.metric.title) for one in every))
    assert wins_text(judge(every), plan) == (
        "Of 4 candidates, by the rule of study.md (Clean and PGD, each after Holm's correction): "
        "wins: a; losses: c."
    )


def test_no_row_wins_while_another_has_no_runs():
    primary = tuple((row, title) for row in "ab" for title in ("Clean", "PGD"))
    plan = plan_of(asked(), primary=primary)
    made = [compared("a", "Clean", 0.0124), compared("a", "PGD", 0.0126)]
    judged = judge_primary(made, plan)
    assert [(each.p, each.word) for each in judged] == [
        (pytest.approx(4 * 0.0124), "better"),  # whatever b will be
        (pytest.approx(4 * 0.0124), "better"),
    ]
    assert wins_text(judged, plan) == "Not decided yet, a look at what is there: b (no seeds)."
    assert family_text(judged, plan) == (
        "Holm's p is over 4; the 2 that no run has answered count as p = 1:"
    )


def test_no_row_wins_while_one_of_its_metrics_lacks_seeds():
    made = [compared("a", "Clean", 0.001)._replace(registered=6), compared("a", "PGD", 0.001)]
    plan = plan_of(asked(), primary=(("a", "Clean"), ("a", "PGD")))
    for found, lacking in ((made, "5 of 6 seeds"), (made[1:], "no Clean"), ([], "no seeds")):
        said = wins_text(judge_primary(found, plan), plan)
        assert said == f"Not decided yet, a look at what is there: a ({lacking})."


def test_seeds_that_only_one_of_two_rows_was_registered_with_are_not_waited_for(clean):
    plan = plan_of(asked(pairs=(("p", "softmax"),)))
    longer = [replace(r, seeds=(*SEEDS, 13)) if r.name == "p" else r for r in plan.rows]
    study = study_of(VALUES, SEEDS)
    found = compare_all(study, [clean])
    for rows, word in ((longer, "better"), ([replace(r, seeds=range(10, 14)) for r in longer], "")):
        given = with_registered(found, study, replace(plan, rows=tuple(rows)))
        words = {one.variant: one.word for one in given}
        assert words["p"] == (word or "not decided yet")
        (section,) = hypotheses_section(study, replace(plan, rows=tuple(rows)), [], (), clean_of)
        assert cells(section.body[1], "H1")[3] == words["p"]


def test_a_hypothesis_waits_for_the_seeds_that_its_suite_measures_alone():
    """Two rows of five seeds; the suite of the metric takes two of these."""
    study = study_of({"softmax": (5.0, 6.0), "p": (7.0, 8.01)}, SEEDS[:2])
    command = {"command": "pidformer evaluate RUN --data DATA --suite autoattack"}
    runs = []
    for run in study.runs:
        (record,) = run.records
        own = replace(record, settings=record.settings | command)
        runs.append(replace(run, records=(own,)))
    plan = plan_of(asked(pairs=(("p", "softmax"),)))
    suites = {"autoattack": Measure(suite="autoattack", seeds=SEEDS[:2])}
    plan = replace(plan, rows=tuple(replace(row, suites=suites) for row in plan.rows))
    (section,) = hypotheses_section(study.only(runs), plan, [], (), clean_of)
    assert cells(section.body[1], "H1")[3] == "better" and "(2 seeds)" in section.body[1]


def test_a_study_without_hypotheses_has_no_such_section(clean):
    empty = StudyPlan(name="s", recipe="", data=(), rows=())
    assert hypotheses_section(study_of(VALUES, SEEDS), empty, [], [], clean_of) == []
    assert [s.title for s in classification_sections(study_of(VALUES, SEEDS))] == [""]
