"""The lab's outermost layer: who may ask, and for what. Whatever is not named here is refused.

gradio serves some sixty routes and trusts what it is told. The page needs the few in `_PAGE`,
`_SCRIPTS` and `Guard._api`; each gets only those parts of a request that it needs.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

from pidformer.errors import InputError
from pidformer.lab.uploads import MOST_BYTES

COOKIE = "pidformer_lab"
"""Holds the token."""
VISITOR = "pidformer_visitor"
"""Tells browsers apart: an upload and a session belong to one of them."""
DRAWN = "drawn"
"""Folder, below gradio's own, of the files that the lab wrote for its visitors."""
MOST_BODY = 2**17
"""Bytes of an event."""
MOST_UPLOADS = 64
"""Uploads of all visitors that wait to be read; older ones are removed."""
MOST_SESSIONS = 10_000
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?", re.ASCII)
_PAGE = ("/", "/config", "/theme.css", "/favicon.ico")
_SCRIPTS = ("/assets/", "/static/")
_API = "/gradio_api/"
_HEADERS = "host accept accept-encoding user-agent content-type content-length range if-range"
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "connect-src 'self'; worker-src 'self' blob:; frame-src 'self' data: blob:; "
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'self'"
)
"""The browser is told to ask nobody but this server, and to frame the lab in no other page."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]
Rebuild = Callable[[str, bytes, Collection[str]], dict[str, Any]]
"""(route, body, paths that this visitor uploaded) -> the event to pass on: `Events.rebuilt`."""


def is_local(host: str) -> bool:
    """Whether only this machine can reach it."""
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


class Answer(Exception):
    """Given instead of passing a request on."""

    def __init__(self, status: int, text: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(text)
        self.status, self.text, self.headers = status, text, headers


class Guard:
    """Passes on what the lab's own page asks for, if the visitor may.

    `host` is what the lab listens on, `folder` where gradio keeps files. Where there is a token,
    a visitor shows it once, as ?token=..., and carries it in a cookie from then on.
    """

    def __init__(
        self, app: Asgi, rebuild: Rebuild, *, host: str, token: str | None, folder: Path
    ) -> None:
        self._app, self._rebuild, self._host, self._token = app, rebuild, host, token
        self._drawn = (folder / DRAWN).resolve()
        self._uploads: dict[tuple[str, str], None] = {}  # (visitor, path), oldest first
        self._sessions: dict[str, str] = {}  # session -> visitor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # the lab has no websockets
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            await self._http(scope, receive, send)
        except Answer as answer:
            await _say(scope, send, answer)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _headers(scope)
        cookies = _cookies(headers)
        self._check_host(scope, headers)
        _check_origin(scope, headers)
        self._check_token(scope, cookies)
        visitor, path = cookies.get(VISITOR, ""), scope["path"]
        is_known = _NAME.fullmatch(visitor) is not None
        if path.startswith(_API) and not is_known:
            raise Answer(403, "open the lab's page first; it needs a cookie")
        if path.startswith(_API):
            await self._api(scope, receive, send, headers, visitor)
        elif _is_read(scope) and (path in _PAGE or path.startswith(_SCRIPTS)) and ".." not in path:
            is_new = path == "/" and not is_known
            given = [_cookie(VISITOR, secrets.token_urlsafe(24))] if is_new else []
            await self._app(_narrowed(scope, headers), receive, _with_policy(send, given))
        else:
            raise Answer(404, "not here")

    async def _api(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        headers: dict[str, str],
        visitor: str,
    ) -> None:
        """What the page asks after it is loaded."""
        verb = "GET" if _is_read(scope) else scope["method"]
        name, given = scope["path"].removeprefix(_API), _query(scope)
        query: dict[str, str] = {}
        if verb == "POST" and name in ("run/predict", "queue/join"):
            body = await self._event(name, receive, headers, visitor)
            headers, receive = headers | {"content-length": str(len(body))}, _again(body, receive)
        elif verb == "POST" and name == "upload":
            _check_size(headers)
            query = {"upload_id": _named(given, "upload_id")}
            headers = headers | {"accept-encoding": "identity"}
            send = self._noting(send, visitor)
        elif verb == "GET" and name == "upload_progress":
            query = {"upload_id": _named(given, "upload_id")}
        elif verb == "GET" and name == "queue/data":
            query = {"session_hash": _named(given, "session_hash")}
            self._claim(query["session_hash"], visitor)
        elif verb == "GET" and name.startswith("heartbeat/"):
            self._claim(name.removeprefix("heartbeat/"), visitor)
        elif verb == "GET" and name.startswith("file="):
            self._check_file(name.removeprefix("file="), visitor)
        else:
            raise Answer(404, "not here")
        await self._app(_narrowed(scope, headers, query), receive, _with_policy(send))

    async def _event(
        self, route: str, receive: Receive, headers: Mapping[str, str], visitor: str
    ) -> bytes:
        """The body of an event, checked and written anew; what it reads is no upload any more."""
        if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            raise Answer(415, "an event is JSON")
        body = await _body(receive)
        mine = {path for owner, path in self._uploads if owner == visitor}
        try:
            event = self._rebuild(route, body, mine)
        except InputError as error:
            raise Answer(400, str(error)) from None
        self._claim(event["session_hash"], visitor)
        for value in event["data"]:
            if isinstance(value, dict):
                self._uploads.pop((visitor, value["path"]), None)
        return json.dumps(event).encode()

    def _claim(self, session: str, visitor: str) -> None:
        """A session belongs to whoever named it first."""
        if not _NAME.fullmatch(session):
            raise Answer(400, "a session is named by 1 to 64 letters or digits")
        if self._sessions.setdefault(session, visitor) != visitor:
            raise Answer(403, "this session belongs to somebody else")
        while len(self._sessions) > MOST_SESSIONS:
            self._sessions.pop(next(iter(self._sessions)))

    def _check_file(self, path: str, visitor: str) -> None:
        try:
            is_drawn = Path(path).resolve(strict=True).is_relative_to(self._drawn)
        except (OSError, ValueError, RuntimeError):  # not there, a null byte, links in a circle
            is_drawn = False
        if not is_drawn and (visitor, path) not in self._uploads:
            raise Answer(403, "neither drawn by the lab nor uploaded by you")

    def _noting(self, send: Send, visitor: str) -> Send:
        """Keeps who uploaded what: gradio answers an upload with a list of paths."""
        held: list[MutableMapping[str, Any]] = []

        async def noted(message: MutableMapping[str, Any]) -> None:
            held.append(message)
            if message["type"] != "http.response.body" or message.get("more_body"):
                return
            if held[0]["status"] == 200:
                body = b"".join(each.get("body", b"") for each in held)
                self._uploads.update({(visitor, path): None for path in json.loads(body)})
            while len(self._uploads) > MOST_UPLOADS:
                oldest = next(iter(self._uploads))
                del self._uploads[oldest]
                Path(oldest[1]).unlink(missing_ok=True)
            for each in held:
                await send(each)

        return noted

    def _check_host(self, scope: Scope, headers: Mapping[str, str]) -> None:
        """No page elsewhere may reach the lab under a name of its own (DNS rebinding)."""
        found = _HOST.fullmatch(headers.get("host", "").lower())
        name = found[1].strip("[]") if found else ""
        own = {self._host.lower(), socket.gethostname().lower()}
        is_here = _address(name) is not None and _address(name) == _address(scope["server"][0])
        if not is_local(name) and (is_local(self._host) or not (is_here or name in own)):
            raise Answer(403, "this lab answers under its own address only")

    def _check_token(self, scope: Scope, cookies: Mapping[str, str]) -> None:
        if self._token is None:
            return
        given = _query(scope)
        if _is_read(scope) and scope["path"] == "/" and self._is_right(given.get("token", "")):
            rest = urlencode({name: value for name, value in given.items() if name != "token"})
            where = ("location", "/" + ("?" + rest if rest else ""))
            raise Answer(303, "welcome", [where, _cookie(COOKIE, self._token)])
        if not self._is_right(cookies.get(COOKIE, "")):
            raise Answer(401, "this lab wants a token: open the address it printed")

    def _is_right(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), (self._token or "").encode())


def _check_origin(scope: Scope, headers: Mapping[str, str]) -> None:
    """Other pages may link to the lab; nothing else of it is theirs to ask for."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
    is_link = _is_read(scope) and scope["path"] == "/"
    is_own = site in ("same-origin", "none") or is_link
    if not is_own or (origin is not None and origin != f"http://{headers.get('host')}"):
        raise Answer(403, "asked by another page")


def _check_size(headers: Mapping[str, str]) -> None:
    length = headers.get("content-length", "")
    if not length.isdecimal() or int(length) > MOST_BYTES + 2**16:  # room for the form around it
        raise Answer(413, f"at most {MOST_BYTES >> 20} MB are taken, of a length told before")


async def _body(receive: Receive) -> bytes:
    body, is_more = b"", True
    while is_more:
        message = await receive()
        body += message.get("body", b"")
        is_more = message.get("more_body", False)
        if len(body) > MOST_BODY:
            raise Answer(413, f"an event has at most {MOST_BODY} bytes")
    return body


def _again(body: bytes, receive: Receive) -> Receive:
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> MutableMapping[str, Any]:
        return parts.pop() if parts else await receive()

    return replay


def _narrowed(scope: Scope, headers: Mapping[str, str], query: Mapping[str, str] = {}) -> Scope:
    kept = [(n.encode(), headers[n].encode("latin-1")) for n in _HEADERS.split() if n in headers]
    return {**scope, "headers": kept, "query_string": urlencode(query).encode()}


def _with_policy(send: Send, more: Sequence[tuple[str, str]] = ()) -> Send:
    added = [
        ("content-security-policy", _POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        *more,
    ]

    async def sent(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *_encoded(added)]
        await send(message)

    return sent


async def _say(scope: Scope, send: Send, answer: Answer) -> None:
    is_api = scope["path"].startswith(_API)
    text = json.dumps({"error": answer.text}) if is_api else answer.text + "\n"
    kind = "application/json" if is_api else "text/plain; charset=utf-8"
    headers = _encoded([("content-type", kind), *answer.headers])
    send = _with_policy(send)
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _is_read(scope: Scope) -> bool:
    return scope["method"] in ("GET", "HEAD")


def _headers(scope: Scope) -> dict[str, str]:
    """By name; one that comes twice is joined, and then right nowhere but for cookies."""
    found: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name, text = raw.decode("latin-1").lower(), value.decode("latin-1")
        found[name] = f"{found[name]}; {text}" if name in found else text
    return found


def _cookies(headers: Mapping[str, str]) -> dict[str, str]:
    """Other programs on this machine set cookies too, and not all of them well-formed."""
    parts = (part.partition("=") for part in headers.get("cookie", "").split(";"))
    return {name.strip(): value.strip() for name, _, value in parts}


def _cookie(name: str, value: str) -> tuple[str, str]:
    return "set-cookie", f"{name}={value}; Path=/; HttpOnly; SameSite=Lax"


def _query(scope: Scope) -> dict[str, str]:
    text = scope.get("query_string", b"").decode("latin-1")
    return {name: values[0] for name, values in parse_qs(text, keep_blank_values=True).items()}


def _named(given: Mapping[str, str], name: str) -> str:
    if not _NAME.fullmatch(given.get(name, "")):
        raise Answer(400, f"{name} is 1 to 64 letters or digits")
    return given[name]


def _encoded(headers: Sequence[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode("latin-1")) for name, value in headers]
