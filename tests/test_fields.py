from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pidformer.errors import InputError, cut, shortened, unknown
from pidformer.fields import as_plain, as_type, number_range, parse_yaml, read_yaml, typed

NESTED = tuple(zip("abcdefghi", "bcdefghij", strict=True))


@dataclass(frozen=True)
class Inner:
    share: float = 0.5
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outer:
    count: int
    kind: Literal["a", "b"] = "a"
    inner: Inner | None = None
    pair: tuple[float, float] = (0.0, 1.0)


def test_plain_data_become_a_typed_value():
    given = parse_yaml("{count: 3, inner: {share: 1e-3, names: [x, y]}, pair: [1, 2.5]}", "it")
    made = typed(Outer, given)
    assert made == Outer(3, "a", Inner(0.001, ("x", "y")), (1.0, 2.5))
    assert as_plain({"a": (1, (2,))}) == {"a": [1, [2]]}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "count is missing"),
        ({"count": True}, "count must be a whole number, got True"),
        ({"count": 1.5}, "count must be a whole number, got 1.5"),
        ({"count": float("nan")}, "count must be a whole number, got nan"),
        ({"count": 10**5000}, "count must be a whole number below 2**64"),
        ({"count": 1e300}, "count must be a whole number below 2**64, got 1e+300"),
        ({"count": "9" * 5000}, "count must be a whole number, got '9999"),
        ({"count": [10**5000]}, "count must be a whole number, got list"),
        ({"count": 1, "inner": {"share": 10**400}}, "inner.share must be a number below 2**64"),
        ({"count": 1, "inner": {"share": float("inf")}}, "inner.share must be finite, got inf"),
        ({"count": 1, "inner": {"shore": 1}}, "did you mean 'inner.share'?"),
        ({"count": 1, "inner": [1] * 999}, "inner must be a section of keys, got [1, 1"),
        ({"count": 1, "inner": {"names": [3]}}, "inner.names must be text, got 3"),
        ({"count": 1, "pair": [1]}, "pair must have 2 entries, got [1]"),
        ({"count": 1, "kind": ["a"]}, "kind must be one of a, b, got ['a']"),
        ({"count": 1, "k" * 5000: 1}, "unknown recipe key 'kkk"),
        ("text " * 999, "must be a section of keys"),
    ],
)
def test_each_wrong_value_gets_one_short_line(fields, words):
    with pytest.raises(InputError) as caught:
        typed(Outer, fields)
    line = str(caught.value)
    assert words in line and "\n" not in line and len(line) <= 300


def test_digits_between_colons_are_text():
    given = parse_yaml("{a: 1:2:3, b: 12:30, c: 1:30.5, d: -1:30, e: 12, f: 0x1f, g: 1_000}", "it")
    assert list(given.values()) == ["1:2:3", "12:30", "1:30.5", "-1:30", 12, 31, 1000]


@pytest.mark.parametrize(
    "text", ["a: 1\nb: 2\na: 3", "{a: {b: 1, b: 2}}", "- {a: 1}\n- {c: 1, c: 1}"]
)
def test_a_key_that_is_given_twice_is_refused(text):
    """PyYAML would keep the last, and drop a whole section of a recipe without a word."""
    with pytest.raises(InputError, match=r"it is not YAML .'[abc]' is given twice"):
        parse_yaml(text, "it")
    assert parse_yaml("- {a: 1}\n- {a: 1}", "it") == [{"a": 1}, {"a": 1}]
    assert parse_yaml("x: &x {a: 1, b: 2}\ny: {<<: *x, a: 3}", "it")["y"] == {"a": 3, "b": 2}


def test_unreadable_yaml_gets_one_short_line(tmp_path):
    for text in ("a: [", "a: " + "9" * 5000, "[" * 5000, "a: b: c\n" * 99):
        with pytest.raises(InputError, match="it is not YAML") as caught:
            parse_yaml(text, "it")
        assert "\n" not in str(caught.value) and len(str(caught.value)) <= 300
    (tmp_path / "a.yaml").write_bytes(b"# \xe9")
    with pytest.raises(InputError, match=r"a\.yaml is not text in UTF-8"):
        read_yaml(tmp_path / "a.yaml", "recipe")


def test_long_values_are_cut_in_the_middle():
    assert shortened("a" * 500 + "b" * 500).startswith("'aaa")
    assert shortened("a" * 500 + "b" * 500).endswith("bbb'")
    assert shortened(10**5000) == "a whole number of thousands of digits"
    assert cut("x\ny") == "x y" and len(cut("z" * 999)) == 80


def test_many_known_names_are_counted_where_they_do_not_fit():
    line = str(unknown("name", "n1000", [f"name{k}" for k in range(500)]))
    assert len(line) <= 300 and line.endswith(" more")
    names = [f"{set_name}/recipe" for set_name in "abcdefghijklmnopqrstuvw" for _ in range(2)]
    line = str(unknown("recipe", "w/recip", names))
    assert line.index("known: w/recipe") > 0  # the most alike come first


def test_an_optional_value_may_be_null():
    assert as_type(int | None, None, "it") is None
    assert as_type(int | None, 2.0, "it") == 2


def test_lists_and_ranges_of_numbers():
    assert number_range("0:0.8:0.2", 10) == [0.0, 0.2, 0.4, 0.6, 0.8]
    assert number_range("0,0.1,0.3", 10) == [0.0, 0.1, 0.3]
    assert number_range("1:3:0.5", 10) == [1.0, 1.5, 2.0, 2.5, 3.0]


@pytest.mark.parametrize(
    "text", ["", "a", "0:1", "0:1:0", "0:1:0:1", "0:1:a", "0:inf:1", "nan:1:1"]
)
def test_what_is_neither_a_list_nor_a_range_gives_nothing(text):
    assert number_range(text, 10) == []


@given(st.integers(1, 50), st.integers(1, 1000))
def test_a_range_stops_one_beyond_what_is_allowed(most, count):
    assert number_range(f"0:{count - 1}:1", most) == [float(i) for i in range(min(count, most + 1))]


@pytest.mark.parametrize(
    "text",
    [
        "&a [*a]",
        "{a: &a {b: *a}}",
        "[&a [1, 1], " + ", ".join(f"&{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in NESTED) + "]",
    ],
    ids=["list", "section", "billions"],
)
def test_references_that_nest_without_end_are_one_line(text):
    with pytest.raises(InputError, match="is not YAML \\(its references nest without end\\)"):
        parse_yaml(text, "recipe")


def test_references_are_read():
    assert parse_yaml("{a: &a [1, 2], b: *a, c: {<<: {d: 3}}}", "x")["b"] == [1, 2]
