import math

import pytest

from pidformer.errors import InputError
from pidformer.robustness.corruptions import (
    ALEXNET_ERROR,
    CORRUPTIONS,
    mce,
    mean_corruption_error,
)


def flat(value):
    return {name: [value] * 5 for name in CORRUPTIONS}


def test_alexnet_has_an_mce_of_100():
    assert mce({name: [error] * 5 for name, error in ALEXNET_ERROR.items()}) == pytest.approx(100)


def test_mce_weighs_each_corruption_by_alexnet():
    errors = {name: [0.0] * 5 for name in CORRUPTIONS} | {"fog": [0.1, 0.2, 0.3, 0.4, 0.5]}
    assert mce(errors) == pytest.approx(100 * 0.3 / 0.819324 / 15)


def test_the_mean_error_is_plain():
    assert mean_corruption_error(flat(0.25)) == pytest.approx(0.25)
    assert mean_corruption_error({"fog": [0, 0.1, 0.2, 0.3, 0.4]}) == pytest.approx(0.2)
    assert math.isclose(mce(flat(0.5)), 100 * 0.5 * sum(1 / e for e in ALEXNET_ERROR.values()) / 15)


def test_the_extra_four_do_not_count_in_mce():
    assert mce(flat(0.3) | {"saturate": [1.0] * 5}) == mce(flat(0.3))


@pytest.mark.parametrize(
    ("score", "errors", "message"),
    [
        (mce, {n: [0.1] * 5 for n in CORRUPTIONS if n != "snow"}, "15 corruptions, snow missing"),
        (mean_corruption_error, {}, "no errors to average"),
        (mean_corruption_error, {"fogg": [0.1] * 5}, "did you mean 'fog'"),
        (mean_corruption_error, {"fog": [0.1] * 4}, "fog needs the error rates of 5 severities"),
        (mean_corruption_error, {"fog": [10.0] * 5}, r"must be in \[0, 1\]"),
        (mean_corruption_error, {"fog": [float("nan")] * 5}, r"must be in \[0, 1\]"),
    ],
)
def test_bad_errors_are_refused(score, errors, message):
    with pytest.raises(InputError, match=message) as caught:
        score(errors)
    assert "\n" not in str(caught.value)
