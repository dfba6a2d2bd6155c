"""The lab under load and abuse: many visitors, huge values and uploads, names that are HTML."""

import json
import socket
from pathlib import Path

import pytest

pytest.importorskip("gradio", reason="needs the extra lab")

from fastapi import FastAPI
from PIL import Image

from pidformer.cli import main
from pidformer.lab.app import SESSIONS, build, mount
from pidformer.lab.pictures import MOST_BYTES
from pidformer.lab.server import open_lab
from pidformer.training.run import train
from tests.lab.load import FLAT, crowd, every_event, requests, served
from tests.lab.visitor import API, Visitor, events
from tests.training.tiny import tiny_recipe

pytestmark = pytest.mark.slow

TRAP = "<img src=x onerror=window.caught=1>"
"""A name that a page which does not escape it would run."""
HUGE = ("NaN", "Infinity", "-Infinity", "1e999", "-1e308", "9" * 400)


@pytest.fixture(scope="module")
def lab(home):
    """In a process of its own, so that its memory can be measured."""
    with served(home) as running:
        yield running


def test_visitors_at_once_are_all_answered(lab):
    told = crowd(lab, visitors=8, seconds=4)
    assert set(told.statuses) == {200} and len(told.seconds) > 8


def test_many_requests_leave_memory_as_it_was(lab):
    every_event(lab)
    requests(lab, 150)
    before, kept = lab.megabytes, lab.kept
    told = requests(lab, 250, seed=1)
    assert set(told.statuses) == {200}
    assert lab.megabytes <= FLAT * before and lab.kept <= kept + 2**20


def test_of_many_sessions_the_last_are_kept(home, tmp_path, monkeypatch):
    """gradio keeps each one's settings and answers, of 10,000 sessions unless it is told."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    blocks = build(home=home)
    mount(FastAPI(), blocks)
    for number in range(SESSIONS + 3):
        assert blocks.state_holder[f"visitor{number}"].config_values
    kept = [f"visitor{number}" for number in range(3, SESSIONS + 3)]
    assert list(blocks.state_holder.session_data) == kept


def test_numbers_that_are_none_or_huge_are_refused_in_one_line_on_every_event(lab):
    visitor = Visitor(lab)
    config = json.loads(visitor.ask("config")[1])
    parts = {part["id"]: part for part in config["components"]}
    tried = 0
    for event, inputs in events(visitor):
        for place, number in enumerate(event["inputs"]):
            if parts[number]["type"] != "slider":
                continue
            is_fixed = parts[number]["props"].get("elem_id") != "attack-number"
            for value in (HUGE[tried // 2 % len(HUGE)], "1e6" if is_fixed else "1e7"):
                data = json.dumps([*inputs[:place], "HERE", *inputs[place + 1 :]])
                data = data.replace('"HERE"', value)
                body = f'{{"data": {data}, "fn_index": {event["id"]}, "session_hash": "a"}}'
                route = "queue/join" if event["queue"] else "run/predict"
                status, text = visitor.ask(API + route, body.encode())
                said = json.loads(text)["error"]
                assert status == 400 and "\n" not in said and len(said) < 100, (value, said)
                tried += 1
    assert tried > 150


def told_before_sending(lab, size):
    """The answer to the head of an upload whose body is not sent."""
    address = lab.address.split("?")[0].removeprefix("http://").rstrip("/")
    host, port = address.split(":")
    cookies = "; ".join(f"{each.name}={each.value}" for each in Visitor(lab).cookies)
    head = (
        f"POST /{API}upload?upload_id=x HTTP/1.1\r\nHost: {address}\r\nCookie: {cookies}\r\n"
        f"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: {size}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=20) as talk:
        talk.sendall(head.encode())
        answer = b""
        while b'"}' not in answer and (more := talk.recv(65536)):  # the body comes by itself
            answer += more
        return answer.decode()


def test_a_large_upload_is_refused_in_one_line_before_it_is_sent(lab):
    before, kept = lab.megabytes, lab.kept
    for size in (9 * 2**20, 200 * 2**20, 10**15):
        answer = told_before_sending(lab, size)
        assert answer.startswith("HTTP/1.1 413"), answer
        assert '{"error": "an upload has at most 8 MB, and says how many"}\r\n' in answer
    visitor = Visitor(lab)
    assert visitor.upload(bytes(200 * 2**20))[0] in (0, 413)  # cut off while it speaks
    assert lab.kept == kept and lab.megabytes <= FLAT * before


def test_an_upload_of_8_mb_is_read_once_and_not_kept(lab):
    kept, visitor = lab.kept, Visitor(lab)
    (path,) = json.loads(visitor.upload(bytes(MOST_BYTES))[1])
    ((event, _),) = [pair for pair in events(visitor) if pair[0]["api_name"] == "received"]
    given = {"path": path, "meta": {"_type": "gradio.FileData"}}
    assert visitor.raise_event(event, [given])[0] == 200
    told = visitor.ask(f"{API}queue/data?session_hash={visitor.session}")[1]
    assert "no PNG, JPEG or WebP" in told
    assert not Path(path).exists() and lab.kept == kept


@pytest.fixture(scope="module")
def trapped(tmp_path_factory):
    """A run, its folder and its classes called by HTML, and the data it was trained on."""
    root = tmp_path_factory.mktemp("trap")
    data = root / "pictures"
    for split in ("train", "val"):
        for number, name in enumerate((TRAP, "plain")):
            (data / split / name).mkdir(parents=True)
            for picture in range(4):
                image = Image.new("RGB", (16, 16), (40 * picture, 120 * number, 90))
                image.save(data / split / name / f"{picture}.png")
    recipe = tiny_recipe(
        "data={name: photos, image_size: 16, batch_size: 4, workers: 0}",
        "augment={crop: resized}",
        "schedule.epochs=1",
        "schedule.warmup_epochs=0",
    )
    run = root / TRAP
    train(recipe, run, data=data, device="cpu", is_shown=False)
    return run, data


def test_names_that_are_html_stay_names_in_the_lab(watch, trapped, tmp_path):
    run, data = trapped
    with open_lab([run], port=0, home=tmp_path, data=data) as lab:
        watched = watch(lab.address + "?view=attack&strength=8")
        page = watched.page
        page.wait_for_function("window.labArrived")
        page.click("#attack-go")
        page.wait_for_selector("#attack-shown .attacked")
        assert TRAP in page.inner_text("#attack-shown")  # the class
        page.wait_for_selector("#attack-shown .chart")
        page.click("role=tab[name=Results]")
        page.wait_for_function("document.body.innerText.includes('lines')")
        assert TRAP in page.inner_text("body")
        page.click("#results-make")
        frame = page.frame_locator("iframe.report-frame")
        frame.locator("h1").wait_for(timeout=90_000)
        assert TRAP in frame.locator("body").inner_text()
        assert page.evaluate("window.caught") is None
        assert page.locator("img[src=x]").count() == frame.locator("img[src=x]").count() == 0


def test_names_that_are_html_stay_names_in_a_report(watch, trapped, tmp_path):
    run, _ = trapped
    with pytest.raises(SystemExit) as ended:
        main(["report", str(run), "--out", str(tmp_path / "report")])
    assert ended.value.code == 0
    page = watch((tmp_path / "report" / "report.html").as_uri()).page
    assert TRAP in page.inner_text("body")
    assert page.evaluate("window.caught") is None and page.locator("img[src=x]").count() == 0
