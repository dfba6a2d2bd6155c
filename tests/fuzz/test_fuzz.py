"""A sample of the fuzzer's cases; `make fuzz` runs ten thousand."""

import pytest

from tests.fuzz.__main__ import shown
from tests.fuzz.box import sandbox
from tests.fuzz.cases import some
from tests.fuzz.files import all_cases
from tests.fuzz.harness import GOOD, run


@pytest.mark.slow
def test_wrong_values_and_damaged_files_end_in_one_line():
    with sandbox() as box:
        outcomes = [run(case, box) for case in some(all_cases(box, seed=0), 250, seed=0)]
    bad = [shown(outcome) for outcome in outcomes if outcome.verdict not in GOOD]
    assert not bad, "\n".join(bad)
    assert {outcome.verdict for outcome in outcomes} == set(GOOD)
