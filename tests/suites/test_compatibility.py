"""docs/compatibility.md says what was counted, and nothing failed."""

from pathlib import Path

import pytest

from tests.suites.compatibility import PAGE, ROOT, ROWS, Row, measure, page, read_counts


def test_the_page_is_the_one_that_the_counts_make():
    assert PAGE.read_text() == page(read_counts()), "python -m tests.suites.compatibility"


def test_every_row_was_measured_and_nothing_failed():
    counts = read_counts()
    assert counts.keys() <= ROWS.keys()
    assert {"transformers-default", "transformers-paper", "timm"} <= counts.keys()
    for name, found in counts.items():
        assert found["passed"] > 0 and found["failed"] == 0, name
        assert "torch" in found["versions"] and len(found["versions"]) > 1, name


def test_the_tests_of_a_row_exist():
    for row in ROWS.values():
        assert all((ROOT / test).is_file() for test in row.tests), row.client


@pytest.mark.slow
def test_passed_skipped_and_failed_are_counted(tmp_path: Path):
    tests = tmp_path / "test_three.py"
    tests.write_text(
        "import pytest\ndef test_a(): pass\ndef test_b(): assert 0\n"
        "@pytest.mark.skip\ndef test_c(): pass\ndef test_d(): pass\n"
    )
    assert measure(Row("three", (), (str(tests),))) == {"passed": 2, "skipped": 1, "failed": 1}
    assert measure(Row("three", (), (str(tests),), "test_a")) == {
        "passed": 1,
        "skipped": 0,
        "failed": 0,
    }
