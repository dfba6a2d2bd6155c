"""The words follow the numbers, whichever way they go."""

import numpy as np
import pytest

from pidformer.report.demo.models import (
    MODELS,
    DemoModel,
    collapse_verdict,
    residual_verdict,
    robustness_verdict,
)
from pidformer.results import Record
from pidformer.robustness.compare import Group
from pidformer.statistics import crossed_items, pack

BUDGETS = (0.0, 0.05, 0.1)
IMAGES = 1000


def right(percent, key):
    """So many images right, which of them by chance."""
    count = round(percent * IMAGES / 100)
    return np.random.default_rng(abs(hash(key)) % 2**32).permutation(IMAGES) < count


def record(row, eps, percent, key):
    settings = {"row": row, "eps": eps, "threat": "None", "train_seed": key[1], "label": key[0]}
    metrics = {"images": IMAGES, "top1": percent}
    details = {"right": pack(right(percent, (*key, len(row), percent)))}
    return Record(kind="robustness", metrics=metrics, settings=settings, details=details)


def summary(name, clean=97, similarity=0.2, attacked=50, seeds=2):
    """A model with these per cents, the same with every seed unless given as a list."""

    def spread(value):
        return value if isinstance(value, list) else [value] * seeds

    runs = []
    for seed in range(seeds):
        key = (list(MODELS).index(name), seed)
        rows = {"clean": record("clean", None, spread(clean)[seed], key)}
        for attack in ("fgsm", "pgd"):
            for eps in BUDGETS:
                percent = spread(attacked if eps else clean)[seed]
                row = f"{attack}@{eps:g}"
                rows[row] = record(row, eps, percent, (*key, attack == "pgd"))
        runs.append(rows)
    layers = tuple((0.1, end, end) for end in spread(similarity))
    return DemoModel(name, Group(MODELS[name], tuple(runs)), layers)


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
        (90, 97, "accuracy: PID 97.0 %, softmax 90.0 %, a difference of +7.0 points"),
        (97, 90, "PID 90.0 %, softmax 97.0 %, a difference of \u22127.0 points"),
        (97.1, 97.3, "not a clear one"),
        ([97, 85], [91, 99], "not a clear one"),  # each is ahead with one seed
    ],
)
def test_accuracy_with_the_residual_goes_both_ways(softmax, pid, words):
    verdict = residual_verdict(found(softmax={"clean": softmax}, pid={"clean": pid}))
    assert words in verdict.headline
    assert ("not a clear one" in verdict.headline) == ("clear" in words)


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
        (50, 70, "under 4 threats, PID is ahead of softmax in 4, behind in 0, and level in 0"),
        (70, 50, "under 4 threats, PID is ahead of softmax in 0, behind in 4, and level in 0"),
        (50, 51, "ahead of softmax in 0, behind in 0, and level in 4"),
    ],
)
def test_robustness_goes_both_ways(softmax, pid, words):
    verdict = robustness_verdict(found(softmax={"attacked": softmax}, pid={"attacked": pid}))
    assert words in verdict.headline and "nothing left to lose" not in verdict.details


def test_mixed_robustness_is_counted_both_ways():
    models = found(softmax={"attacked": 60}, pid={"attacked": 60})
    for seed, rows in enumerate(models["pid"].accuracy.runs):
        for eps, percent in ((0.05, 90), (0.1, 10)):
            rows[f"pgd@{eps}"] = record(f"pgd@{eps}", eps, percent, (1, seed))
    assert "in 1, behind in 1, and level in 2" in robustness_verdict(models).headline


def test_a_model_at_chance_is_not_called_robust():
    verdict = robustness_verdict(found(softmax_no_residual=COLLAPSED))
    assert "chance (softmax, no residual) has nothing left to lose" in verdict.details


def test_the_interval_is_the_paired_one_over_images_and_seeds():
    models = found(softmax={"clean": [90, 92]}, pid={"clean": [93, 96]})
    hits = {}
    for name, percents in (("softmax", (90, 92)), ("pid", (93, 96))):
        number = list(MODELS).index(name)
        hits[name] = np.stack([right(p, (number, s, 5, p)) for s, p in enumerate(percents)])
    expected = crossed_items(100 * (hits["pid"].astype(float) - hits["softmax"]))
    assert expected.mean == pytest.approx(3.5)
    words = f"+3.5 points [{expected.low:+.1f}, {expected.high:+.1f}]"
    assert words in residual_verdict(models).headline
