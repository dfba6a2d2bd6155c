"""Requests that the lab's page never sends: no byte of a file that is not the visitor's."""

import json
import random
import re
import secrets
import socket
import threading
import urllib.parse
from pathlib import Path

import pytest

pytest.importorskip("gradio", reason="needs the extra lab")

from pidformer.lab.inputs import LONGEST_TEXT
from pidformer.lab.server import open_lab
from tests.lab.visitor import API, Visitor, events, file_data, leaks, read_back

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


def test_a_path_in_place_of_a_text_reads_no_file(lab, canary):
    visitor, read = Visitor(lab), []
    for event, inputs in events(visitor):
        answer = visitor.raise_event(event, [*inputs[:-1], file_data(canary)])[1]
        if read_back(visitor, answer, canary):
            read.append((event["id"], event["api_name"]))
    assert read == []
    assert leaks(lab.folder, canary) == []


def test_behind_the_guard_gradio_refuses_paths_too(home, canary, tmp_path, monkeypatch):
    from fastapi import FastAPI
    from starlette.testclient import TestClient

    from pidformer.lab.app import build, mount

    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    blocks = build([home], home=home)
    with TestClient(mount(FastAPI(), blocks), raise_server_exceptions=False) as client:
        for number, event in blocks.fns.items():
            data = [file_data(canary) for _ in event.inputs]
            client.post(f"/{API}run/predict", json={"data": data, "fn_index": number})
    assert leaks(tmp_path, canary) == []


def test_what_the_page_sends_is_answered(lab):
    visitor = Visitor(lab)
    for event, inputs in events(visitor):
        if not event["queue"]:
            status, text = visitor.raise_event(event, inputs)
            assert (status, "data" in json.loads(text)) == (200, True), (event["api_name"], text)


def test_work_that_queues_is_not_done_out_of_turn(lab):
    visitor = Visitor(lab)
    for event, inputs in events(visitor):
        other = "run/predict" if event["queue"] else "queue/join"
        assert visitor.raise_event(event, inputs, other)[0] == 400


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("slider", ["NaN", "-Infinity", "1e999", "1" * 40, "true", "null", '"0.5"', "[0.5]"]),
        ("textbox", ["null", "5", '["a"]', '"\\ud800"', '"' + "a" * (LONGEST_TEXT + 1) + '"']),
        ("checkbox", ["1", "null", '"true"']),
        ("dropdown", ['"none of these"', "0", "[]"]),
        ("radio", ['"none of these"', "1"]),
        ("checkboxgroup", ['"all"', "null", "[[]]", '["none of these"]', "[" * 60000]),
        ("state", ["0", '"a"', "{}"]),
        ("file", ['"/etc/hostname"', "[]", "{}", '{"path": null}', '{"path": ["a"]}']),
    ],
)
def test_an_input_has_the_type_and_length_of_its_component(lab, kind, values):
    visitor = Visitor(lab)
    config = json.loads(visitor.ask("config")[1])
    kinds = {part["id"]: part["type"] for part in config["components"]}
    event, inputs = next(e for e in events(visitor) if kind in map(kinds.get, e[0]["inputs"]))
    place = [kinds[number] for number in event["inputs"]].index(kind)
    route = "queue/join" if event["queue"] else "run/predict"
    for value in values:
        data = json.dumps([*inputs[:place], "HERE", *inputs[place + 1 :]]).replace('"HERE"', value)
        body = f'{{"data": {data}, "fn_index": {event["id"]}, "session_hash": "a"}}'
        status, text = visitor.ask(API + route, body.encode())
        assert status == 400 and json.loads(text)["error"], (value[:40], text)


@pytest.mark.parametrize("opened", [True, False], ids=["with a cookie", "without"])
def test_no_event_takes_a_path_on_any_route(lab, canary, opened):
    visitor = Visitor(lab, opened=opened)
    for event, inputs in events(Visitor(lab)):
        name, number = event["api_name"], event["id"]
        for place in range(max(1, len(inputs))):
            data = list(inputs)
            data[place : place + 1] = [file_data(canary)]
            body = {"data": data, "session_hash": visitor.session}
            routes = [("run/predict", number), ("queue/join", number)]
            if place in (0, len(inputs) - 1):
                routes += [(f"{kind}/{name}", None) for kind in ("run", "api", "call", "call/v2")]
                routes += [("api/predict", number), (f"run/{name}/", number), ("call/predict", 0)]
            for route, index in routes:
                asked = body if index is None else body | {"fn_index": index}
                status, text = visitor.ask(API + route, asked)
                assert status in (400, 403, 404), (route, name, place, text)
                assert not read_back(visitor, text, canary)
    assert leaks(lab.folder, canary) == []


class Listener:
    """A server that must not be asked."""

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.asked = 0
        threading.Thread(target=self._count, daemon=True).start()

    def _count(self):
        try:
            while True:
                self.socket.accept()[0].close()
                self.asked += 1
        except OSError:
            return


def mutated(chance, canary, port):
    """A body that asks for the canary in one way or another: (body, content type)."""
    web = f"http://127.0.0.1:{port}/{canary.name}"
    path = chance.choice(
        [
            *[str(canary)] * 4,
            f"file://{canary}",
            f"/proc/self/root{canary}",
            f"{canary.parent}/x/../{canary.name}",
            urllib.parse.quote(str(canary), safe=""),
            str(canary).replace("/", "\uff0f"),
            str(canary) + "\0",
            "\u202e" + str(canary),
            web,
            f"/{API}file={canary}",
            [str(canary)],
        ]
    )
    value = {chance.choice(["path", "path", "path", "Path", "name", "video"]): path}
    value[chance.choice(["meta", "meta", "meta", "Meta"])] = chance.choice(
        [{"_type": "gradio.FileData"}] * 3 + [{"_type": "gradio.FileData", "x": 1}, {}, None]
    )
    more = {"url": chance.choice([web, f"file://{canary}"]), "is_stream": True, "is_file": True}
    more |= {
        "orig_name": "a.png",
        "size": 10**30,
        "data": "data:;base64,AAAA",
        "pad": "x" * 200_000,
    }
    value |= {key: more[key] for key in chance.sample(sorted(more), chance.choice([0, 0, 1, 2]))}
    for _ in range(chance.choice([0, 0, 1, 2, 3, 40])):
        key = chance.choice(["value", "0", "image", "__type__", "\u00e9"])
        value = chance.choice(
            [[value], [None, value], {key: value}, {"value": value, "path": path}]
        )
    return value


def request(chance, event, inputs, value, session):
    """The value where an input belongs, or beside it; as JSON of one kind or another."""
    data = list(inputs)
    place = chance.randrange(len(data)) if data else 0
    data[place : place + 1] = chance.choice([[value]] * 6 + [[value, value], [json.dumps(value)]])
    body = {"data": data, "fn_index": event["id"], "session_hash": session}
    body |= chance.choice(
        [{}] * 6
        + [
            {"event_data": value},
            {"batched": True, "data": [[each] for each in data]},
            {"simple_format": True},
            {"fn_index": str(event["id"])},
            {"fn_index": float(event["id"])},
            {"session_hash": value},
            {"event_data": value, "data": inputs},
            {"data": value},
        ]
    )
    text = json.dumps(body, ensure_ascii=chance.random() < 0.5)
    if chance.random() < 0.1:  # the same key twice: which one is read?
        text = text[:-1] + f', "data": {json.dumps(inputs)}}}'
    encoded = text.encode(chance.choice(["utf-8"] * 8 + ["utf-16", "utf-8-sig"]), "surrogatepass")
    kinds = ["application/json"] * 8 + ["application/json; charset=utf-16", "text/plain", ""]
    return encoded, chance.choice(kinds)


def test_200_mutations_of_the_request_read_nothing(lab, canary):
    listener, people = Listener(), [Visitor(lab), Visitor(lab, opened=False)]
    known, passed = events(people[0]), 0
    for seed in range(200):
        chance = random.Random(seed)
        event, inputs = chance.choice(known)
        value = mutated(chance, canary, listener.socket.getsockname()[1])
        visitor = chance.choice([people[0]] * 4 + people[1:])
        body, kind = request(chance, event, inputs, value, visitor.session)
        own = "queue/join" if event["queue"] else "run/predict"
        route = chance.choice(
            [own] * 5 + ["run/predict", "queue/join", f"call/{event['api_name']}"]
        )
        status, text = visitor.ask(API + route, body, Content_Type=kind)
        passed += status == 200
        assert not read_back(visitor, text, canary), (seed, route, body[:400])
        text = visitor.ask(
            API + chance.choice(["file=", "file/", "proxy=", "stream/"]) + str(canary)
        )[1]
        assert canary.read_text() not in text, seed
    listener.socket.close()
    assert listener.asked == 0
    assert leaks(lab.folder, canary) == []
    assert passed < 20  # of those whose trick is in a part that is not passed on


def test_an_upload_is_its_visitors_own_and_read_once(lab, canary):
    one, two = Visitor(lab), Visitor(lab)
    (path,) = json.loads(one.upload()[1])
    assert one.ask(f"{API}file={path}") == (200, "bytes of a picture")
    assert two.ask(f"{API}file={path}")[0] == 403
    ((event, _),) = [pair for pair in events(one) if pair[0]["api_name"] == "received"]
    assert two.raise_event(event, [file_data(path)])[0] == 400
    beside = lab.folder / "beside.png"
    beside.write_text("not uploaded")
    for other in (canary, beside, f"{path}/../../beside.png", f"{Path(path).parent}/./mine.png"):
        assert one.raise_event(event, [file_data(other)])[0] == 400
        assert one.ask(f"{API}file={urllib.parse.quote(str(other))}")[0] == 403
    trick = file_data(path, url=f"file://{canary}", orig_name=str(canary), is_stream=True)
    assert one.raise_event(event, [trick])[0] == 200
    assert one.raise_event(event, [file_data(path)])[0] == 400
    told = one.ask(f"{API}queue/data?session_hash={one.session}")[1]
    assert "no PNG, JPEG or WebP" in told and not Path(path).exists()
    assert leaks(lab.folder, canary) == []


def test_uploads_are_few_and_of_a_size_that_is_told(lab):
    visitor = Visitor(lab)
    assert visitor.upload(bytes(9 * 2**20))[0] in (0, 413)
    address = f"{API}upload?upload_id=x"
    kind = "multipart/form-data; boundary=x"
    chunked = visitor.ask(address, b"0\r\n\r\n", Content_Type=kind, Transfer_Encoding="chunked")
    assert chunked[0] in (0, 400, 413)
    assert Visitor(lab, opened=False).upload()[0] in (0, 403)
    paths = [json.loads(visitor.upload(str(n).encode())[1])[0] for n in range(70)]
    assert [Path(path).exists() for path in paths] == [False] * 6 + [True] * 64


def test_a_session_is_its_visitors_own(lab):
    one, two = Visitor(lab), Visitor(lab)
    (event, inputs), *_ = events(one)
    assert one.raise_event(event, inputs)[0] == 200
    two.session = one.session
    assert two.raise_event(event, inputs)[0] == 403
    for route in (f"queue/data?session_hash={one.session}", f"heartbeat/{one.session}"):
        assert two.ask(API + route)[0] == 403


def routes_of(app):
    """(path, methods) of all routes, those of routers inside included."""
    for route in app.routes:
        if hasattr(route, "original_router"):
            yield from routes_of(route.original_router)
        else:
            yield route.path, getattr(route, "methods", None) or ["GET"]


def test_gradios_other_routes_are_closed(lab):
    import gradio as gr
    from gradio.routes import App

    open_to = {
        *("/", "/config", "/theme.css", "/favicon.ico", "/static/{path:path}"),
        *("/assets/{path:path}", "/gradio_api/heartbeat/{session_hash}"),
        *(f"/{API}{name}" for name in ("queue/join", "queue/data", "upload", "upload_progress")),
        *("/gradio_api/run/{api_name}", "/gradio_api/file={path_or_url:path}"),
    }
    with gr.Blocks() as blocks:
        pass
    visitor, closed = Visitor(lab), 0
    for route, methods in routes_of(App.create_app(blocks)):
        if route not in open_to:
            path = re.sub(r"\{.*?\}", "x", route).lstrip("/")
            for method in methods:
                body = b"{}" if method == "POST" else None
                assert visitor.ask(path, body, method)[0] == 404, (method, route)
                closed += 1
    assert closed > 40


def test_other_pages_and_names_are_refused(lab):
    visitor = Visitor(lab)
    (event, inputs), *_ = events(visitor)
    body = {"data": inputs, "fn_index": event["id"], "session_hash": visitor.session}
    own = visitor.base.rstrip("/")
    port = own.rpartition(":")[2]
    for headers, status in (
        ({"Origin": own, "Sec_Fetch_Site": "same-origin"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": own.replace("http", "https")}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
        ({"Host": f"localhost:{port}"}, 200),
        ({"Host": f"[::1]:{port}"}, 200),
        ({"Host": "127.0.0.1:1"}, 200),  # through a tunnel
        ({"Host": f"evil.example:{port}"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "evil@127.0.0.1"}, 403),
        ({"X_Forwarded_Host": "evil.example"}, 200),
        ({"Content_Type": "text/plain"}, 415),
    ):
        assert visitor.ask(f"{API}run/predict", body, **headers)[0] == status, headers
    assert visitor.ask("", Sec_Fetch_Site="cross-site")[0] == 200  # a link from elsewhere
    assert "evil" not in visitor.ask("config", X_Forwarded_Host="evil.example")[1]
