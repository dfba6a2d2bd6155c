"""The registered study is what docs/study.md says it is."""

import re
from pathlib import Path

import pytest

from pidformer.training import load_recipe
from study.records import CONFIRMING, load_registered, registered_studies

ROOT = Path(__file__).parents[2]
EPOCHS = {"main": 100, "short": 40, "terms": 40, "length": 10}


@pytest.fixture(scope="module")
def shipped():
    return load_registered("tiny-imagenet-100")


def test_every_row_of_the_study_is_a_recipe(shipped):
    for row in shipped.rows:
        recipe = load_recipe(shipped.recipe, row.overrides)
        assert recipe.schedule.epochs == EPOCHS.get(row.group, 15), row.name
        assert recipe.schedule.warmup_epochs == -(-recipe.schedule.epochs // 10) or (
            row.group == "main"
        )


def test_the_page_lists_every_row_with_its_seeds(shipped):
    page = (ROOT / "docs" / "study.md").read_text()
    for row in shipped.rows:
        assert f"`{row.name}`" in page, row.name
    for group in shipped.groups:
        rows = [row for row in shipped.rows if row.group == group]
        line = next(x for x in page.splitlines() if x.startswith(f"| `{group}`"))
        assert re.sub(r"\s", "", ",".join(map(str, rows[0].seeds))) in line.replace(" ", "")


def test_the_page_says_how_many_runs_there_are(shipped):
    page = (ROOT / "docs" / "study.md").read_text()
    runs = {(row.name, seed) for row in shipped.rows for seed in row.seeds}
    assert f"all registered rows {len(runs)};" in page


def test_hypotheses_are_those_of_the_page(shipped):
    """The same words, and the rows and metrics that the page says decide them."""
    page = (ROOT / "docs" / "study.md").read_text()
    lines = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("| H")]
    table = {name.strip(): [cell.strip() for cell in cells] for name, *cells in lines}
    assert list(table) == [one.name for one in shipped.hypotheses]
    for one in shipped.hypotheses:
        text, rows, metrics = table[one.name]
        assert one.text == text
        assert all(metric in metrics for metric in one.expects), one.name
        used = {row for pair in (*one.pairs, *one.against) for row in pair}
        if one.name == "H2":
            assert rows == "the same" and one.pairs == shipped.hypotheses[0].pairs
        elif one.name == "H11":  # "`p`, `pid` less `softmax` at 10, 15, 40 and 100 epochs"
            kinds = {(a.split("_")[0], b.split("_")[0]) for a, b in one.pairs}
            assert kinds == {("p", "softmax"), ("pid", "softmax")} and len(one.pairs) == 10
        else:
            assert used == {*re.findall(r"`(\w+)`", rows)}, one.name
    asked = {pair for one in shipped.hypotheses for pair in one.pairs}
    assert {*shipped.contrasts} <= asked
    claims = [one for one in shipped.hypotheses if one.name in ("H1", "H2", "H12")]
    wanted = {(row, metric) for one in claims for row, _ in one.pairs for metric in one.expects}
    assert wanted <= {*shipped.primary}  # "H1, H2 and H12 are primary"


@pytest.mark.parametrize("name", registered_studies())
def test_hypotheses_of_every_study_are_in_the_words_of_the_page(name):
    page = (ROOT / "docs" / "study.md").read_text()
    lines = re.findall(r"^\| ((?:[A-Z]\d+(?:, )?)+) \| ([^|]+) \|", page, re.MULTILINE)
    words = {one: text for names, text in lines for one in names.split(", ")}
    for one in load_registered(name).hypotheses:
        assert one.text == words[one.name], one.name


@pytest.mark.parametrize("path", sorted((ROOT / "study").glob("*.yaml")), ids=lambda p: p.stem)
def test_commands_in_a_file_of_a_study_name_that_file(path):
    for study in re.findall(r"pidformer reproduce ([^`]*)", path.read_text()):
        assert study.startswith(f"--study study/{path.name} "), study


def test_pairs_of_hypotheses_are_of_one_half_of_the_images(shipped):
    groups = {row.name: row.group for row in shipped.rows}
    for one in shipped.hypotheses:
        both = one.against or one.pairs
        for pair, other in zip(one.pairs, both, strict=True):
            assert len({shipped.halves[groups[row]] for row in (*pair, *other)}) == 1, pair


def test_seeds_that_search_and_seeds_that_confirm_are_apart(shipped):
    seeds = {group: set() for group in shipped.groups}
    for row in shipped.rows:
        seeds[row.group] |= {*row.seeds}
    assert min(min(own) for own in seeds.values()) >= CONFIRMING
    # the runs that gave rise to the claims of `short` had seed 10 and were seen on odd images
    assert shipped.halves == dict.fromkeys(shipped.groups, 1) | {"short": 0}
    assert all(seeds["short"].isdisjoint(own) for group, own in seeds.items() if group != "short")
