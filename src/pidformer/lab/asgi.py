"""Requests and answers as ASGI has them: read, narrowed, repeated, refused."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import parse_qs, urlencode

_HEADERS = "host accept accept-encoding user-agent content-type content-length range if-range"
"""What is passed on of a request: no cookie, no origin, nothing that a proxy would add."""
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "connect-src 'self'; worker-src 'self' blob:; frame-src 'self' data: blob:; "
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'self'"
)
"""The browser is told to ask nobody but this server, and to frame the lab in no other page."""

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
    """A request."""

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
        """By name; one that comes twice is joined, and then right nowhere but for cookies."""
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
    """Adds headers to the answer."""
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
