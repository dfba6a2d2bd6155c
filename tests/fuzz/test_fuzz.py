"""A sample of the fuzzer's cases; `make fuzz` runs ten thousand."""

import pytest

from tests.fuzz.__main__ import shown
from tests.fuzz.cases import some
from tests.fuzz.harness import run, sandbox


@pytest.mark.slow
def test_wrong_values_and_damaged_files_end_in_one_line():
    with sandbox() as box:
        outcomes = [run(case, box) for case in some(box, 150, seed=0)]
    bad = [shown(outcome) for outcome in outcomes if outcome.verdict != "ok"]
    assert not bad, "\n".join(bad)
    codes = {outcome.code for outcome in outcomes}
    assert {0, 2} <= codes  # some are harmless, most are refused
