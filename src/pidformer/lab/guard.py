"""The lab's outermost layer: who may ask, and for what. Whatever is not named here is refused.

gradio serves some sixty routes and trusts what it is told. The page needs the few in `_PAGE`,
`_SCRIPTS` and `Guard._pass_on`; each gets only those parts of a request that it needs.
"""

import hmac
import ipaddress
import json
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Collection, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

from pidformer.errors import InputError
from pidformer.lab.pictures import MOST_BYTES

_HEADERS = "host accept accept-encoding user-agent content-type content-length range if-range"
"""What is passed on of a request: no cookie, no origin, nothing that a proxy would add."""
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "connect-src 'self'; worker-src 'self' blob:; frame-src 'self' data: blob:; "
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'self'"
)
"""Lets the browser fetch from this server alone, and no other page frame the lab."""

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]


class Reply(Exception):
    """Given instead of passing a request on."""

    def __init__(self, status: int, text: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(text)
        self.status, self.text, self.headers = status, text, headers


@dataclass(frozen=True)
class Asked:
    scope: Scope

    @property
    def path(self) -> str:
        return str(self.scope["path"])

    @property
    def verb(self) -> str:
        """GET for HEAD, too."""
        return "GET" if self.scope["method"] == "HEAD" else str(self.scope["method"])

    @cached_property
    def headers(self) -> dict[str, str]:
        """By name; one that is given twice is joined, which is valid for cookies alone."""
        found: dict[str, str] = {}
        for raw, value in self.scope["headers"]:
            name, text = raw.decode("latin-1").lower(), value.decode("latin-1")
            found[name] = f"{found[name]}; {text}" if name in found else text
        return found

    @cached_property
    def cookies(self) -> dict[str, str]:
        """Other programs on this machine set cookies too, and not all of them well-formed."""
        parts = (part.partition("=") for part in self.headers.get("cookie", "").split(";"))
        return {name.strip(): value.strip() for name, _, value in parts}

    @cached_property
    def query(self) -> dict[str, str]:
        given = parse_qs(self.scope["query_string"].decode("latin-1"), keep_blank_values=True)
        return {name: values[0] for name, values in given.items()}

    def narrowed(self, query: dict[str, str], changed: dict[str, str]) -> Scope:
        """What is passed on: this query alone, and the headers of `_HEADERS`, some `changed`."""
        have = self.headers | changed
        kept = _encoded([(name, have[name]) for name in _HEADERS.split() if name in have])
        return {**self.scope, "headers": kept, "query_string": urlencode(query).encode()}


async def whole_body(receive: Receive, most: int) -> bytes:
    body, is_more = b"", True
    while is_more:
        message = await receive()
        body += message.get("body", b"")
        is_more = message.get("more_body", False)
        if len(body) > most:
            raise Reply(413, f"at most {most} bytes are taken")
    return body


def with_body(body: bytes, receive: Receive) -> Receive:
    """Gives this body, then what `receive` has to say (that the visitor left)."""
    parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return parts.pop() if parts else await receive()

    return replay


def with_policy(send: Send, more: Sequence[tuple[str, str]] = ()) -> Send:
    policy = [
        ("content-security-policy", _POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
    ]

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *_encoded([*policy, *more])]
        await send(message)

    return sent


async def say(send: Send, answer: Reply, *, is_event: bool) -> None:
    """To an event as JSON, whose error gradio's page shows; else as a line of text."""
    kind = "application/json" if is_event else "text/plain; charset=utf-8"
    text = json.dumps({"error": answer.text}) if is_event else answer.text + "\n"
    headers, send = _encoded([("content-type", kind), *answer.headers]), with_policy(send)
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


def set_cookie(name: str, value: str) -> tuple[str, str]:
    return "set-cookie", f"{name}={value}; Path=/; HttpOnly; SameSite=Lax"


def _encoded(headers: Sequence[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode("latin-1")) for name, value in headers]


COOKIE = "pidformer_lab"
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
_PAGE = ("GET /", "GET /config", "GET /theme.css", "GET /favicon.ico")
_SCRIPTS = ("GET /assets/", "GET /static/")
_API = "/gradio_api/"
_UPLOAD = f"POST {_API}upload"

Rebuild = Callable[[str, bytes, Collection[str]], dict[str, Any]]
"""(route, body, paths that this visitor uploaded) -> the event to pass on: `Events.rebuilt`."""


def is_local(host: str) -> bool:
    """Whether only this machine can reach it."""
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


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
            await self._pass_on(Asked(scope), receive, send)
        except Reply as answer:
            await say(send, answer, is_event=scope["path"].startswith(_API))

    async def _pass_on(self, asked: Asked, receive: Receive, send: Send) -> None:
        """Routes that are not named here end in an `Reply`."""
        route, body = f"{asked.verb} {asked.path}", b""
        if asked.verb != "GET" and route != _UPLOAD:  # or the visitor is cut off while it speaks
            body = await whole_body(receive, MOST_BODY)
        self._check_host(asked)
        _check_origin(asked)
        self._check_token(asked)
        visitor = asked.cookies.get(VISITOR, "")
        is_known = _NAME.fullmatch(visitor) is not None
        query: dict[str, str] = {}
        changed: dict[str, str] = {}
        given: list[tuple[str, str]] = []
        if route in _PAGE or (route.startswith(_SCRIPTS) and ".." not in route):
            if route == "GET /" and not is_known:
                given = [set_cookie(VISITOR, secrets.token_urlsafe(24))]
        elif not is_known:
            raise Reply(403, "open the lab's page first; it needs a cookie")
        elif route in (f"POST {_API}run/predict", f"POST {_API}queue/join"):
            body = self._event(asked, body, visitor)
            changed, receive = {"content-length": str(len(body))}, with_body(body, receive)
        elif route == _UPLOAD:
            _check_size(asked)
            query, changed = _named(asked, "upload_id"), {"accept-encoding": "identity"}
            send = self._noting(send, visitor)
        elif route == f"GET {_API}upload_progress":
            query = _named(asked, "upload_id")
        elif route == f"GET {_API}queue/data":
            query = _named(asked, "session_hash")
            self._claim(query["session_hash"], visitor)
        elif route.startswith(f"GET {_API}heartbeat/"):
            self._claim(asked.path.removeprefix(f"{_API}heartbeat/"), visitor)
        elif route.startswith(f"GET {_API}file="):
            self._check_file(asked.path.removeprefix(f"{_API}file="), visitor)
        else:
            raise Reply(404, "not here")
        await self._app(asked.narrowed(query, changed), receive, with_policy(send, given))

    def _event(self, asked: Asked, body: bytes, visitor: str) -> bytes:
        """The body of an event, checked and rebuilt; an upload that it names is used up."""
        kind = asked.headers.get("content-type", "").partition(";")[0]
        if kind.strip().lower() != "application/json":
            raise Reply(415, "an event is JSON")
        mine = {path for owner, path in self._uploads if owner == visitor}
        try:
            event = self._rebuild(asked.path.removeprefix(_API), body, mine)
        except InputError as error:
            raise Reply(400, str(error)) from None
        self._claim(event["session_hash"], visitor)
        for value in event["data"]:
            if isinstance(value, dict):
                self._uploads.pop((visitor, value["path"]), None)
        return json.dumps(event).encode()

    def _claim(self, session: str, visitor: str) -> None:
        """A session belongs to whoever named it first."""
        if not _NAME.fullmatch(session):
            raise Reply(400, "a session is named by 1 to 64 letters or digits")
        if self._sessions.setdefault(session, visitor) != visitor:
            raise Reply(403, "this session belongs to somebody else")
        while len(self._sessions) > MOST_SESSIONS:
            self._sessions.pop(next(iter(self._sessions)))

    def _check_file(self, path: str, visitor: str) -> None:
        try:
            is_drawn = Path(path).resolve(strict=True).is_relative_to(self._drawn)
        except (OSError, ValueError, RuntimeError):  # not there, a null byte, links in a circle
            is_drawn = False
        if not is_drawn and (visitor, path) not in self._uploads:
            raise Reply(403, "neither drawn by the lab nor uploaded by you")

    def _noting(self, send: Send, visitor: str) -> Send:
        """Keeps who uploaded what: gradio answers an upload with a list of paths."""
        held: list[Message] = []

        async def noted(message: Message) -> None:
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

    def _check_host(self, asked: Asked) -> None:
        """No page elsewhere may reach the lab under a name of its own (DNS rebinding)."""
        found = _HOST.fullmatch(asked.headers.get("host", "").lower())
        name = found[1].strip("[]") if found else ""
        address = _address(name)
        is_own = name in (self._host.lower(), socket.gethostname().lower()) or (
            address is not None and address == _address(asked.scope["server"][0])
        )
        if not is_local(name) and (is_local(self._host) or not is_own):
            raise Reply(403, "this lab answers under its own address only")

    def _check_token(self, asked: Asked) -> None:
        if self._token is None:
            return
        if f"{asked.verb} {asked.path}" == "GET /" and self._is_right(asked.query.get("token", "")):
            rest = urlencode({name: text for name, text in asked.query.items() if name != "token"})
            where = ("location", "/" + ("?" + rest if rest else ""))
            raise Reply(303, "welcome", [where, set_cookie(COOKIE, self._token)])
        if not self._is_right(asked.cookies.get(COOKIE, "")):
            raise Reply(401, "this lab wants a token: open the address it printed")

    def _is_right(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), (self._token or "").encode())


def _check_origin(asked: Asked) -> None:
    """Other pages may link to the lab; nothing else of it is theirs to ask for."""
    host, origin = asked.headers.get("host"), asked.headers.get("origin")
    is_link = asked.verb == "GET" and asked.path == "/"
    is_own = is_link or asked.headers.get("sec-fetch-site", "none") in ("same-origin", "none")
    if not is_own or (origin is not None and origin != f"http://{host}"):
        raise Reply(403, "asked by another page")


def _check_size(asked: Asked) -> None:
    """Checked by the header, so that a refused upload is never read."""
    told = re.fullmatch("[0-9]{1,9}", asked.headers.get("content-length", ""))
    most = MOST_BYTES + 2**16  # room for the form around it
    if not told or int(told[0]) > most or "transfer-encoding" in asked.headers:
        raise Reply(413, f"an upload has at most {MOST_BYTES >> 20} MB, and says how many")


def _named(asked: Asked, name: str) -> dict[str, str]:
    if not _NAME.fullmatch(asked.query.get(name, "")):
        raise Reply(400, f"{name} is 1 to 64 letters or digits")
    return {name: asked.query[name]}


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found
