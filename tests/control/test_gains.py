import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pidformer.control import PAPER_GAINS, PIDGains, stability_report
from pidformer.errors import InputError
from pidformer.models.gains import as_gains

unit = st.floats(0, 10, allow_nan=False)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"p": -0.1}, ["gain p", ">= 0", "-0.1"]),
        ({"i": math.nan}, ["gain i", "finite", "nan"]),
        ({"d": math.inf}, ["gain d", "finite", "inf"]),
        ({"p": 1e308}, ["gain p", "at most 1e+06", "1e+308"]),
        ({"beta": 0.0}, ["beta", "(0, 1]", "0.0"]),
        ({"beta": 1.5}, ["beta", "(0, 1]", "1.5"]),
        ({"p": "much"}, ["gain p", "number", "much"]),
    ],
)
def test_a_bad_gain_names_field_value_and_range(fields, words):
    with pytest.raises(InputError) as caught:
        PIDGains(**fields)
    assert all(word in str(caught.value) for word in words)
    assert "\n" not in str(caught.value)


@given(p=unit, i=unit, d=unit, beta=st.floats(0.01, 1))
def test_json_and_text_round_trips_are_exact(p, i, d, beta):
    gains = PIDGains(p=p, i=i, d=d, beta=beta)
    assert PIDGains.from_json(gains.to_json()) == gains
    assert PIDGains.parse(f"{p!r}, {i!r},{d!r},{beta!r}") == gains
    assert eval(repr(gains)) == gains


def test_parse_takes_three_numbers_with_beta_one():
    assert PIDGains.parse("0.8,0.5,0.05") == PIDGains(p=0.8, i=0.5, d=0.05, beta=1.0)
    for text in ("", "1", "1,2", "1,2,3,4,5", "a,b,c"):
        with pytest.raises(InputError):
            PIDGains.parse(text)


def test_paper_gains_are_those_of_the_paper():
    assert PIDGains.paper("deit") == PIDGains(p=0.8, i=0.5, d=0.05, beta=0.1)
    assert PIDGains.paper("segmenter") == PIDGains(p=0.5, i=0.3, d=0.05, beta=1.0)
    assert PIDGains.paper("lm") == PIDGains(p=0.4, i=0.5, d=0.1, beta=0.3)
    with pytest.raises(InputError, match="did you mean 'deit'"):
        PIDGains.paper("diet")
    assert set(PAPER_GAINS) == {"deit", "segmenter", "lm"}


def test_presets_are_the_papers_and_a_stable_default():
    assert {name: PIDGains.preset(name) for name in PAPER_GAINS} == PAPER_GAINS
    assert as_gains("default") == PIDGains.preset("default") == PIDGains(p=0.6, beta=1.0)
    assert stability_report(PIDGains.preset("default"), kappa_min=-0.3).stable
    with pytest.raises(InputError, match=r"unknown preset 'defalt'; did you mean 'default'\?"):
        PIDGains.preset("defalt")


@pytest.mark.parametrize(
    ("p", "i", "d", "kind"),
    [
        (0, 0, 0, "softmax"),
        (1, 0, 0, "P"),
        (1, 0, 1, "PD"),
        (1, 1, 0, "PI"),
        (1, 1, 1, "PID"),
        (0, 1, 0, "I"),
        (0, 0, 1, "D"),
        (0, 1, 1, "ID"),
    ],
)
def test_kind_names_the_terms_that_act(p, i, d, kind):
    assert PIDGains(p=p, i=i, d=d).kind == kind


def test_gains_are_frozen_and_keyword_only():
    with pytest.raises(AttributeError):
        PIDGains().p = 1.0
    with pytest.raises(TypeError):
        PIDGains(1, 2, 3)


def test_an_unknown_field_in_json_is_named():
    with pytest.raises(InputError, match="unknown gain 'bta'; did you mean 'beta'"):
        PIDGains.from_json('{"p": 1, "bta": 1}')
    for text in ("not json", "[1, 2]"):
        with pytest.raises(InputError):
            PIDGains.from_json(text)


def test_a_number_too_large_for_a_float_is_refused():
    with pytest.raises(InputError, match="gain p must be a number"):
        PIDGains(p=10**400)
