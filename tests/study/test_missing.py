"""What is still to be run is what `pidformer reproduce` would make beside the published records."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pidformer.reproduce.plan import study_plan
from study.__main__ import main
from study.missing import lacking_text, missing_text, progress
from study.records import Study, load_registered, registered_studies
from tests.study.made import cells, study_of

ROOT = Path(__file__).parents[2]
FILES = [name for name in registered_studies() if load_registered(name).recipe]


def made(name, *runs):
    """A study of that name that holds these runs."""
    one = study_of({"softmax": (5,)}, seeds=(0,)).runs[0]
    headers = [replace(one.header, settings=one.header.settings | {"run": run}) for run in runs]
    return Study(name=name, title="", about="", runs=tuple(replace(one, header=h) for h in headers))


@pytest.mark.parametrize("name", FILES)
def test_missing_runs_and_their_cost_are_those_of_the_plan(name, tmp_path):
    plan = load_registered(name)
    there = [f"{plan.rows[0].name}-seed{plan.rows[0].seeds[0]}", f"{plan.rows[-1].name}-seed9"]
    sets = [*plan.data, *(d for row in plan.rows if row.backbone for d in row.backbone.data)]
    for place in (*(f"data/{one}" for one in sets), f"results/{name}"):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
    (tmp_path / "results" / name / f"{there[0]}.jsonl").touch()
    jobs = study_plan(tmp_path, data=tmp_path / "data", study=plan).jobs
    found = [one for one in progress([made(name, *there)]) if one.study == name]
    runs = {Path(job.arguments["run"]).name for job in jobs if job.kind == "publish"}
    assert {run for one in found for run in one.missing} == runs and there[0] not in runs
    assert sum(one.seconds for one in found) == pytest.approx(sum(job.seconds for job in jobs))
    assert sum(one.registered for one in found) == len(runs) + 1


def test_groups_that_lack_nothing_are_counted_and_not_listed():
    plan = load_registered("windows")
    all_ = [f"{row.name}-seed{s}" for row in plan.rows if row.group == "rotary" for s in row.seeds]
    last = [f"{r.name}-seed{s}" for r in plan.rows if r.group != "rotary" for s in r.seeds][1:]
    found = [one for one in progress([made("windows", *all_, *last)]) if one.study == "windows"]
    text = missing_text(found)
    assert text.startswith("29 of 30 registered runs") and "| rotary |" not in text
    line = cells(text, "windows")
    assert line[1:6] == ["sinusoidal", "3 x 5", "15", "14", "1 (softmax_sinusoidal-seed50)"]
    said = lacking_text(found, "windows")
    assert said.startswith("**Not all runs are in**") and "`sinusoidal` has 14 of 15." in said
    assert lacking_text(found, "family") == ""


def test_when_all_runs_are_in_nothing_is_listed():
    plan = load_registered("windows")
    runs = [f"{row.name}-seed{seed}" for row in plan.rows for seed in row.seeds]
    found = [one for one in progress([made("windows", *runs)]) if one.study == "windows"]
    assert missing_text(found) == "All 30 registered runs ([study.md](study.md)) are in."


@pytest.mark.slow
def test_the_command_lists_every_group_as_the_page_has_them(capsys):
    assert main(["missing", "--records", str(ROOT / "results"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    groups = {(name, g) for name in registered_studies() for g in load_registered(name).groups}
    assert {(one["study"], one["group"]) for one in found} == groups
    for one in found:
        files = {path.stem for path in (ROOT / "results" / one["study"]).glob("*.jsonl")}
        assert not files & {*one["missing"]}
        assert one["in"] == one["registered"] - len(one["missing"])
    page = (ROOT / "docs" / "results.md").read_text().partition("## Still to run")[2]
    assert main(["missing", "--records", str(ROOT / "results")]) == 0
    table = capsys.readouterr().out.splitlines()
    listed = [line for line in table[2:] if not line.endswith("| 0 | - | - |")]
    assert all(f"{line}\n" in page for line in listed)
