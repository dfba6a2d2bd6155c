"""What a repository shows to strangers: picture, citation, templates, workflow."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
import yaml

import pidformer

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def loaded(path: str):
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shape_and_numbers(svg: str) -> tuple[str, list[float]]:
    numbers = r"-?\d+\.\d+"
    return re.sub(numbers, "#", svg), [float(found) for found in re.findall(numbers, svg)]


def test_the_picture_of_the_readme_is_what_its_script_draws():
    pictures = loaded("docs/images/loop.py").pictures()
    assert {*pictures} == {*re.findall(r"docs/images/(loop[\w-]*\.svg)", README)}
    for name, text in pictures.items():
        kept = (ROOT / "docs/images" / name).read_text(encoding="utf-8")
        drawn, there = shape_and_numbers(text), shape_and_numbers(kept)
        assert drawn[0] == there[0], "python docs/images/loop.py"
        assert drawn[1] == pytest.approx(there[1], abs=0.11)  # the last digit that is written
        assert len(text) < 200_000


def test_the_first_screen_has_picture_sentences_install_and_code_in_this_order():
    places = [
        README.index(text) for text in ("<picture>", "\npidformer puts", "pip install", "```python")
    ]
    assert places == sorted(places) and README[: places[-1]].count("\n") < 26
    alternative = re.search(r'<img [^>]*alt="([^"]+)"', README)
    assert alternative is not None and len(alternative[1]) > 50


def test_the_numbers_of_the_first_screen_are_those_of_the_table_and_of_performance():
    first, rest = README.split("\n## Install\n")
    differences = re.findall(r"[+\u2212][\d.]+ \[[^\]]+\]", first)
    made = rest.split("<!-- results:")[1].split("<!-- end of results -->")[0]
    table = made.split("\n\n**Use**")[0]
    assert "300 epochs, 5 seeds unless said" in table.splitlines()[2]
    assert differences and all(f"| {found} |" in table for found in differences)
    costs = first.split("**What it costs:**")[1].splitlines()[0]
    measured = (ROOT / "docs/performance.md").read_text(encoding="utf-8").split("## Measured")[1]
    ratios = re.findall(r"\d\.\d\d", costs)
    assert len(ratios) == 4 and all(f"| {ratio} |" in measured for ratio in ratios)
    families = json.loads((ROOT / "src/pidformer/convert/families.json").read_text())
    types = {name for kind in ("decoders", "encoders", "vision") for name in families[kind]}
    assert f"one of {len(types)} Hugging Face model types" in first
    site = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    for number in (*differences, *(f"{ratio} " for ratio in ratios), f"one of {len(types)} "):
        assert number in site


def test_the_citation_is_the_papers_in_readme_and_cff_and_the_version_is_ours():
    cff = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= {*cff}
    assert cff["version"] == pidformer.__version__ and cff["license"] == "Apache-2.0"
    paper = cff["preferred-citation"]
    bibtex = README.split("```bibtex")[1].split("```")[0].replace(r"{\'e}", "é")
    plain = re.sub(r"[{}]", "", bibtex)
    assert paper["title"] in plain and str(paper["year"]) in plain
    names = [f"{author['family-names']}, {author['given-names']}" for author in paper["authors"]]
    assert " and ".join(names) in plain


def test_the_workflow_and_ci_call_the_commands_of_the_readme():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    called = [step["run"] for step in workflow["jobs"]["test"]["steps"] if "run" in step]
    assert called == ["make demo", "make test"]
    assert "\nmake test\n" in (ROOT / ".ci/run").read_text()
    assert all(f"| `{command}` |" in README for command in called)
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    shown = re.findall(r"`make (\w+)`", README + (ROOT / "CONTRIBUTING.md").read_text())
    assert {*shown} <= targets


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda path: path.stem
)
def test_an_issue_template_asks_what_it_says(path):
    form = yaml.safe_load(path.read_text())
    assert form["name"] and form["description"] and form["body"]
    for field in form["body"]:
        assert field["type"] in {"textarea", "input"} and field["attributes"]["label"]
    ids = [field["id"] for field in form["body"]]
    assert len({*ids}) == len(ids)


def test_the_description_for_a_package_index_needs_no_file_beside_it(monkeypatch):
    monkeypatch.setattr("setuptools.setup", lambda **_: None)
    text = loaded("setup.py").description(README)
    assert text.startswith("# pidformer\n\npidformer puts")
    assert "<picture" not in text and "](" not in text
    assert "charts" not in text  # no word about a picture that is not there
    assert "docs/control.md" in text and "@inproceedings" in text and "| Clean accuracy |" in text
