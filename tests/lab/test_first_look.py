"""A lab without runs in headless Chromium: what a visitor sees first, and what charts say."""

import pytest

pytest.importorskip("gradio", reason="needs the extra lab")

from pidformer.lab.server import open_lab

pytestmark = pytest.mark.slow

CHARTS = [
    *("tokens", "alike", "poles", "radius", "region", "step", "disturbance", "frequency"),
    *("locus-p", "locus-i", "locus-d"),
]
FACE = "getComputedStyle(document.querySelectorAll('#attack-number label')[%d]).backgroundImage"


@pytest.fixture(scope="module")
def lab(home):
    with open_lab([], port=0, home=home) as running:
        yield running


@pytest.fixture
def visit(watch, lab):
    """Pages that complain of nothing and ask nobody else."""
    seen = []

    def open_view(query=""):
        watched = watch(lab.address + query)
        watched.page.set_default_timeout(60000)  # the first look costs two seconds of a core
        watched.page.wait_for_function("window.labArrived")
        seen.append(watched)
        return watched.page

    yield open_view
    for watched in seen:
        assert [t for t in watched.complaints if "Method not implemented" not in t] == []
        assert watched.outside(lab.address) == []


@pytest.mark.parametrize("comes_by_tab", [False, True])
def test_the_attack_opens_on_an_answer_that_it_changed(visit, comes_by_tab):
    page = visit("" if comes_by_tab else "?view=attack")
    if comes_by_tab:
        page.get_by_role("tab", name="Attack").click()
    page.wait_for_selector("#attack-shown .attacked >> nth=1")
    assert "now says" in page.inner_text("#attack-shown")
    page.wait_for_function("location.search.includes('strength=')")
    other = visit(page.evaluate("location.search"))
    other.wait_for_selector("#attack-shown .attacked >> nth=1")
    assert other.inner_text("#attack-shown") == page.inner_text("#attack-shown")


SLOW = """const now = window.fetch;
window.fetch = async (...given) => {
  if (/queue\\/join|run\\/predict/.test(String(given[0]?.url ?? given[0])))
    await new Promise((go) => setTimeout(go, 1000));
  return now(...given);
};"""


def test_the_first_answer_waits_for_the_strength_that_changes_it(watch, lab):
    page = watch(lab.address).page
    page.set_default_timeout(60000)
    page.add_init_script(SLOW)
    for _ in range(3):  # now from the browser's cache: the tab is there before the address is read
        page.goto(lab.address + "?view=attack")
        page.wait_for_selector("#attack-shown .attacked >> nth=1")
        assert "now says" in page.inner_text("#attack-shown")


def test_a_picture_that_is_clicked_is_attacked_and_stays(visit):
    page = visit("?view=attack&strength=40&number=2")
    page.wait_for_selector("#attack-shown .attacked >> nth=1")
    page.locator("#attack-number label").nth(5).click()
    page.wait_for_function("location.search.includes('number=5')")
    faces = [page.evaluate(FACE % k) for k in range(24)]
    assert len(set(faces)) == 24 and all(face.startswith('url("data:image/png') for face in faces)
    page.get_by_role("tab", name="Text").click()
    page.get_by_role("tab", name="Attack").click()
    page.wait_for_timeout(1000)  # Text is laid out by now, and changes nothing here
    assert "number=5" in page.evaluate("location.search")


def test_a_folder_without_images_says_so_and_breaks_nothing(watch, home, tmp_path):
    (tmp_path / "empty").mkdir()
    with open_lab([], port=0, home=home, data=tmp_path / "empty") as empty:
        watched = watch(empty.address + "?view=attack")
        watched.page.set_default_timeout(60000)
        watched.page.wait_for_selector("#attack-faces .message", state="attached")
        watched.page.wait_for_selector("#attack-shown .message")
        assert "no image set in" in watched.page.inner_text("#attack-shown")


def test_the_results_show_the_examples(visit):
    page = visit("?view=results")
    page.wait_for_selector("#results-charts img")
    assert "No run was named; these are the records" in page.inner_text("#results-examples")


@pytest.mark.parametrize("comes_by_tab", [False, True])
def test_the_text_opens_on_what_two_examples_read_and_write(visit, comes_by_tab):
    page = visit("?view=attack&strength=4" if comes_by_tab else "?view=text")
    if comes_by_tab:
        page.get_by_role("tab", name="Text").click()
    for side, name in (("left", "softmax"), ("right", "PID")):
        page.wait_for_selector(f"#text-{side} .words.written")
        shown = page.inner_text(f"#text-{side}")
        assert f"novels example, {name}" in shown and "perplexity" in shown
        assert page.locator(f"#text-{side} .written span").count() == 40
    assert page.input_value("#text-strength input[type=number]") == "0"  # not the attack's
    assert "pidformer train novels/pid.yaml --data DIR" in page.inner_text("#text-examples")


def test_results_begin_with_a_chart_that_answers_to_hovering_and_fold_the_lines(visit):
    page = visit("?view=results")
    page.wait_for_selector("#results-charts .chart .tip")
    assert not page.is_visible("#results-lines")
    tip = page.locator("#results-charts .tip").first
    told = tip.get_attribute("data-tip")
    assert told.startswith("Corruptions, mean error: ") and "[" in told
    tip.hover()
    shown = "document.querySelector('#results-charts .tip:hover')"
    assert page.evaluate(f"getComputedStyle({shown}, '::after').content") == f'"{told}"'
    page.locator("#results-runs input").first.uncheck()  # one model: no difference to draw
    page.wait_for_function(
        "!document.querySelector('#results-charts').innerText.includes('What the controller')"
    )
    page.click("#results-all button")
    page.wait_for_selector("#results-lines:visible")


def test_a_chart_of_the_controller_answers_to_hovering(visit):
    page = visit("?view=controller&p=0.5&i=0.4")
    page.wait_for_function("window.labDrawn")
    for name in CHARTS:
        canvas = page.locator(f"#chart-{name}")
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        tips = page.evaluate("(id) => document.getElementById(id).tips", f"chart-{name}")
        x, y = tips[-1][:2] if tips else (box["width"] / 2, box["height"] / 2)
        page.mouse.move(box["x"] + x, box["y"] + y)
        page.wait_for_selector(".tip-box:visible")
        said = page.inner_text(".tip-box")
        assert said.startswith("p 0.") if name == "region" else said in [tip[2] for tip in tips]
    page.mouse.move(2, 2)
    page.wait_for_selector(".tip-box", state="hidden")
