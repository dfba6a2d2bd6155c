"""Twins, paired differences, and the words that follow from their intervals."""

import math
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

from pidformer import PIDGains
from pidformer.errors import InputError
from pidformer.report.metrics import Metric
from pidformer.results import Record, check_pair
from pidformer.statistics import Crossed, crossed_mean
from study.classification import _against
from study.comparisons import Compared, Judged, compare_all, findings, holm, judge
from study.pictures import Point, differences_panel, points_panel
from study.tables import bold, differences_by_variant, gains_text
from tests.study.made import cells, metric, study_of


@pytest.mark.parametrize(
    ("gains", "better", "word"),
    [
        ((1.0, 1.1, 0.9), 1, "better"),
        ((1.0, 1.1, 0.9), -1, "worse"),
        ((1.0, 1.1, 0.9), 0, "more"),
        ((-1.0, -1.1, -0.9), -1, "better"),
        ((1.0, -1.0, 0.2), 1, "not resolved"),
    ],
)
def test_words_follow_from_the_interval(gains, better, word):
    study = study_of({"softmax": (5, 6, 7), "pid": tuple(5 + k + g for k, g in enumerate(gains))})
    (one,) = compare_all(study, [metric(better)])
    assert one.word == word
    assert f"{word.capitalize()}: x" in findings([one])[0]


def test_an_interval_without_zero_is_no_finding_where_the_seeds_do_not_agree():
    seeds = [3.5, 6.0, 8.5]
    found = crossed_mean(seeds, 1.5**2, 1250)
    assert found.low > 0 and found.p == pytest.approx(stats.ttest_1samp(seeds, 0).pvalue)
    assert found.p > 0.05 and Compared("p", "softmax", metric(), found).word == "not resolved"


def test_one_pair_of_runs_says_nothing_of_the_method():
    study = study_of({"softmax": (5,), "pid": (9,)}, seeds=(0,))
    (one,) = compare_all(study, [metric()])
    (said,) = findings([one])
    assert not one.is_resolved and said.startswith("One pair of runs, silent on other seeds: ")
    sure = one._replace(found=crossed_mean([3.5], 0.1**2, 1250))  # of other images it is sure
    assert sure.found.verdict == 1 and not sure.is_resolved and bold(sure) == sure.text


def test_variants_with_one_pair_of_runs_share_a_line_without_their_numbers():
    single = study_of({"softmax": (5,), "pid": (9,), "p": (8,)}, seeds=(0,))
    (said,) = findings(compare_all(single, [metric()]))
    assert said.startswith("One pair of runs each, silent on other seeds") and "+4" not in said
    more = study_of({"softmax_b": (5, 6, 7), "pid_b": (6, 7.1, 7.9)}, seeds=(10, 11, 12), twin="u")
    both = single.only([*single.runs, *more.runs])
    first, last = findings(compare_all(both, [metric()]))
    assert first.startswith("**pid_b** minus softmax_b (3 seeds). Better: x +1.00 [")
    assert last.startswith("**p**, **pid**: one pair of runs each, silent on other seeds: ")


def test_of_many_differences_the_resolved_are_named_and_the_others_counted():
    study = study_of({"softmax": (5, 6, 7), "pid": (6, 7.1, 7.9), "p": (5.1, 5.8, 7.3)})
    many = [replace(metric(), title=f"m{place}") for place in range(6)]
    pid, p = sorted(findings(compare_all(study, many))[:2], reverse=True)
    names = "; ".join(one.title for one in many)
    assert pid == f"**pid** minus softmax (3 seeds). Better: {names}."
    assert p == "**p** minus softmax (3 seeds). Not resolved: 6."


def test_holm_counts_all_looks():
    study = study_of({"softmax": (5, 6, 7), "a": (6, 7.1, 7.9), "b": (5.1, 5.8, 7.3)})
    said = findings(compare_all(study, [metric()]))[-1]
    assert said.startswith("Of these 2 differences 1 is resolved; after Holm's")
    assert "a better on x" in said and "b better" not in said


def test_where_nothing_is_resolved_no_correction_is_told():
    study = study_of({"softmax": (5, 6, 7), "a": (5.1, 5.8, 7.3), "b": (5.2, 5.7, 7.2)})
    said = findings(compare_all(study, [metric()]))[-1]
    assert said == "None of these 2 differences is resolved."


def test_a_picture_of_differences_has_their_unit_and_a_title_that_fits():
    study = study_of({"softmax": (5, 6, 7), "pid": (6, 7.1, 7.9)})
    long = replace(metric(-1), title="novels, test, sliding, first 50000 tokens", unit="nats")
    compared, figure = compare_all(study, [long]), Figure()
    differences_panel(compared, long.title, ["pid"]).draw(figure)
    (axes,) = figure.axes
    assert axes.get_xlabel() == "minus softmax, nats"
    lines = axes.get_title().split("\n")
    assert " ".join(lines) == long.title and max(map(len, lines)) <= 36


def test_a_title_stays_within_a_picture_with_long_labels():
    study = study_of({"softmax": (5, 6, 7), "pid_paper_sinusoidal": (6, 7.1, 7.9)})
    one = replace(metric(), title="novels, test, window 1024 sliding")
    compared = compare_all(study, [one])
    panel = differences_panel(compared, one.title, ["pid_paper_sinusoidal"])
    figure = Figure(figsize=(panel.width, panel.height), layout="constrained")
    panel.draw(figure)
    figure.draw_without_rendering()
    box = figure.axes[0].title.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1


@pytest.mark.parametrize(("is_log", "scale"), [(False, "linear"), (True, "log")])
def test_lines_have_a_linear_axis_unless_asked(is_log, scale):
    points, figure = [Point(x, 0.5) for x in (10, 40, 100)], Figure()
    look = {"is_plain": [False, True], "is_line": True, "is_log": is_log}
    points_panel({"p": points, "not trained": []}, "t", "epochs", "y", **look).draw(figure)
    (axes,) = figure.axes
    assert axes.get_xscale() == scale
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["p"]


def test_pairs_of_different_data_are_refused():
    a, b = (
        Record(kind="x", metrics={}, settings={"row": "clean", "data_hash": h, "label": h})
        for h in "ab"
    )
    with pytest.raises(InputError, match="data_hash is a for a and b for b"):
        check_pair(a, b)


def test_a_variant_of_another_recipe_is_compared_with_the_nearest_and_says_so():
    study = study_of({"softmax": (5, 6, 7)})
    other = study_of({"pid": (6, 7, 8)}, twin="u", recipe={"model": {}, "optim": {"lr": 1}})
    both = study.only([*study.runs, *other.runs])
    twin, lines = both.twin(both.variants[1])
    assert twin.name == "softmax" and lines == ["optim: None -> {'lr': 1}"]


def test_of_two_twins_of_one_recipe_the_one_with_the_same_seeds_is_taken():
    first = study_of({"softmax": (5, 6, 7)}, seeds=(0, 1, 2))
    second = study_of({"softmax_b": (5, 6), "pid_b": (7, 8)}, seeds=(15, 16))
    both = first.only([*first.runs, *second.runs])
    twins = {v.name: both.twin(v)[0] for v in both.variants}
    assert twins["pid_b"].name == "softmax_b" and twins["softmax_b"] is None


@pytest.mark.parametrize(
    ("acting", "said"),
    [
        (
            {2: "0.6,0,0,1", 3: "0.6,0,0,1"},
            "p 0.6, i 0.0, d 0.0, beta 1.0 in 2 of 4 layers (2 to 3)",
        ),
        ({0: "0.6,0,0,1", 3: "0.6,0,0,1"}, "p 0.6, i 0.0, d 0.0, beta 1.0 in 2 of 4 layers (0, 3)"),
        ({1: "0.6,0,0,1"}, "p 0.6, i 0.0, d 0.0, beta 1.0 in 1 of 4 layers (1)"),
        ({1: "0.4,0.1,0,1", 2: "0.4,0.05,0,1"}, "gains by layer"),
    ],
)
def test_the_table_says_in_which_layers_gains_act(acting, said):
    gains = [PIDGains.parse(acting.get(layer, "0,0,0,1")).to_dict() for layer in range(4)]
    study = study_of({"p": (5, 6, 7)}, recipe={"model": {"gains": gains}}, gains="(PIDGains(...")
    assert gains_text(study.variants[0]) == said


def test_what_no_difference_has_gets_no_column_and_bold_leaves_out_zero():
    study = study_of({"softmax": (5, 6, 7), "a": (6, 7.1, 7.9), "b": (5.1, 5.8, 7.3)})
    other = Metric(title="y", find=lambda run: None, read=len)
    made = differences_by_variant(compare_all(study, [metric(), other]), [metric(), other])
    assert made.splitlines()[0] == "|  | x |"
    assert cells(made, "a minus softmax")[1].startswith("**+1.00 [")
    assert cells(made, "b minus softmax")[1].startswith("+0.07 [")


def test_what_lacks_seeds_is_not_decided_however_small_its_p():
    study = study_of({"softmax": (5, 6, 7), "pid": (6, 7.1, 7.9)})
    (one,) = compare_all(study, [metric(1)])
    assert Judged(one, 0.001).word == "better"
    partial = one._replace(registered=4)
    assert Judged(partial, 0.001).word == Judged(partial, 0.9).word == "not decided yet"
    assert bold(one).startswith("**") and bold(partial) == one.text
    first, *others = findings([partial])
    assert first == f"**pid** minus softmax (3 of 4 seeds). Not decided yet: x {one.text}."
    assert others == []


def test_holm_equals_a_step_down_by_hand():
    values = [0.03, 0.001, math.nan, 0.2, 0.012]
    # sorted: .001 x 4, .012 x 3, .03 x 2, .2 x 1
    assert holm(values) == pytest.approx([0.06, 0.004, math.nan, 0.2, 0.036], nan_ok=True)
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_what_stands_after_holm_stands_whatever_the_missing_comparisons_turn_out_to_be():
    draws = np.random.default_rng(0).uniform(0, 0.06, (300, 5))
    for values in draws:
        now = holm(values[:3].tolist(), family=5)
        assert now == holm([*values[:3], 1, 1])[:3]
        assert np.all(np.array(now) >= holm(values.tolist())[:3])


def test_many_methods_are_set_side_by_side_with_both_intervals():
    def one(row, title, mean):
        found = Crossed(mean, mean - 1, mean + 2, 0.01, 3)
        return Compared(row, "softmax", Metric(title=title, find=len, read=len), found)

    rows = [f"m{k}" for k in range(6)]
    made = [
        one(row, title, k + n)
        for k, row in enumerate(rows)
        for n, title in enumerate(("Clean", "PGD"))
    ]
    assert _against(judge(made[:-2])) == []
    (section,) = _against(judge(made))
    ((panel, _),) = section.panels
    (point,) = panel.draw.keywords["series"]["m3"]
    assert (point.x, point.left, point.right) == (3, 2, 5)
    assert (point.y, point.low, point.high) == (4, 3, 6)
