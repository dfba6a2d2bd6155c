"""The paper's claims: what is said of them follows from the records, and nothing else."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from matplotlib.figure import Figure

from pidformer import PIDGains
from pidformer.errors import InputError
from pidformer.report.table1_view import TABLE1
from pidformer.report.table_view import minus
from pidformer.report.templates import TEXTS
from pidformer.statistics import Crossed
from study import verdicts
from study.claims import read_claims
from study.comparisons import Compared, compare_all, compare_pairs
from study.pages import BEGIN, END, filled, relinked
from study.records import read_studies
from study.training_length import length_figure
from study.verdicts import Answers, claims_table, judge_claim, told
from tests.study.made import cells, metric, study_of

ROOT = Path(__file__).parents[2]
VALUES = {"softmax": (5, 6, 7), "pid": (7, 8.1, 8.9), "worse": (3, 4.1, 4.9), "even": (5.1, 5.8, 7)}
GIVEN = {
    "order": ["s"],
    "advice": "It gains {s/pid/x}.",
    "words": "How to read it.",
    "length": "Longer is better.",
    "columns": {"a": "ours", "b": "theirs"},
    "parts": [
        {
            "title": "Table 1",
            "answers": {"a": ["s/pid"], "b": ["s/worse", "s/even"]},
            "claims": [
                {"claim": "Clean", "paper": [72.17, 73.13], "metric": "x", "short": "clean"},
                {"claim": "Fewer", "paper": "less", "metric": "x", "expects": "worse"},
                {"claim": "A", "paper": [6.9, 8.82]},
                {"claim": "T", "paper": "proved", "known": {"a": "no"}, "verdict": {"a": "holds"}},
            ],
        }
    ],
}


def changed(*keys, value):
    """The claims with another value at a place."""
    found = yaml.safe_load(yaml.safe_dump(GIVEN))
    place = found
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return found


@pytest.fixture
def study(monkeypatch):
    monkeypatch.setitem(verdicts.METRICS, "classification", lambda _: {"x": metric()})
    found = study_of(VALUES)
    runs = [_at(run, 300) for run in found.runs]
    return found.only(runs)


def _at(run, epochs):
    return replace(run, recipe={"model": {}, "schedule": {"epochs": epochs}})


def read(folder, given):
    (folder / "claims.yaml").write_text(yaml.safe_dump(given))
    return read_claims([folder])


def test_a_claim_is_answered_by_the_difference_of_its_rows(study, tmp_path):
    claims, answers = read(tmp_path, GIVEN), Answers([study])
    by_name = {one.variant: one for one in compare_all(study, [metric()])}
    text = claims_table(claims, answers)
    assert cells(text, "**Table 1**")[2:] == ["300 epochs, 3 seeds", "", "300 epochs, 3 seeds", ""]
    row = cells(text, "Clean")
    assert row[1] == "+0.96 (72.17 to 73.13)"
    assert row[2:4] == [by_name["pid"].text, "**holds**"]
    assert row[4:] == [by_name["worse"].text, "**does not hold**"]  # as many seeds: the first
    assert cells(text, "Fewer")[3::2] == ["**does not hold**", "**holds**"]
    assert cells(text, "A")[2:] == ["-", "not measured"] * 2
    assert cells(text, "T")[2:] == ["no", "**holds**", "", ""]
    short = claims_table(claims, answers, is_short=True)
    assert len(short.splitlines()) == 3 and cells(short, "clean")[2] == by_name["pid"].text
    assert cells(short, "the paper's claim")[2] == "ours; 300 epochs, 3 seeds unless said"
    assert told(claims.advice, answers) == f"It gains {by_name['pid'].text}."
    (between,) = compare_pairs(study, [("pid", "worse")], [metric()])
    assert told("{s/pid minus worse/x}", answers) == between.text != by_name["pid"].text
    with pytest.raises(InputError, match="unknown controlled variant of study s in"):
        told("{s/pid minus softmax/x}", answers)


def test_a_number_in_the_advice_says_that_seeds_are_still_to_come(study, monkeypatch):
    answers = Answers([study])
    (one,) = (one for one in compare_all(study, [metric()]) if one.variant == "pid")
    monkeypatch.setattr(answers, "find", lambda *_: one._replace(registered=5))
    assert told("by {s/pid/x} points", answers) == f"by {one.text} (3 of 5 seeds) points"


def test_a_claim_of_several_budgets_needs_them_all_and_counts_the_fewest_seeds(
    study, tmp_path, monkeypatch
):
    x = metric()
    twice = replace(x, title="y", read=lambda r: 2 * x.read(r))
    twice = replace(twice, find=lambda run: x.find(run) if run.seed < 2 else None)
    other = replace(x, title="z", find=lambda run: None if run.variant == "pid" else x.find(run))
    known = {"x": x, "y": twice, "z": other}
    monkeypatch.setitem(verdicts.METRICS, "classification", lambda _: known)
    names = {"Both": ["y", "x"], "All": ["x", "z"], "One": "x", "Same": "x"}
    found = [{"claim": name, "paper": "above", "metric": own} for name, own in names.items()]
    part = {"title": "T", "answers": {"a": ["s/pid"]}, "claims": found}
    given = GIVEN | {"columns": {"a": "ours"}, "parts": [part]}
    text = claims_table(read(tmp_path, given), Answers([study]))
    assert cells(text, "**T**")[2] == "300 epochs, 3 seeds"
    effect = "+2.00 to +4.10 at 2 budgets, 2 resolved; 300 epochs, 2 seeds"
    assert cells(text, "Both")[2:] == [effect, "**holds**"]
    assert cells(text, "All")[2:] == ["-", "not measured"]


def test_the_row_with_the_most_seeds_answers(study, tmp_path):
    fewer = study.only([r for r in study.runs if r.variant != "worse" or r.seed < 2])
    text = claims_table(read(tmp_path, GIVEN), Answers([fewer]))
    even = next(one for one in compare_all(fewer, [metric()]) if one.variant == "even")
    assert cells(text, "Clean")[4:] == [even.text, "not resolved"]


def test_registered_rows_answer_as_soon_as_they_have_runs(study, tmp_path):
    """Named in claims.yaml before: two seeds of the first study, then the registered ones."""
    part = GIVEN["parts"][0] | {"answers": {"a": ["novels-seeds/p", "s/pid"]}}
    part["claims"] = [{"claim": "T", "paper": "x", "metric": {"novels-seeds": "y", "s": "x"}}]
    given = GIVEN | {"order": ["novels-seeds", "s"], "parts": [part]}
    claims = read(tmp_path, given)
    answers = Answers([study])
    by_name = {one.variant: one for one in compare_all(study, [metric()])}
    assert answers.ordered(claims.order) == ["s"]
    assert cells(claims_table(claims, answers), "T")[2:4] == [by_name["pid"].text, "**holds**"]
    assert told("{novels-seeds/p minus pid_paper/y}", answers) == "no runs yet"
    alone = read(tmp_path, given | {"parts": [part | {"answers": {"a": ["novels-seeds/p"]}}]})
    assert cells(claims_table(alone, answers), "T")[2:4] == ["-", "no runs yet"]
    with pytest.raises(InputError, match="unknown controlled variant of study novels-seeds"):
        told("{novels-seeds/pdi/y}", answers)

    def made(count):
        values = {name: [n + k for k in range(count)] for name, n in (("softmax", 5), ("p", 4))}
        runs = [_at(run, 8) for run in study_of(values, range(10, 10 + count)).runs]
        return replace(study.only(runs), name="novels-seeds")

    for count, told_ in ((2, by_name["pid"].text), (4, minus("-1.00 [-1.00, -1.00]"))):
        both = Answers([study, made(count)])
        both._metrics = lambda name: {"s": {"x": metric()}, "novels-seeds": {"y": metric()}}[name]
        assert both.ordered(claims.order) == ["novels-seeds", "s"]
        row = cells(claims_table(claims, both), "T")
        assert row[2] == told_ and row[3] == ("**holds**" if count == 2 else "not decided yet")


def test_the_verdict_follows_from_interval_and_seeds():
    def of(low, high, seeds=3, better=1, p=0.01):
        found = Crossed(mean=(low + high) / 2, low=low, high=high, p=p, seeds=seeds)
        return Compared("a", "b", metric(better), found)

    up, down, open_ = of(1, 2), of(-2, -1), of(-1, 2, p=0.4)
    assert judge_claim([], "better") == "not measured"
    assert judge_claim([of(1, 2, seeds=1)], "better") == "one seed only"
    assert judge_claim([up, of(1, 2, seeds=1)], "better") == "one seed only"
    assert judge_claim([up, up], "better") == "holds"
    early = up._replace(registered=5)  # seeds are still to come
    assert judge_claim([early, up], "better") == "not decided yet"
    assert judge_claim([up._replace(registered=3)], "better") == "holds"
    assert judge_claim([up, open_], "better") == "not resolved"
    assert judge_claim([up, open_, down], "better") == "does not hold"
    assert judge_claim([of(1, 2, p=0.2)], "better") == "not resolved"  # the seeds disagree
    assert judge_claim([of(-2, -1, better=0)], "less") == "holds"
    assert judge_claim([of(1, 2, better=0)], "less") == "does not hold"
    assert judge_claim([of(-2, -1, better=-1)], "better") == "holds"


@pytest.mark.parametrize(
    ("place", "value", "line"),
    [
        (("order",), ["t"], "unknown study in claims.yaml or about.md 't'"),
        (("parts", 0, "answers", "a"), ["t/pid"], "unknown study in claims.yaml or about.md 't'"),
        (("parts", 0, "answers", "a"), ["s/pdi"], "did you mean 'pid'?"),
        (("parts", 0, "answers", "a"), ["s/softmax"], "unknown controlled variant of study s"),
        (("parts", 0, "answers", "a"), ["pid"], "is STUDY/VARIANT, got 'pid'"),
        (("parts", 0, "answers", "c"), ["s/pid"], "unknown key of answers of 'Table 1' 'c'"),
        (("parts", 0, "claims", 0, "metric"), "y", "unknown metric of claim 'Clean'"),
        (("parts", 0, "claims", 0, "expects"), "good", "expects must be one of better, worse"),
        (("parts", 0, "claims", 0, "paper"), [1], "must be [softmax, PID] or words"),
        (("parts", 0, "claims", 3, "verdict"), {"a": "yes"}, "unknown verdict of claim 'T' 'yes'"),
        (("parts", 0, "claims", 0), "Clean", "must be a section of keys"),
        (("parts",), "none", "claims.yaml: parts must be a list"),
        (
            ("advice",),
            "It gains {s/pid/y}.",
            "unknown metric of s/pid in claims.yaml or about.md 'y'",
        ),
        (("more",), 1, "unknown key of claims.yaml 'more'"),
    ],
)
def test_what_claims_cannot_name_gets_one_line(place, value, line, study, tmp_path):
    def make():
        claims, answers = read(tmp_path, changed(*place, value=value)), Answers([study])
        answers.ordered(claims.order)
        claims_table(claims, answers)
        told(claims.advice, answers)

    with pytest.raises(InputError, match=re.escape(line)) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_yaml_gets_one_line(tmp_path):
    (tmp_path / "claims.yaml").write_text("parts: [")
    with pytest.raises(InputError, match="is not YAML"):
        read_claims([tmp_path])
    assert read_claims([tmp_path / "elsewhere"]) is None


def test_the_papers_numbers_are_those_of_its_tables():
    claims = yaml.safe_load((ROOT / "results" / "claims.yaml").read_text())
    given = [one["paper"] for part in claims["parts"] for one in part["claims"]]
    numbers = list(dict.fromkeys(tuple(pair) for pair in given if not isinstance(pair, str)))
    tables = (TABLE1, TEXTS["paper"]["table2"], TEXTS["paper"]["table3"])
    assert numbers == [tuple(pair) for table in tables for pair in table.values()]
    told: dict[str, set[str]] = {}
    for one in (one for part in claims["parts"] for one in part["claims"]):
        told.setdefault(one["claim"], set()).add(str(one["paper"]))
    assert all(len(pairs) == 1 for pairs in told.values())  # the same in both domains


@pytest.mark.slow
def test_the_reason_for_the_default_gains_is_what_the_records_say():
    text = (ROOT / "docs" / "control.md").read_text(encoding="utf-8")
    answers = Answers(read_studies([ROOT / "results"]))
    short, long = "tiny-imagenet-100", "tiny-imagenet-100-long"
    rows = {
        "P 0.6 (`default`)": ("p_short", "p", "p"),
        "PID 0.4, 0.1, 0.05": ("pid_short", "pid", "pid"),
        "PID from 0.4, 0.1, 0.05, learned": (None, "pid_learned", None),
        "PI with the mean of the errors": ("pi_averaged_short", None, None),
        "the paper's 0.8, 0.5, 0.05, beta 0.1 (`deit`)": (None, None, "pid_paper"),
    }
    for name, variants in rows.items():
        said = cells(text, name)[1:]
        for cell, study, variant in zip(said, (short, short, long), variants, strict=True):
            if variant is None:
                assert cell == "not trained"
                continue
            one = answers.find(study, variant, "Clean")
            found, seeds = one.found, f", {one.seeds_text} seeds" if study == long else ""
            assert cell == minus(f"{found.mean:+.2f} [{found.low:.2f}, {found.high:.2f}]") + seeds
    assert PIDGains.preset("default") == PIDGains(p=0.6)


def test_the_readme_is_filled_between_its_marks_alone(tmp_path):
    text = f"# Mine\n\n{BEGIN}\nold\n{END}\n\nthe rest\n"
    once = filled(text, "new")
    assert (
        once == f"# Mine\n\n{BEGIN}\n\nnew\n\n{END}\n\nthe rest\n" and filled(once, "new") == once
    )
    with pytest.raises(InputError, match="put it where the table ends"):
        filled(f"{BEGIN}\n", "new")
    links = "[a](b.md#c) [d](#e) ![f](images/g.png) [h](https://i)"
    assert relinked(links, "../") == ("[a](../b.md#c) [d](#e) ![f](../images/g.png) [h](https://i)")


@pytest.mark.slow
def test_one_seed_is_hollow_in_the_figure_over_the_length_of_training():
    panels, words = length_figure(read_studies([ROOT / "results"]))
    figure = Figure()
    panels[0].draw(figure)
    (axes,) = figure.axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels[:3] == ["P 0.6", "PID 0.4, 0.1, 0.05", "the paper's PID"]
    ticks = [text.get_text() for text in axes.get_xticklabels()]
    assert ticks == ["10", "15", "40", "100", "300"]
    lines = {line.get_label(): line for line in axes.lines}
    answers = Answers(read_studies([ROOT / "results"]))
    names = ("p_10", "p_15", "p_short", "p")
    wanted = [answers.find("tiny-imagenet-100", name, "Clean").found.mean for name in names]
    long = answers.find("tiny-imagenet-100-long", "p", "Clean").found
    assert [*lines["P 0.6"].get_ydata()] == pytest.approx([*wanted, long.mean])
    hollow = [line for line in axes.lines if line.get_markerfacecolor() == "white"]
    singles = [line for line in hollow if len(line.get_xdata())]
    assert bool(singles) == (long.seeds == 1) == ("one seed" in labels)
    assert ("Hollow points have one seed" in words) == bool(singles)


@pytest.mark.parametrize(
    ("metric", "seeds"),
    [("Clean", 5), ("similarity", 5), ("PGD 1/255", 3), ("AutoAttack, 500 images", 2)],
)
def test_a_measure_of_some_seeds_waits_for_these_alone(metric, seeds):
    answers = Answers(read_studies([ROOT / "results" / "tiny-imagenet-100-long"]))
    found = answers.find("tiny-imagenet-100-long", "pid_paper", metric)
    assert found.registered == seeds == found.found.seeds
