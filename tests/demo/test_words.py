"""The words follow the numbers, whichever way they go."""

import pytest

from pidformer.demo.summary import MODELS, ModelSummary, Score, compare
from pidformer.demo.words import collapse_verdict, residual_verdict, robustness_verdict

BUDGETS = (0.0, 0.05, 0.1)


def summary(name, clean=97, similarity=0.2, attacked=50, seeds=2):
    """A model with these per cents, the same with every seed unless given as a list."""

    def scores(value, images):
        values = value if isinstance(value, list) else [value] * seeds
        return tuple(Score(round(v * images / 100), images) for v in values)

    ends = similarity if isinstance(similarity, list) else [similarity] * seeds
    return ModelSummary(
        name=name,
        clean=scores(clean, 1000),
        attacks={
            (attack, eps): scores(attacked if eps else clean, 1000)
            for attack in ("FGSM", "PGD")
            for eps in BUDGETS
        },
        similarity=tuple((0.1, end, end) for end in ends),
    )


def found(**models):
    return {name: summary(name, **models.get(name, {})) for name in MODELS}


COLLAPSED = {"clean": 10, "similarity": 1.0}


def test_the_expected_outcome():
    verdict = collapse_verdict(found(softmax_no_residual=COLLAPSED, pid_no_residual={"clean": 95}))
    assert "softmax collapsed: token similarity 1.000" in verdict.headline
    assert "accuracy 10.0 % (chance is 10 %)" in verdict.headline
    assert "kept its tokens apart: similarity 0.200, accuracy 95.0 %, better" in verdict.headline
    assert "softmax were alike (similarity 0.99 or more) from layer 2" in verdict.details


@pytest.mark.parametrize(
    ("softmax", "pid", "words"),
    [
        (COLLAPSED, COLLAPSED, ["softmax collapsed", "collapsed as well", "no clear difference"]),
        ({}, {}, ["softmax did not collapse", "did not collapse either", "no clear difference"]),
        ({}, COLLAPSED, ["did not collapse:", "twin collapsed:", "worse than softmax"]),
        ({"similarity": [1.0, 0.3]}, {}, ["collapsed with some seeds", "kept its tokens apart"]),
        ({}, {"similarity": [1.0, 0.3]}, ["did not collapse:", "twin collapsed with some seeds"]),
        ({"clean": 73, "similarity": 1.0}, {}, ["softmax collapsed", "accuracy 73.0 %."]),
    ],
)
def test_collapse_goes_both_ways(softmax, pid, words):
    verdict = collapse_verdict(found(softmax_no_residual=softmax, pid_no_residual=pid))
    assert all(word in verdict.headline for word in words)


@pytest.mark.parametrize(
    ("softmax", "pid", "words"),
    [
        (90, 97, "PID is ahead: PID 97.0 %, softmax 90.0 %, a difference of +7.0 points"),
        (97, 90, "PID is behind"),
        (97.1, 97.3, "the twins are level"),
        ([85, 97], [91, 99], "the twins are level"),  # seeds overlap
    ],
)
def test_accuracy_with_the_residual_goes_both_ways(softmax, pid, words):
    verdict = residual_verdict(found(softmax={"clean": softmax}, pid={"clean": pid}))
    assert words in verdict.headline
    assert ("not a clear one" in verdict.headline) == ("level" in words)


@pytest.mark.parametrize(
    ("softmax", "pid", "word"),
    [(0.4, 0.2, "less alike than"), (0.2, 0.4, "more alike"), ([0.1, 0.5], 0.3, "about as alike")],
)
def test_similarity_with_the_residual_goes_both_ways(softmax, pid, word):
    verdict = residual_verdict(found(softmax={"similarity": softmax}, pid={"similarity": pid}))
    assert word in verdict.details


@pytest.mark.parametrize(
    ("softmax", "pid", "words"),
    [
        (50, 70, "PID is more robust: of 4 attacks PID is ahead in 4, behind in 0, level in 0"),
        (70, 50, "PID is less robust: of 4 attacks PID is ahead in 0, behind in 4"),
        (50, 51, "neither twin is clearly more robust"),
    ],
)
def test_robustness_goes_both_ways(softmax, pid, words):
    verdict = robustness_verdict(found(softmax={"attacked": softmax}, pid={"attacked": pid}))
    assert words in verdict.headline and "nothing left to lose" not in verdict.details


def test_mixed_robustness_is_called_mixed():
    models = found(softmax={"attacked": 60}, pid={"attacked": 60})
    models["pid"].attacks["PGD", 0.05] = (Score(900, 1000),) * 2
    models["pid"].attacks["PGD", 0.1] = (Score(100, 1000),) * 2
    assert "each hold better somewhere" in robustness_verdict(models).headline


def test_a_model_at_chance_is_not_called_robust():
    verdict = robustness_verdict(found(softmax_no_residual=COLLAPSED))
    assert "chance (softmax, no residual) has nothing left to lose" in verdict.details


def test_the_interval_of_a_difference_is_newcombes():
    # Newcombe (1998), example a: 56/70 - 48/80, method 10 gives [0.0524, 0.3339]
    found = compare([Score(56, 70)], [Score(48, 80)])
    assert (found.points, found.low, found.high) == pytest.approx((20.0, 5.24, 33.39), abs=0.01)
    assert found.order == "higher" and compare([Score(48, 80)], [Score(56, 70)]).order == "lower"
