from pathlib import Path
from typing import get_type_hints

import pytest
import yaml

from pidformer.cli.evaluate import evaluate
from pidformer.errors import InputError
from pidformer.evaluation.suite import (
    SHIPPED,
    curve_suite,
    load_suite,
    read_budgets,
    shipped_suites,
)
from pidformer.robustness import PGD, AutoAttack
from pidformer.robustness.corruptions import CORRUPTIONS, Corruption


@pytest.mark.parametrize("name", shipped_suites())
def test_every_shipped_suite_loads(name):
    suite = load_suite(name)
    assert suite.name == name and suite.description
    first = suite.rows[0]  # undisturbed images, which the others are seen beside
    assert first.name == "clean" or first.threat.eps == 0


@pytest.mark.parametrize("name", shipped_suites())
def test_every_shipped_suite_is_named_by_the_page_and_the_help(name):
    page = (Path(__file__).parents[2] / "docs" / "robustness.md").read_text()
    line = next(line for line in page.splitlines() if line.startswith("| `--suite`"))
    assert f"`{name}`" in line
    (option,) = get_type_hints(evaluate, include_extras=True)["suite"].__metadata__
    assert name in option.help.split(", ")


def test_the_paper_suite_has_the_rows_of_table_1():
    names = [row.name for row in load_suite("paper").rows]
    attacks = ["clean", "fgsm", "pgd", "spsa", "sld", "noise", "imagenet-a", "imagenet-r"]
    assert names[:8] == attacks and names[-2:] == ["imagenet-o", "ood"]
    assert sum(name.startswith("imagenet-c/") for name in names) == 75
    assert load_suite("paper").rows[2].threat == PGD(step_size=0.15 / 255)


def test_corruptions_are_fifteen_at_five_severities():
    rows = load_suite("corruptions").rows[1:]
    assert [row.threat for row in rows] == [
        Corruption(name=name, severity=s) for name in CORRUPTIONS for s in range(1, 6)
    ]


def write(path, rows):
    path.write_text(yaml.safe_dump({"rows": rows}))
    return path


def test_users_write_their_own(tmp_path):
    path = write(
        tmp_path / "mine.yaml",
        [
            "clean",
            {"pgd": {"name": "pgd-50", "eps": "2/255", "steps": 50, "step_size": "0.1/255"}},
            {"AutoAttack": {"eps": 0.5, "norm": "L2"}},
            {"corruptions": {"names": ["fog"], "severities": [1, 5], "jpeg_quality": 85}},
        ],
    )
    suite = load_suite(path)
    assert suite.name == "mine"
    assert suite.rows[1].threat == PGD(eps=2 / 255, steps=50, step_size=0.1 / 255)
    assert suite.rows[2].threat == AutoAttack(eps=0.5, norm="L2")
    assert [row.name for row in suite.rows[3:]] == ["corruption/fog/1", "corruption/fog/5"]
    assert suite.rows[3].threat.jpeg_quality == 85


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"pdg": {}}], "did you mean 'pgd'"),
        ([{"pgd": {"epsilon": 1}}], "epsilon"),
        ([{"fgsm": {"eps": 8}}], "8/255"),
        ([{"corruptions": {"names": ["smog"]}}], "unknown corruption 'smog'"),
        ([{"corruptions": {"severity": 3}}], "did you mean 'corruptions.severities'"),
        ([{"corruptions": {"names": "fog"}}], "corruptions.names must be a list, got 'fog'"),
        ([{"clean": {"eps": 1}}], "takes no settings"),
        (["clean", "clean"], "two rows 'clean'"),
        ([{"fgsm": {}, "pgd": {}}], "NAME"),
        ([7], "NAME"),
    ],
)
def test_a_wrong_row_gets_one_line(tmp_path, rows, words):
    with pytest.raises(InputError) as caught:
        load_suite(write(tmp_path / "mine.yaml", rows))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_wrong_file_gets_one_line(tmp_path):
    with pytest.raises(InputError, match="did you mean 'quick'"):
        load_suite("quik")
    with pytest.raises(InputError, match=r"no suite at gone\.yaml"):
        load_suite("gone.yaml")
    (tmp_path / "a.yaml").write_text("rows: {")
    with pytest.raises(InputError, match="not YAML"):
        load_suite(tmp_path / "a.yaml")
    (tmp_path / "b.yaml").write_text("rows: [clean]\ntitle: x")
    with pytest.raises(InputError, match="unknown key"):
        load_suite(tmp_path / "b.yaml")
    (tmp_path / "c.yaml").write_text("- clean")
    with pytest.raises(InputError, match="list of `rows`"):
        load_suite(tmp_path / "c.yaml")
    (tmp_path / "d.yaml").write_text("rows: []")
    with pytest.raises(InputError, match="list of `rows`"):
        load_suite(tmp_path / "d.yaml")


def test_budgets_of_a_curve():
    assert read_budgets("0:8:2") == [0, 2 / 255, 4 / 255, 6 / 255, 8 / 255]
    assert read_budgets("0:1:0.25")[1] == 0.25 / 255
    assert read_budgets("1,4") == [1 / 255, 4 / 255]
    for text in ("8", "0:8", "a,b", "0:8:0", "0:900:100", "8:0:1", "0:inf:1"):
        if text != "8":
            with pytest.raises(InputError, match="FIRST:LAST:STEP"):
                read_budgets(text)
    with pytest.raises(InputError, match="at most 1000 budgets"):
        read_budgets("0:8:1e-9")
    suite = curve_suite(["fgsm", "pgd"], read_budgets("0,2"))
    assert [row.name for row in suite.rows] == [
        "clean", "fgsm@0.0", "fgsm@2/255", "pgd@0.0", "pgd@2/255",
    ]  # fmt: skip
    assert suite.rows[4].threat == PGD(eps=2 / 255, step_size=0.25 / 255)


def test_every_suite_names_the_steps_of_its_pgd():
    """A default that moves must move no registered measurement."""
    found = [row["pgd"] for name in shipped_suites() for row in fields_of(name) if "pgd" in row]
    assert len(found) >= 9 and all({"eps", "steps", "step_size"} <= set(row) for row in found)


def fields_of(name):
    rows = yaml.safe_load((SHIPPED / f"{name}.yaml").read_text())["rows"]
    return [row for row in rows if isinstance(row, dict)]
