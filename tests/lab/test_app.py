"""The whole page in headless Chromium: every view, by hand and by keyboard."""

import io
import os
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from PIL import Image

pytest.importorskip("gradio", reason="needs the extra lab")

from pidformer.cli import main
from pidformer.errors import InputError
from pidformer.lab.guard import COOKIE, is_local
from pidformer.lab.server import open_lab
from pidformer.lab.static import export_page
from tests.lab.test_first_look import CHARTS
from tests.report.browser import axe_source

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lab(home, language_run, tmp_path_factory):
    data = tmp_path_factory.mktemp("sets") / "shades"
    for split, name in (("train", "dark"), ("train", "light"), ("val", "dark"), ("val", "light")):
        (data / split / name).mkdir(parents=True)
        Image.linear_gradient("L").resize((8, 8)).save(data / split / name / "one.png")
    with open_lab([home, language_run], port=0, home=home, data=data) as running:
        yield running


@pytest.fixture
def visit(watch, lab):
    def open_view(query="", **options):
        watched = watch(lab.address + query, **options)
        watched.page.wait_for_selector("#verdict p", state="attached")
        watched.page.wait_for_function("window.labArrived")
        return watched

    return open_view


def errors(watched):
    """Complaints but for warnings of gradio's own."""
    return [text for text in watched.complaints if "Method not implemented" not in text]


def picture(width=64, height=48, kind="PNG"):
    kept = io.BytesIO()
    Image.linear_gradient("L").resize((width, height)).convert("RGB").save(kept, kind)
    return kept.getvalue()


def give(page, data, name="mine.png"):
    files = {"name": name, "mimeType": "image/png", "buffer": data}
    page.set_input_files("#attack-upload input[type=file]", files)


def test_a_slider_moved_by_keyboard_changes_verdict_pictures_and_address(visit, lab):
    watched = visit("?view=controller&p=0.5&tokens=6")
    page = watched.page
    assert "Stable" in page.inner_text("#verdict")
    assert page.input_value("#knob-tokens input[type=number]") == "6"
    page.wait_for_function("window.labDrawn")
    charts = [f"chart-{name}" for name in CHARTS]
    shot = "(ids) => ids.map((id) => document.getElementById(id).toDataURL())"
    before = page.evaluate(shot, charts)
    page.focus("#knob-p input[type=range]")
    page.keyboard.press("End")
    page.wait_for_function("document.querySelector('#verdict').innerText.startsWith('Unstable')")
    assert all(a != b for a, b in zip(before, page.evaluate(shot, charts), strict=True))
    page.wait_for_function("location.search.includes('p=1.5')")
    page.click("#design-PI")
    page.wait_for_function("document.querySelector('#verdict').innerText.startsWith('Stable')")
    assert page.input_value("#knob-p input[type=number]") == "0.5"
    page.click("#preset-DeiT")
    page.wait_for_function("document.querySelector('#verdict').innerText.startsWith('Unstable')")
    assert page.input_value("#knob-beta input[type=number]") == "0.1"
    labels = page.evaluate(
        "(ids) => ids.map((id) => document.getElementById(id).ariaLabel)", charts
    )
    assert all(labels) and "2p + i = 2.1" in labels[4]  # DeiT: 2 * 0.8 + 0.5
    assert errors(watched) == []
    assert watched.outside(lab.address) == []


COLORS = """() => { const look = getComputedStyle(document.getElementById("chart-poles"));
  return ["free", "held", "good", "bad", "stable", "stable-deep", "unstable"]
    .map((name) => look.getPropertyValue("--" + name).trim()); }"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_charts_have_the_colours_of_the_exported_page(visit, watch, tmp_path, scheme):
    page = visit(color_scheme=scheme).page
    exported = watch(export_page(tmp_path).as_uri(), color_scheme=scheme).page
    assert page.evaluate(COLORS) == exported.evaluate(COLORS)


TOGETHER = """([id, knob]) => { const chart = document.getElementById(id).getBoundingClientRect();
  const slider = document.querySelector(knob).getBoundingClientRect();
  return chart.top >= 0 && chart.bottom < slider.top && slider.bottom <= innerHeight + 1; }"""


@pytest.mark.parametrize("is_exported", [False, True])
def test_on_a_phone_a_chart_stays_on_screen_with_every_slider(visit, watch, tmp_path, is_exported):
    phone = {"viewport": {"width": 390, "height": 800}}
    page = (watch(export_page(tmp_path).as_uri(), **phone) if is_exported else visit(**phone)).page
    for knob in ("p", "kappa_min", "depth"):
        slider = f"#{knob}" if is_exported else f"#knob-{knob} input[type=range]"
        page.locator(slider).evaluate("it => it.scrollIntoView({ block: 'end' })")
        page.wait_for_timeout(200)
        assert page.evaluate(TOGETHER, ["chart-tokens", slider]), knob


def test_every_chart_is_explained_above_it(visit):
    page = visit().page
    above = """() => [...document.querySelectorAll(".charts figure")].map((figure) =>
      figure.querySelector("figcaption").getBoundingClientRect().bottom
      <= figure.querySelector("canvas").getBoundingClientRect().top)"""
    assert page.evaluate(above) == [True] * len(CHARTS)


def test_where_no_gains_are_stable_the_verdict_says_so_and_design_changes_nothing(visit):
    watched = visit("?view=controller&kappa_min=-1&p=0.7")
    page = watched.page
    assert "no gains are stable: raise it" in page.inner_text("#verdict")
    page.click("#design-PI")
    page.wait_for_timeout(500)
    assert page.input_value("#knob-p input[type=number]") == "0.7"
    assert errors(watched) == []


def test_an_address_shows_the_same_to_somebody_else(visit):
    first = visit("?view=controller&i=2.2&causal=1&depth=30")
    second = visit(first.page.evaluate("location.search"))
    assert first.page.inner_text("#verdict") == second.page.inner_text("#verdict")
    assert "After 30 layers" in second.page.inner_text("#verdict")


def test_a_digit_and_an_upload_are_attacked_and_bad_ones_refused(visit, lab):
    watched = visit("?view=attack&images=digits&strength=24&number=4")
    page = watched.page
    page.click("#attack-go")
    page.wait_for_selector("#attack-shown .attacked >> nth=1")
    assert page.locator("#attack-shown .strip img").count() == 6
    assert "no pixel changed by more than 24/255" in page.inner_text("#attack-shown")
    assert page.locator("#attack-shown .chart .tip").count() >= 2 * 2 * 8  # models, times, layers
    page.wait_for_function("location.search.includes('view=attack')")
    assert str(Path.cwd().anchor) + "tmp" not in page.url  # names of runs, not their places
    page.click("#attack-own button")
    give(page, picture())
    page.wait_for_function("document.querySelector('#attack-said').innerText.includes('64 x 48')")
    page.wait_for_function("document.querySelector('#attack-shown').innerText.includes('(before)')")
    give(page, b"\x89PNG\r\n\x1a\nnonsense")
    page.wait_for_function("document.querySelector('#attack-said').innerText.includes('no PNG')")
    give(page, picture(200, 200)[:-60])
    page.wait_for_function("document.querySelector('#attack-said').innerText.includes('damaged')")
    give(page, bytes(9 * 2**20), "big.png")
    page.wait_for_function("document.body.innerText.includes('exceed the maximum allowed size')")
    assert errors(watched) == [] and watched.outside(lab.address) == []
    kept = [path for path in Path(os.environ["GRADIO_TEMP_DIR"]).rglob("*") if path.is_file()]
    assert all(path.stat().st_size == 0 for path in kept if path.suffix != ".csv")


def test_a_picture_of_a_named_set_is_attacked_and_a_model_brings_its_own(visit, lab):
    watched = visit("?view=attack&images=shades&number=1&strength=4")
    page = watched.page
    assert page.input_value("#attack-images input") == "shades"
    page.get_by_role("radio", name="fgsm").check()
    page.wait_for_selector("#attack-shown .attacked >> nth=1")
    assert "(before)" in page.inner_text("#attack-shown")  # no class of the digits
    page.wait_for_function("location.search.includes('images=shades')")
    page.locator("#attack-number input").first.focus()
    page.keyboard.press("Space")
    page.wait_for_function("!location.search.includes('number=')")
    page.click("#attack-first input")
    page.get_by_role("option", name="digits-pid").click()
    page.wait_for_function("document.querySelector('#attack-images input').value === 'digits'")
    assert errors(watched) == [] and watched.outside(lab.address) == []


def test_the_attack_opens_on_the_set_that_was_named(visit):
    page = visit("?view=attack").page
    assert page.input_value("#attack-images input") == "shades"
    digits = visit("?view=attack&images=digits").page
    assert digits.input_value("#attack-images input") == "digits"
    digits.wait_for_function("location.search.includes('images=digits')")


# What an element says, into window.told: words that stay for a moment are missed by looking later.
WATCH_WORDS = """id => {
  new MutationObserver(() => window.told.push(document.getElementById(id)?.textContent))
    .observe(document.body, { subtree: true, childList: true, characterData: true });
}"""


@pytest.mark.parametrize("view", ["controller", "attack", "text", "results"])
def test_address_command_and_python_are_copied(visit, lab, view):
    watched = visit(
        f"?view={view}&p=0.7&find=loss", permissions=["clipboard-read", "clipboard-write"]
    )
    page = watched.page  # of the attack and the text, nothing has been asked for yet
    page.evaluate("window.told = []")
    page.evaluate(WATCH_WORDS, f"{view}-copied")
    copied = {}
    for what in ("address", "command", "python"):
        page.evaluate("window.told = []")
        page.click(f"#{view}-copy-{what}")
        page.wait_for_function("window.told.includes('copied')")
        page.wait_for_function(f"document.getElementById('{view}-copied').textContent === ''")
        copied[what] = page.evaluate("navigator.clipboard.readText()")
    assert copied["address"].startswith(f"{lab.address}?view={view}")
    assert copied["command"].startswith("pidformer ")
    compile(copied["python"], view, "exec")
    assert errors(watched) == []


def test_a_model_alone_stays_alone_for_somebody_else(visit):
    page = visit("?view=attack").page
    page.click("#attack-second input")
    page.get_by_role("option", name="(none)").click()
    page.wait_for_function("new URLSearchParams(location.search).get('second') === '(none)'")
    other = visit(page.evaluate("location.search")).page
    other.wait_for_function("document.querySelector('#attack-second input').value === '(none)'")


def test_no_run_chosen_shows_no_line(visit):
    page = visit("?view=results").page
    page.wait_for_function("document.querySelector('#results-count').innerText.includes('lines')")
    for box in page.locator("#results-runs input").all():
        box.uncheck()
    said = "document.querySelector('#results-count').innerText.includes('no run is chosen')"
    page.wait_for_function(said)
    page.wait_for_function("location.search.includes('none')")
    other = visit(page.evaluate("location.search")).page
    other.wait_for_function(said)


def test_a_report_that_is_made_says_so(visit):
    page = visit("?view=results&find=loss").page
    page.click("#results-make")
    page.wait_for_function(
        "document.querySelector('#results-make').innerText.startsWith('Making') &&"
        "document.querySelector('#results-report').innerText.includes('Making')"
    )
    page.wait_for_selector("iframe.report-frame")
    page.wait_for_function(
        "document.querySelector('#results-make').innerText === 'Make the report'"
    )


def test_texts_of_two_models_are_below_each_other_on_a_phone(visit):
    page = visit("?view=text&prompt=w1+w3", viewport={"width": 390, "height": 800}).page
    page.click("#text-go")
    page.wait_for_selector("#text-left .read")
    assert page.locator("#text-left").bounding_box()["width"] > 250


def test_a_prompt_is_read_and_continued_under_noise(visit):
    watched = visit("?view=text&prompt=w1+w3+w9&strength=1")
    page = watched.page
    page.click("#text-go")
    page.wait_for_selector("#text-left .read")
    assert "perplexity" in page.inner_text("#text-left")
    assert page.locator("#text-left .words span").count() >= 3
    before = page.inner_html("#text-left .read")
    page.focus("#text-strength input[type=range]")
    page.keyboard.press("End")
    page.wait_for_function("location.search.includes('strength=5')")
    page.wait_for_function(
        "(old) => document.querySelector('#text-left .read').innerHTML !== old", arg=before
    )
    assert errors(watched) == []


def test_results_are_filtered_downloaded_and_reported(visit):
    watched = visit("?view=results&find=loss")
    page = watched.page
    page.wait_for_function("document.querySelector('#results-count').innerText.includes('lines')")
    page.click("#results-all button")
    counted = page.inner_text("#results-count")
    page.locator("#results-find").get_by_role("textbox").press_sequentially(" digits-softmax")
    page.wait_for_function(f"document.querySelector('#results-count').innerText !== {counted!r}")
    with page.expect_download() as waited:
        page.click("#results-csv")
    assert Path(waited.value.path()).read_text().startswith("run,kind,row,metric")
    page.click("#results-make")
    frame = page.frame_locator("iframe.report-frame")
    frame.locator("h1").wait_for()
    assert frame.locator("h1").inner_text() == "pidformer report"
    assert errors(watched) == []


ANSWERS = {"attack": "#attack-shown .attacked", "results": "#results-charts .chart"}
"""Where the first answers of views appear by themselves."""

SETTLED = """() => !document.querySelector(".pending")
    && document.getAnimations().every((each) => each.playState !== "running")"""


@pytest.mark.parametrize("view", ["attack", "text", "results", "controller"])
def test_every_view_fits_a_phone_without_complaint(visit, lab, view):
    phone = {"viewport": {"width": 390, "height": 800}, "color_scheme": "dark"}
    watched = visit(f"?view={view}", **phone)
    watched.page.wait_for_selector(ANSWERS.get(view, "[role=tabpanel]:visible .equation"))
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert errors(watched) == [] and watched.outside(lab.address) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_breaks_a_rule_of_accessibility(visit, lab, scheme):
    if axe_source() is None:
        pytest.skip("needs axe-core-python")
    page = visit("?view=text&prompt=w1+w3", color_scheme=scheme).page
    page.click("#text-go")
    page.wait_for_selector("#text-left .read")
    page.evaluate(axe_source())
    rules = "async () => (await axe.run()).violations.map((v) => [v.id, v.nodes[0].html])"
    for view in ("Text", "Controller", "Attack", "Results"):
        page.get_by_role("tab", name=view).first.click()
        page.click(f"#{view.lower()}-share button")
        page.wait_for_selector(ANSWERS.get(view.lower(), "[role=tabpanel]:visible .equation"))
        page.wait_for_function(SETTLED)  # what fades in has no contrast yet
        assert page.evaluate(rules) == [], view


def test_tabs_are_reached_by_keyboard(visit):
    page = visit().page
    page.get_by_role("tab", name="Controller").first.focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("#attack-go:visible")


def ask(address, **headers):
    request = urllib.request.Request(address, headers=headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read().decode(errors="replace"), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers


def test_only_names_of_this_machine_are_answered(lab):
    assert ask(lab.address)[0] == 200
    status, text, _ = ask(lab.address, Host="evil.example")
    assert status == 403 and "its own address only" in text


def test_the_browser_is_told_to_ask_nobody_else(lab):
    policy = ask(lab.address)[2]["content-security-policy"]
    assert "default-src 'self'" in policy and "http" not in policy


def test_files_of_the_machine_cannot_be_fetched(lab):
    for path in ("/etc/passwd", str(Path(__file__).resolve())):
        assert ask(f"{lab.address}gradio_api/file={path}")[0] in (403, 404)


def test_a_token_is_wanted_once_and_kept_in_a_cookie(home):
    with open_lab([], port=0, home=home, token="a-long-secret") as lab:
        bare = lab.address.split("?")[0]
        assert ask(bare)[0] == 401
        assert ask(bare + "?token=wrong")[0] == 401
        assert ask(bare + "config", Cookie=f"{COOKIE}=wrong")[0] == 401
        assert ask(bare + "config", Cookie=f"{COOKIE}=a-long-secret")[0] == 200
        request = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with request.open(lab.address + "&view=text") as answer:
            assert answer.status == 200 and answer.url == bare + "?view=text"


def test_other_hosts_get_a_token_made(home):
    assert is_local("127.0.0.1") and is_local("::1") and is_local("localhost")
    assert not is_local("0.0.0.0") and not is_local("example.org")
    with open_lab([], host="0.0.0.0", port=0, home=home) as lab:
        assert lab.token is not None and len(lab.token) >= 20 and lab.token in lab.address
    with pytest.raises(InputError, match="at least 8 characters"):
        open_lab([], host="0.0.0.0", port=0, home=home, token="short")


def test_a_taken_port_and_a_missing_run_end_in_one_line(capsys, tmp_path):
    folder = os.environ.get("GRADIO_TEMP_DIR")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for options, said in (
            (["--port", str(taken.getsockname()[1])], "choose another --port"),
            (["--port", "0", "--run", str(tmp_path / "none")], "no folder at"),
        ):
            with pytest.raises(SystemExit) as ended:
                main(["lab", *options])
            assert ended.value.code == 2
            assert said in capsys.readouterr().err
            assert os.environ.get("GRADIO_TEMP_DIR") == folder  # gradio elsewhere is left alone
