import pytest
from hypothesis import given
from hypothesis import strategies as st

from pidformer.ranges import levels_of


def test_lists_and_ranges():
    assert levels_of("0:0.8:0.2", 10) == [0.0, 0.2, 0.4, 0.6, 0.8]
    assert levels_of("0,0.1,0.3", 10) == [0.0, 0.1, 0.3]
    assert levels_of("1:3:0.5", 10) == [1.0, 1.5, 2.0, 2.5, 3.0]


@pytest.mark.parametrize(
    "text", ["", "a", "0:1", "0:1:0", "0:1:0:1", "0:1:a", "0:inf:1", "nan:1:1"]
)
def test_what_is_neither_gives_nothing(text):
    assert levels_of(text, 10) == []


@given(st.integers(1, 50), st.integers(1, 1000))
def test_a_range_stops_one_beyond_what_is_allowed(most, count):
    assert levels_of(f"0:{count - 1}:1", most) == [float(i) for i in range(min(count, most + 1))]
