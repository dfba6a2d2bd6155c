import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pidformer.errors import InputError
from pidformer.statistics import (
    crossed_items,
    crossed_mean,
    mean_over_seeds,
    pack,
    percentage,
    unpack,
)


@given(st.integers(1, 500), st.data())
def test_a_percentage_has_wilsons_interval(total, data):
    hits = data.draw(st.integers(0, total))
    found = percentage("top1", hits, total)
    z, share = stats.norm.ppf(0.975), hits / total
    middle = (share + z**2 / (2 * total)) / (1 + z**2 / total)
    half = z / (1 + z**2 / total) * math.sqrt(share * (1 - share) / total + (z / 2 / total) ** 2)
    assert found["top1"] == pytest.approx(100 * share)
    assert found["top1_low"] == pytest.approx(100 * (middle - half), abs=1e-9)
    assert found["top1_high"] == pytest.approx(100 * (middle + half), abs=1e-9)


def test_the_interval_over_seeds_is_students():
    values = [1.0, 2.0, 4.0]
    found = mean_over_seeds(values)
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert found == pytest.approx((7 / 3, low, high, 3))
    assert math.isnan(mean_over_seeds([1.0]).low)


@given(st.lists(st.booleans()))
def test_packed_hits_come_back(hits):
    array = np.array(hits, dtype=bool)
    assert (unpack(pack(array), len(hits)) == array).all()


def test_a_shortened_record_is_refused():
    with pytest.raises(InputError, match="100 images holds 2 bytes"):
        unpack(pack(np.ones(16, bool)), 100)


def test_one_pair_agrees_with_scipys_bootstrap():
    rng = np.random.default_rng(0)
    gain = 100 * ((rng.random(400) < 0.7).astype(float) - (rng.random(400) < 0.6))
    found = crossed_items(gain)
    theirs = stats.bootstrap((gain,), np.mean, method="percentile", rng=1).confidence_interval
    assert found.mean == pytest.approx(gain.mean())
    assert found.low == pytest.approx(theirs.low, abs=0.4)
    assert found.high == pytest.approx(theirs.high, abs=0.4)


def test_several_seeds_cover_what_a_loop_that_draws_images_and_seeds_covers():
    """By Student's t, so at least as wide as percentiles, which few seeds make too narrow."""
    rng = np.random.default_rng(0)
    hard = rng.random(1200)  # an image is hard for all seeds alike
    first = np.stack([hard + 0.1 * rng.random(1200) < 0.5 + 0.01 * s for s in range(4)])
    second = np.stack([hard + 0.1 * rng.random(1200) < 0.53 + 0.02 * s for s in range(4)])
    gain = 100 * (second.astype(float) - first)
    means = []
    for _ in range(1000):
        seeds, images = rng.integers(4, size=4), rng.integers(1200, size=1200)
        means.append(gain[seeds][:, images].mean())
    low, high = np.percentile(means, [2.5, 97.5])
    found = crossed_items(gain)
    assert found.mean == pytest.approx(gain.mean())
    assert found.low < low < found.mean < high < found.high
    assert high - low > 0.3 * (found.high - found.low)
    assert found.p >= stats.ttest_1samp(gain.mean(1), 0).pvalue


def test_equal_models_have_no_difference():
    assert crossed_items(np.zeros((3, 50)))[:4] == (0, 0, 0, 1.0)


def test_crossed_interval_is_the_paired_t_interval_when_only_one_spread_is_there():
    rng = np.random.default_rng(0)
    items = rng.normal(0.3, 1.0, size=50)
    found = crossed_items(items)  # one seed: over items alone
    low, high = stats.t.interval(0.95, 49, items.mean(), stats.sem(items))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.p == pytest.approx(stats.ttest_1samp(items, 0.0).pvalue)
    seeds = [0.2, 0.5, 0.9]
    found = crossed_mean(seeds, 0.0, 0)  # no items: over seeds alone
    low, high = stats.t.interval(0.95, 2, np.mean(seeds), stats.sem(seeds))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.p == pytest.approx(stats.ttest_1samp(seeds, 0.0).pvalue)


@pytest.mark.slow
@pytest.mark.parametrize(("seed_spread", "item_spread"), [(1.0, 0.0), (0.05, 1.0), (0.3, 3.0)])
def test_crossed_interval_covers_the_truth_for_new_seeds_and_items(seed_spread, item_spread):
    rng = np.random.default_rng(1)
    inside, tries = 0, 1500
    for _ in range(tries):
        seeds = rng.normal(0, seed_spread, size=(3, 1))
        items = rng.normal(0, item_spread, size=(1, 60))
        found = crossed_items(2.0 + seeds + items + rng.normal(0, 0.5, size=(3, 60)))
        inside += found.low < 2.0 < found.high
    assert inside / tries > 0.93


@pytest.mark.slow
def test_small_p_values_of_three_seeds_are_not_too_frequent():
    """Under no effect p < alpha happens about alpha of the time, in the tail too."""
    rng = np.random.default_rng(0)
    tries = 3000
    seeds = rng.normal(0, 4, size=(tries, 3)) + rng.normal(0, 1.3, size=(tries, 1))
    found = [crossed_mean(row, 1.3**2, 1250) for row in seeds]
    p_values = np.array([one.p for one in found])
    for alpha in (0.05, 0.01, 0.001):
        most = alpha * tries + 3 * math.sqrt(alpha * tries)
        assert (p_values < alpha).sum() < most
    assert np.mean([one.low < 0 < one.high for one in found]) > 0.91


def test_a_p_value_is_never_below_that_of_the_t_test_over_seeds():
    rng = np.random.default_rng(0)
    for seeds in [2, 3] * 10:
        values = rng.normal(0.5, 1, size=(seeds, 1)) + rng.normal(0, 20, size=(1, 400))
        found = crossed_items(values)
        over_seeds = stats.ttest_1samp(values.mean(1), 0.0).pvalue
        assert found.p >= over_seeds
        assert found.verdict == 0 or found.p < 0.05


def test_seeds_that_agree_leave_the_p_value_to_the_items():
    items = np.random.default_rng(0).normal(0.2, 1.0, size=50)
    found = crossed_items(np.stack([items, items + 1e-15]))
    assert found.p == pytest.approx(stats.ttest_1samp(items, 0.0).pvalue)


def test_of_one_item_only_the_seeds_are_known():
    seeds = np.array([[0.2], [0.5], [0.9]])
    assert crossed_items(seeds) == crossed_mean(seeds[:, 0].tolist(), 0.0, 0)


def test_a_crossed_interval_of_nothing_is_unknown_and_of_no_spread_a_point():
    assert math.isnan(crossed_mean([1.0], 0.0, 0).low)
    assert crossed_mean([2.0, 2.0], 0.0, 0)[:4] == (2.0, 2.0, 2.0, 0.0)
    assert crossed_items(np.ones((2, 3)) * 0)[3] == 1.0
    assert [crossed_mean(x, 0.0, 0).verdict for x in ([1, 1], [-1, -1], [-1, 1])] == [1, -1, 0]
