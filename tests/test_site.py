"""The site of the documents: it builds strictly, shows mathematics, and fetches nothing."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests import chromium

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
NEEDED = ("mkdocs", "material", "mkdocstrings", "latex2mathml")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if MISSING:
        pytest.skip(f"the site needs {', '.join(MISSING)}: pip install 'pidformer[docs]'")
    out = tmp_path_factory.mktemp("site")
    line = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(out)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def navigation(entry) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in navigation(part)]


def test_every_page_has_a_place_in_the_navigation():
    # mkdocs.yml has tags of Python's own, which a safe loader refuses; nav has none
    text = (ROOT / "mkdocs.yml").read_text()
    nav = yaml.safe_load(re.search(r"^nav:\n(?: .*\n)+", text, flags=re.MULTILINE)[0])["nav"]
    listed = navigation(nav)
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}
    assert pages <= {*listed}, "add it to `nav` of mkdocs.yml"
    assert len({*listed}) == len(listed)


def test_every_page_is_built_and_can_be_found_by_search(site):
    index = json.loads((site / "search/search_index.json").read_text())
    text = " ".join(entry["text"] for entry in index["docs"])
    for words in ("effective rank", "design_gains", "perplexity", "NeuTRENO"):
        assert words in text
    places = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {
        "control.html",
        "api/robustness.html",
        "examples/your_vit.html",
        "security.html",
    } <= places


def test_formulas_are_mathml_and_none_is_left_as_text(site):
    shown = 0
    for page in site.rglob("*.html"):
        html = page.read_text(encoding="utf-8")
        shown += html.count("<math")
        assert "arithmatex" not in html and "<merror" not in html, page.name
        prose = re.sub(r"<(pre|code|script)\b.*?</\1>", "", html, flags=re.DOTALL)
        assert not re.search(r"\\(?:kappa|beta|sum|frac)\b", re.sub(r"<[^>]+>", "", prose)), (
            page.name
        )
    assert shown > 40


def test_the_reference_has_what_the_package_exports(site):
    for module in ("control", "nn", "robustness", "analysis", "convert"):
        html = (site / "api" / f"{module}.html").read_text(encoding="utf-8")
        names = exported(module)
        ids = {name: (name, f"{name}.{name}") for name in names}  # or of a module called so
        missing = [
            name
            for name, places in ids.items()
            if not any(f'id="pidformer.{module}.{place}"' in html for place in places)
        ]
        assert not missing, f"api/{module}.md does not show {missing}; have they a docstring?"


def exported(module: str) -> list[str]:
    """Public classes and functions of a room."""
    room = importlib.import_module(f"pidformer.{module}")
    return [
        name
        for name in room.__all__
        if callable(getattr(room, name)) and getattr(room, name).__doc__
    ]


def test_the_site_asks_no_other_host_for_anything(site):
    fetched = re.compile(
        r'<(?:script|img|iframe|source)[^>]+src="(https?:)?//|<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+href="https?:'
    )
    for page in site.rglob("*.html"):
        assert not fetched.search(page.read_text(encoding="utf-8")), page.name


BROKEN = """() => [...document.querySelectorAll("article table :is(code, td[style*=right])")]
  .filter((it) => it.tagName === "TD" ? !it.querySelector("br") : !/\\s/.test(it.textContent))
  .filter((it) => {
    const range = document.createRange();
    range.selectNodeContents(it);
    const bottoms = [...range.getClientRects()].map((box) => box.bottom);
    return Math.max(...bottoms) - Math.min(...bottoms) > 8;
  }).map((it) => it.textContent)"""
"""Names and numbers in tables that stand on several lines."""


def test_on_a_phone_names_and_numbers_in_tables_stay_whole(site):
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    where = chromium.needed()
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=where, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 800})
        for name in ("family", "results", "results/novels", "models", "compatibility"):
            page.goto((site / f"{name}.html").as_uri())
            assert page.locator("article table").count(), name
            assert page.evaluate(BROKEN) == [], name
            assert page.evaluate("document.documentElement.scrollWidth") == 390, name
        browser.close()
