"""Somebody who talks to a running lab without a browser, and looks for what came back."""

import http.cookiejar
import json
import re
import secrets
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

API = "gradio_api/"


class Visitor:
    """Asks as curl does; carries the cookies of the page if it has opened it."""

    def __init__(self, lab, *, opened=True):
        self.base = lab.address.split("?")[0]
        self.session = secrets.token_hex(8)
        self.cookies = http.cookiejar.CookieJar()
        keeping = urllib.request.HTTPCookieProcessor(self.cookies)
        self.open = urllib.request.build_opener(keeping).open
        if opened:
            assert self.ask("")[0] == 200

    def ask(self, path, body=None, method=None, **headers):
        """Status and text; status 0 if the server hung up while it was told, or is silent."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {name.replace("_", "-"): text for name, text in headers.items()}
        if data is not None:
            headers = {"Content-Type": "application/json"} | headers
        request = urllib.request.Request(self.base + path, data, headers, method=method)
        try:
            try:
                answer = self.open(request, timeout=30)
            except urllib.error.HTTPError as error:
                answer = error
            with answer:
                return answer.status, answer.read().decode(errors="replace")
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return 0, ""

    def raise_event(self, event, data, route=None):
        route = route or ("queue/join" if event["queue"] else "run/predict")
        body = {"data": data, "fn_index": event["id"], "session_hash": self.session}
        return self.ask(API + route, body)

    def upload(self, data=b"bytes of a picture", name="mine.png"):
        form = (
            b'--x\r\nContent-Disposition: form-data; name="files"; filename="%b"\r\n\r\n%b\r\n--x--'
        )
        kind = "multipart/form-data; boundary=x"
        path = f"{API}upload?upload_id={secrets.token_hex(6)}"
        return self.ask(path, form % (name.encode(), data), Content_Type=kind)


def file_data(path, **more):
    return {"path": str(path), "meta": {"_type": "gradio.FileData"}} | more


def events(visitor):
    """Every event of the page that reaches the server, and inputs as the page would send them."""
    config = json.loads(visitor.ask("config")[1])
    parts = {part["id"]: part for part in config["components"]}
    found = []
    for event in config["dependencies"]:
        if event["backend_fn"]:
            inputs = [parts[number] for number in event["inputs"]]
            values = [part["props"].get("value") for part in inputs]
            values = [
                "" if p["type"] == "textbox" else v for p, v in zip(inputs, values, strict=True)
            ]
            found.append((event, values))
    assert len(found) > 20  # more where there are language models
    return found


def leaks(folder, canary):
    """Files of the server's folder that hold the canary."""
    secret = canary.read_bytes()
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    return [str(path) for path in files if secret in path.read_bytes()]


def read_back(visitor, text, canary):
    """Whether an answer holds the canary, or an address to fetch it from."""
    plain = urllib.parse.unquote(text)
    paths = set(re.findall(rf"/[\w/.-]*{canary.name}", plain)) - {str(canary)}
    answers = [plain, *(visitor.ask(f"{API}file={path}")[1] for path in paths)]
    return any(canary.read_text() in answer for answer in answers)
