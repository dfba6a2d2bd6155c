"""Who gets in: hosts, tokens and other pages, asked of the guard itself and by command."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pidformer.cli import main
from pidformer.lab.guard import COOKIE, VISITOR, Guard

SECRET = "a-long-secret"


def ask(
    bound, token, path="/", *, query="", server="192.0.2.7", kind="http", method="GET", **headers
):
    """Status and headers of the answer; 200 if the request was passed on."""
    said, headers = [], {"host": "192.0.2.7:7860"} | headers

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"[]"})

    async def send(message):
        said.append(message)

    async def receive():
        return {"type": "http.request", "body": b""}

    scope = {"type": kind, "method": method, "path": path, "query_string": query.encode()}
    scope["server"] = (server, 7860)
    pairs = [(name.replace("_", "-"), text) for name, text in headers.items()]
    scope["headers"] = [(name.encode(), text.encode("latin-1")) for name, text in pairs]
    guard = Guard(app, lambda *_: {}, host=bound, token=token, folder=Path("/nowhere"))
    with ThreadPoolExecutor(1) as pool:  # playwright has a loop running in this thread
        pool.submit(asyncio.run, guard(scope, receive, send)).result()
    if kind != "http":
        return said
    answered = {name.decode(): text.decode() for name, text in said[0]["headers"]}
    return said[0]["status"], answered


@pytest.mark.parametrize(
    ("bound", "named", "is_own"),
    [
        ("0.0.0.0", "192.0.2.7:7860", True),  # the address that was connected to
        ("0.0.0.0", "192.0.2.8:7860", False),
        ("0.0.0.0", "localhost:9000", True),
        ("0.0.0.0", socket.gethostname(), True),
        ("0.0.0.0", "evil.example", False),
        ("0.0.0.0", "192.0.2.7.evil.example", False),
        ("0.0.0.0", "", False),
        ("lab.example", "LAB.example:7860", True),
        ("lab.example", "evil.example:7860", False),
        ("127.0.0.1", "192.0.2.7", False),
        ("127.0.0.1", "[::1]", True),
        ("::1", "[::1]:7860", True),
        ("127.0.0.1", "127.0.0.1:7860@evil.example", False),
    ],
)
def test_the_lab_answers_under_its_own_names_only(bound, named, is_own):
    status, _ = ask(bound, None, host=named)
    assert status == (200 if is_own else 403)
    with_token, _ = ask(bound, SECRET, host=named, cookie=f"{COOKIE}={SECRET}")
    assert with_token == status  # a token changes nothing about it


def test_an_address_of_version_4_inside_one_of_version_6_is_the_same():
    assert ask("::", None, server="::ffff:192.0.2.7")[0] == 200
    assert ask("::", None, server="2001:db8::1", host="[2001:db8::1]:7860")[0] == 200


def test_the_token_is_shown_once_and_leaves_the_address():
    status, headers = ask("0.0.0.0", SECRET, query=f"view=text&token={SECRET}&prompt=a%26b")
    assert (status, headers["location"]) == (303, "/?view=text&prompt=a%26b")
    assert headers["set-cookie"].startswith(f"{COOKIE}={SECRET}; ")
    assert "HttpOnly" in headers["set-cookie"] and "SameSite" in headers["set-cookie"]


@pytest.mark.parametrize(
    ("path", "query", "cookie"),
    [
        ("/", "", ""),
        ("/", "token=", ""),
        ("/", "token=a-long-secre", ""),
        ("/", "token=A-LONG-SECRET", f"{COOKIE}="),
        ("//evil.example/", f"token={SECRET}", ""),
        ("/config", f"token={SECRET}", ""),
        ("/assets/index.js", "", f"{COOKIE}=wrong"),
        ("/gradio_api/queue/data", "session_hash=x", f"{VISITOR}=somebody"),
        ("/", "", f"{COOKIE}=\xe9; {VISITOR}={SECRET}"),
    ],
)
def test_nobody_gets_in_without_the_token(path, query, cookie):
    assert ask("0.0.0.0", SECRET, path, query=query, cookie=cookie)[0] == 401


def test_cookies_of_others_do_not_hide_the_labs():
    for cookie in (f'a={{"b": 1}}; {COOKIE}={SECRET}; c', f"=; ;{COOKIE}={SECRET}"):
        assert ask("0.0.0.0", SECRET, cookie=cookie)[0] == 200


def test_a_new_browser_gets_a_name_and_keeps_it():
    given = [ask("127.0.0.1", None, host="localhost")[1]["set-cookie"] for _ in range(2)]
    assert given[0] != given[1] and all(text.startswith(f"{VISITOR}=") for text in given)
    kept = ask("127.0.0.1", None, host="localhost", cookie=given[0].split(";")[0])[1]
    assert "set-cookie" not in kept


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ({"content_length": "1000"}, 200),
        ({"content_length": str(9 * 2**20)}, 413),
        ({"content_length": "1000", "transfer_encoding": "chunked"}, 413),
        ({"content_length": "9" * 5000}, 413),
        ({"content_length": "-1"}, 413),
        ({}, 413),
    ],
)
def test_an_upload_tells_its_size_and_is_small(told, status):
    about = {"host": "localhost", "cookie": f"{VISITOR}=somebody", "query": "upload_id=x"}
    asked = ask("127.0.0.1", None, "/gradio_api/upload", method="POST", **about, **told)
    assert asked[0] == status


def test_websockets_are_closed():
    assert ask("127.0.0.1", None, kind="websocket") == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "no such host"], "no address of this machine is named 'no such host'"),
        (["--host", "a" * 80], "no address of this machine is named"),
        (["--host", ""], "no address of this machine is named ''"),
        (["--host", "192.0.2.1"], "choose another --host"),
        (["--port", "65536"], "a port must be 0"),
        (["--token", "short"], "at least 8 characters"),
        (["--token", "quite long; Path=/"], "letters, digits and . _ ~ -"),
    ],
)
def test_bad_values_end_in_one_line(capsys, options, said):
    pytest.importorskip("gradio", reason="needs the extra lab")
    with pytest.raises(SystemExit) as ended:
        main(["lab", *options])
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and said in lines[0]


@pytest.mark.slow
def test_a_browser_with_the_token_uses_the_lab(watch, home):
    pytest.importorskip("gradio", reason="needs the extra lab")
    from pidformer.lab.server import open_lab

    with open_lab([], port=0, home=home, token=SECRET) as lab:
        watched = watch(lab.address + "&view=controller&p=0.7")
        page = watched.page
        page.wait_for_function("window.labArrived")
        assert SECRET not in page.url and "p=0.7" in page.url
        page.focus("#knob-p input[type=range]")
        page.keyboard.press("End")
        page.wait_for_function("document.querySelector('#verdict').innerText.includes('Unstable')")
        assert [text for text in watched.complaints if "not implemented" not in text] == []
