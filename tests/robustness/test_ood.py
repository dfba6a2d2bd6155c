from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from pidformer.errors import InputError
from pidformer.robustness.ood import confidence, ood_scores

# Few levels, so that ties are common within and between the two sets.
levels = st.lists(st.integers(0, 6).map(lambda k: k / 6), min_size=1, max_size=25)


def direct(inside: list[float], outside: list[float]) -> dict[str, float]:
    """The three definitions, one threshold and one pair at a time."""
    inside, outside = [-c for c in inside], [-c for c in outside]
    precision_area, recall_before, rate = 0.0, 0.0, None
    for threshold in sorted({*inside, *outside}, reverse=True):
        found = sum(score >= threshold for score in outside)
        false = sum(score >= threshold for score in inside)
        recall = found / len(outside)
        precision_area += (recall - recall_before) * found / (found + false)
        recall_before = recall
        if rate is None and 100 * found >= 95 * len(outside):
            rate = false / len(inside)
    wins = sum((a > b) + (a == b) / 2 for a in outside for b in inside)
    area = wins / len(inside) / len(outside)
    return {"aupr": 100 * precision_area, "auroc": 100 * area, "fpr95": 100 * rate}


@pytest.mark.slow
@given(levels, levels)
def test_scores_equal_their_definitions_with_ties(inside, outside):
    scores = ood_scores(torch.tensor(inside), torch.tensor(outside), resamples=3)
    for name, value in direct(inside, outside).items():
        assert scores[name] == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize("decimals", [2, 8])
def test_scores_equal_scikit_learns(decimals):
    rng = np.random.default_rng(0)
    inside, outside = rng.beta(5, 2, 900).round(decimals), rng.beta(3, 2, 210).round(decimals)
    truth, score = np.r_[np.zeros(900), np.ones(210)], -np.r_[inside, outside]
    scores = ood_scores(torch.from_numpy(inside), torch.from_numpy(outside), resamples=10)
    assert scores["aupr"] == pytest.approx(100 * average_precision_score(truth, score))
    assert scores["auroc"] == pytest.approx(100 * roc_auc_score(truth, score))
    false, found, _ = roc_curve(truth, score, drop_intermediate=False)
    assert scores["fpr95"] == pytest.approx(100 * false[found >= 0.95][0])


@pytest.mark.slow
def test_the_interval_is_the_bootstraps():
    """Against a loop that resamples the images themselves and asks scikit-learn."""
    rng = np.random.default_rng(1)
    inside, outside = rng.beta(5, 2, 300).round(2), rng.beta(3, 2, 60).round(2)
    scores = ood_scores(torch.from_numpy(inside), torch.from_numpy(outside), resamples=4000)
    truth = np.r_[np.zeros(300), np.ones(60)]
    drawn: dict[str, list[float]] = {"aupr": [], "auroc": [], "fpr95": []}
    for _ in range(300):
        score = -np.r_[rng.choice(inside, 300), rng.choice(outside, 60)]
        drawn["aupr"].append(100 * average_precision_score(truth, score))
        drawn["auroc"].append(100 * roc_auc_score(truth, score))
        false, found, _ = roc_curve(truth, score, drop_intermediate=False)
        drawn["fpr95"].append(100 * false[found >= 0.95][0])
    for name, values in drawn.items():
        low, high = np.percentile(values, (2.5, 97.5))
        slack = 0.15 * (high - low)  # four standard errors of a percentile of 300 draws
        assert scores[f"{name}_low"] == pytest.approx(low, abs=slack)
        assert scores[f"{name}_high"] == pytest.approx(high, abs=slack)
        assert scores[f"{name}_low"] < scores[name] < scores[f"{name}_high"]


def test_chance_and_perfection():
    same = ood_scores(torch.full((50,), 0.5), torch.full((10,), 0.5), resamples=5)
    assert same["aupr"] == pytest.approx(100 / 6)  # the share of outside images
    assert (same["auroc"], same["fpr95"]) == (50, 100)
    best = ood_scores(torch.full((50,), 0.9), torch.full((10,), 0.1), resamples=5)
    assert (best["aupr_low"], best["auroc_low"], best["fpr95_high"]) == (100, 100, 0)
    worst = ood_scores(torch.full((50,), 0.1), torch.full((10,), 0.9), resamples=5)
    assert (worst["auroc"], worst["fpr95"]) == (0, 100)


@given(levels, levels)
def test_auroc_turns_round_when_the_sets_change_places(inside, outside):
    one, other = torch.tensor(inside), torch.tensor(outside)
    here, there = ood_scores(one, other, resamples=1), ood_scores(other, one, resamples=1)
    assert here["auroc"] + there["auroc"] == pytest.approx(100)


@given(levels, levels)
def test_only_the_order_of_confidences_counts(inside, outside):
    one, other = torch.tensor(inside).double(), torch.tensor(outside).double()
    assert ood_scores(one, other, resamples=5) == ood_scores(one.exp(), other.exp(), resamples=5)


def test_the_seed_decides_the_interval():
    inside, outside = torch.linspace(0, 1, 200), torch.linspace(0, 0.8, 40)
    first, again, other = (ood_scores(inside, outside, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first["auroc"] == other["auroc"] and first["auroc_low"] != other["auroc_low"]


def test_imagenet_o_takes_less_than_a_second():
    rng = np.random.default_rng(0)
    inside, outside = torch.from_numpy(rng.random(10_000)), torch.from_numpy(rng.random(2_000))
    start = time.process_time()
    ood_scores(inside, outside)
    assert time.process_time() - start < 1.5  # 0.4 on an idle core


@pytest.mark.parametrize(
    ("inside", "outside", "named"),
    [
        ([0.5, float("nan")], [0.5], "1 of 2 inside"),
        ([0.5], [float("inf"), float("-inf")], "2 of 2 outside"),
        ([], [0.5], "inside needs one confidence an image"),
        ([0.5], [[0.5]], "outside needs one confidence an image"),
    ],
)
def test_scores_that_cannot_be_ranked(inside, outside, named):
    with pytest.raises(InputError, match=named):
        ood_scores(torch.tensor(inside), torch.tensor(outside))


@pytest.mark.parametrize("options", [{"resamples": 0}, {"resamples": 1.5}, {"seed": -1}])
def test_counts_are_checked(options):
    with pytest.raises(InputError, match="must be a whole number"):
        ood_scores(torch.rand(3), torch.rand(3), **options)


def test_confidence_is_the_largest_probability_among_the_classes():
    logits = torch.randn(6, 10) * 3
    odds = logits.double().exp().numpy()
    np.testing.assert_allclose(confidence(logits), (odds / odds.sum(1, keepdims=True)).max(1))
    kept = [7, 2, 3]
    odds = odds[:, kept]
    among = confidence(logits, torch.tensor(kept))
    np.testing.assert_allclose(among, (odds / odds.sum(1, keepdims=True)).max(1))


def test_confidence_keeps_the_order_of_very_sure_images():
    logits = torch.tensor([[20.0, 0.0], [25.0, 0.0], [30.0, 0.0]])
    assert confidence(logits).diff().min() > 0
    assert float(logits.softmax(-1).amax(-1).diff().max()) == 0  # float32 would not


@pytest.mark.parametrize(
    "classes",
    [[10], [-1], [1, 1], [], [[1, 2]], [0.5], [True] * 10],
    ids=["too high", "negative", "twice", "none", "a table", "a float", "a mask"],
)
def test_classes_must_be_different_columns(classes):
    with pytest.raises(InputError, match="class"):
        confidence(torch.zeros(2, 10), torch.tensor(classes))


def test_logits_must_be_a_table():
    with pytest.raises(InputError, match=r"got shape \(3,\)"):
        confidence(torch.zeros(3))
    broken = torch.tensor([[1.0, float("nan")]])
    with pytest.raises(InputError, match="not finite"):
        ood_scores(confidence(broken), torch.rand(3))
