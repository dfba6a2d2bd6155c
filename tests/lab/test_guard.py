"""Requests that gradio's page would never send: no file of the machine comes back."""

import json
import re
import secrets
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("gradio", reason="needs the extra lab")

from pidformer.lab.server import open_lab

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lab(home, language_run):
    with open_lab([home, language_run], port=0, home=home) as running:
        yield running


@pytest.fixture(scope="module")
def canary(tmp_path_factory):
    path = tmp_path_factory.mktemp("private") / "secret.txt"
    path.write_text(f"canary {secrets.token_hex(16)}")
    return path


class Visitor:
    """Asks as curl does; carries the cookies of the page if it has opened it."""

    def __init__(self, lab, *, opened=True):
        self.base = lab.address.split("?")[0]
        self.open = urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open
        if opened:
            self.ask("")

    def ask(self, path, body=None, **headers):
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} | headers if data is not None else headers
        request = urllib.request.Request(self.base + path, data, headers)
        try:
            with self.open(request, timeout=20) as answer:
                return answer.status, answer.read().decode(errors="replace")
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(errors="replace")


def file_data(path):
    return {"path": str(path), "meta": {"_type": "gradio.FileData"}}


def events(visitor):
    """Every event of the page that reaches the server: its description, and honest inputs."""
    config = json.loads(visitor.ask("config")[1])
    values = {c["id"]: c["props"].get("value") for c in config["components"]}
    return [
        (event, [values[number] for number in event["inputs"]])
        for event in config["dependencies"]
        if event["backend_fn"]
    ]


def leaks(lab, canary):
    """Files of the server's folder that hold the canary."""
    secret = canary.read_bytes()
    files = [path for path in Path(lab._folder.name).rglob("*") if path.is_file()]
    return [str(path) for path in files if secret in path.read_bytes()]


def read_back(visitor, text, canary):
    """Whether an answer holds the canary, or an address to fetch it from."""
    plain = urllib.parse.unquote(text)
    paths = set(re.findall(rf"/[\w/.-]*{canary.name}", plain)) - {str(canary)}
    answers = [plain, *(visitor.ask(f"gradio_api/file={path}")[1] for path in paths)]
    return any(canary.read_text() in answer for answer in answers)


def test_a_path_in_place_of_a_text_reads_no_file(lab, canary):
    visitor, read = Visitor(lab), []
    for event, inputs in events(visitor):
        body = {"data": [*inputs[:-1], file_data(canary)], "fn_index": event["id"]}
        body["session_hash"] = "stranger"
        answer = visitor.ask("gradio_api/run/predict", body)[1]
        if read_back(visitor, answer, canary):
            read.append((event["id"], event["api_name"]))
    assert read == []
    assert leaks(lab, canary) == []
