"""The rule for one more candidate: sums of mean differences, and no choice before all seeds."""

from dataclasses import replace

import numpy as np
import pytest

from pidformer.report.metrics import Metric
from pidformer.reproduce.study import Choice, StudyPlan, StudyRow
from study.choice import choice_section
from study.comparisons import compare_all
from tests.study.made import metric, study_of

SEEDS = (10, 11, 12)
VALUES = {
    "softmax": (5, 6, 7),
    "p": (6, 7, 7.5),
    "pid": (6, 7, 8.5),
    "pi": (4, 5, 7),
    "d": (9, 9, 9),
}


def section(values, rows=("p", "pid", "pi"), seeds=SEEDS, metrics=("Clean", "PGD"), ahead=False):
    plan = StudyPlan(
        name="s",
        recipe="",
        data=(),
        rows=tuple(
            StudyRow(name=n, group="g", overrides=(), seeds=SEEDS, suites={})
            for n in {**values, **dict.fromkeys(rows)}
        ),
        choice=Choice(rows=rows, metrics=metrics, ahead=ahead),
    )
    study = study_of({name: own[: len(seeds)] for name, own in values.items()}, seeds)
    cubed = Metric(title="PGD", find=metric().find, read=lambda r: metric().read(r) ** 3)
    found = [Metric(title="Clean", find=metric().find, read=metric().read)]
    found.append(cubed if ahead else replace(found[0], title="PGD"))
    return choice_section(plan, compare_all(study, found))


def lines(found):
    rows = found.body[1].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_the_largest_sum_of_means_is_chosen_among_the_rows_of_the_rule():
    (found,) = section(VALUES)
    rows = lines(found)
    assert [row[0] for row in rows] == ["pid", "p", "pi"]
    gains = {name: np.mean(np.subtract(VALUES[name], VALUES["softmax"])) for name in VALUES}
    for name, seeds, _, _, total in rows:
        assert seeds == "3 of 3"
        assert float(total.replace("\u2212", "-")) == pytest.approx(2 * gains[name], abs=0.005)
    assert found.body[0].endswith("That is **pid**.")


def test_a_row_that_is_behind_on_one_metric_is_chosen_only_if_all_are():
    """Of cubes the largest number decides: `pid` has the largest sum and is behind on Clean."""
    values = {"softmax": (5, 6, 7), "p": (5.1, 6.1, 7.1), "pid": (2, 5, 10), "pi": (2, 4, 10)}
    (found,) = section(values, ahead=True)
    assert [row[0] for row in lines(found)] == ["p", "pid", "pi"]
    assert found.body[0].endswith("That is **p**.") and "No row is ahead" not in found.body[0]
    (found,) = section({**values, "p": (4, 5, 6)}, ahead=True)
    assert found.body[0].endswith("No row is ahead on each. That is **pid**.")
    assert lines(found)[0][0] == "pid"


def test_nothing_is_chosen_while_a_row_lacks_a_seed():
    (found,) = section(VALUES, seeds=SEEDS[:2])
    assert "3 of 3, so none is chosen yet" in found.body[0] and "**" not in found.body[0]
    (found,) = section(VALUES, rows=("p", "absent"))
    assert [row[0] for row in lines(found)] == ["p"] and "1 of 2" in found.body[0]


def test_a_metric_that_lacks_a_seed_holds_up_the_choice():
    one = metric()
    pgd = Metric(title="PGD", find=lambda r: one.find(r) if r.seed < 12 else None, read=one.read)
    study = study_of({"softmax": (5, 6, 7), "p": (6, 7, 7.5)}, SEEDS)
    rows = (StudyRow(name="p", group="g", overrides=(), seeds=SEEDS, suites={}),)
    choice = Choice(rows=("p",), metrics=("Clean", "PGD"))
    plan = StudyPlan(name="s", recipe="", data=(), rows=rows, choice=choice)
    clean = replace(one, title="Clean")
    (found,) = choice_section(plan, compare_all(study, [clean, pgd]))
    assert lines(found)[0][1] == "2 of 3" and found.body[0].endswith("so none is chosen yet.")


def test_a_row_that_is_level_with_softmax_is_not_ahead_of_it():
    values = {"softmax": (5, 6, 7), "p": (5.1, 6.1, 7.1), "pid": (2, 5, 11), "pi": (4, 5, 6)}
    (found,) = section(values, rows=("p", "pid"), ahead=True)
    assert np.mean(values["pid"]) == np.mean(values["softmax"])
    assert found.body[0].endswith("That is **p**.") and lines(found)[1][0] == "pid"


def test_no_rule_and_no_runs_are_no_section():
    assert section({"softmax": (5, 6, 7)}, rows=("p",)) == []
    assert choice_section(StudyPlan(name="s", recipe="", data=(), rows=()), []) == []
