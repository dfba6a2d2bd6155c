"""A sample of the fuzzer's cases; `make fuzz` runs ten thousand."""

import re

import pytest

from tests.fuzz.__main__ import shown
from tests.fuzz.box import sandbox
from tests.fuzz.cases import TRAINING, VALID, Case, some
from tests.fuzz.files import DAMAGED, KEYED, all_cases
from tests.fuzz.harness import GOOD, VERDICTS, run
from tests.fuzz.table import BEGIN, END, PAGE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def box():
    with sandbox() as box:
        yield box


@pytest.fixture(scope="module")
def cases(box):
    return all_cases(box, seed=0)


def test_wrong_values_and_damaged_files_end_in_one_line(box, cases):
    outcomes = [run(case, box) for case in some(cases, 200, seed=0)]
    bad = [shown(outcome) for outcome in outcomes if outcome.verdict not in GOOD]
    assert not bad, "\n".join(bad)
    assert {outcome.verdict for outcome in outcomes} == set(GOOD)


def test_what_the_cases_change_works_as_it_is(box):
    """A case says something only where the command, and each file it names, is good without it."""
    files = {**KEYED, **DAMAGED}
    assert all(any(box.glob(pattern)) for pattern in files)
    readers = {command for _, commands in files.values() for command in commands}
    for command in sorted({*VALID.values(), *TRAINING.values(), *readers}):
        outcome = run(Case("valid", "valid", command), box)
        assert outcome.verdict == "accepted" and outcome.code != 1, shown(outcome)


def test_the_page_shows_ten_thousand_cases_of_every_kind(cases):
    """Where this fails, `python -m tests.fuzz --table` is to be run again."""
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    rows = re.findall(r"^\| (.+?) \| ([\d,]+) \| (.+) \|$", table, re.MULTILINE)
    assert {name for name, *_ in rows} == {*(case.kind for case in cases), "**all**"}
    counts = {name: [int(n.replace(",", "")) for n in rest.split(" | ")] for name, _, rest in rows}
    found = dict(zip(VERDICTS, counts["**all**"], strict=True))
    assert sum(found.values()) >= 10_000 and sum(found[name] for name in GOOD) == sum(
        found.values()
    )
