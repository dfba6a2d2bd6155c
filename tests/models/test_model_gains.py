"""The ways to name gains."""

import pytest

from pidformer import InputError, PIDGains
from pidformer.models import as_gains, layer_gains, resolve_gains

GAINS = PIDGains(p=0.4, i=0.1, d=0.05, beta=0.5)


@pytest.mark.parametrize("given", [GAINS, "0.4,0.1,0.05,0.5", GAINS.to_dict()])
def test_all_spellings_agree(given):
    assert as_gains(given) == resolve_gains(given, 3) == GAINS
    assert resolve_gains([given] * 3, 3) == (GAINS,) * 3


def test_presets_are_the_papers():
    assert as_gains("lm") == PIDGains.paper("lm")


def test_layers_share_one_controller_or_have_their_own():
    assert layer_gains(None, 2) == (None, None)
    assert layer_gains(GAINS, 2) == (GAINS, GAINS)
    assert layer_gains((GAINS, PIDGains()), 2) == (GAINS, PIDGains())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("diet", "unknown preset 'diet'; did you mean 'deit'"),
        ("0.1,0.2", "gains must be P,I,D"),
        ({"k": 1.0}, "unknown gain 'k'"),
        ([GAINS] * 2, "gains for 2 layers do not fit a model of 3 layers"),
        ([GAINS, None, GAINS], r"got None; PIDGains\(\) is a layer without control"),
        (0.5, "gains must be PIDGains"),
    ],
)
def test_bad_gains_are_refused_in_one_line(given, message):
    with pytest.raises(InputError, match=message) as caught:
        resolve_gains(given, 3)
    assert "\n" not in str(caught.value)
