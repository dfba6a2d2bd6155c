"""The lab's server: this machine only, unless told otherwise, and then with a token."""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

from pidformer.errors import InputError

COOKIE = "pidformer_lab"
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "connect-src 'self'; worker-src 'self' blob:; frame-src 'self' data: blob:; "
    "object-src 'none'; base-uri 'self'; form-action 'self'"
)
"""The browser is told to ask nobody but this server."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]


def is_local(host: str) -> bool:
    """Whether only this machine can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Outermost layer: who may come in, and what the page may load.

    A visitor shows the token once, as ?token=..., and carries it in a cookie from then on. Without
    a token (this machine only), the Host header must name this machine, so that no web page
    elsewhere can reach the lab under a name of its own.
    """

    def __init__(self, app: Asgi, token: str | None) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        if self._token is None:
            host = headers.get("host", "").rsplit(":", 1)[0].strip("[]")
            if not is_local(host):
                await _answer(send, 403, "this lab answers on 127.0.0.1 only")
                return
        elif not self._is_known(scope, headers):
            given = parse_qs(scope.get("query_string", b"").decode("latin-1"))
            if scope["type"] == "http" and self._is_right(given.pop("token", [""])[0]):
                where = scope["path"] + ("?" + urlencode(given, doseq=True) if given else "")
                cookie = f"{COOKIE}={self._token}; Path=/; HttpOnly; SameSite=Strict"
                await _answer(
                    send,
                    303,
                    "welcome",
                    [(b"location", where.encode()), (b"set-cookie", cookie.encode())],
                )
            else:
                await _answer(send, 401, "this lab wants a token: open the address it printed")
            return

        async def with_policy(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", []),
                    (b"content-security-policy", _POLICY.encode()),
                    (b"x-content-type-options", b"nosniff"),
                    (b"referrer-policy", b"no-referrer"),
                ]
            await send(message)

        await self._app(scope, receive, with_policy)

    def _is_known(self, scope: Scope, headers: dict[str, str]) -> bool:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        return cookie is not None and self._is_right(cookie.value)

    def _is_right(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), (self._token or "").encode())


async def _answer(
    send: Send, status: int, text: str, headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    kind = (b"content-type", b"text/plain; charset=utf-8")
    await send({"type": "http.response.start", "status": status, "headers": [kind, *headers]})
    await send({"type": "http.response.body", "body": (text + "\n").encode()})


@dataclass(frozen=True)
class Lab:
    """A running lab. `close` it, or use it in a `with`."""

    address: str
    """To open in a browser; carries the token, if there is one."""
    token: str | None
    _server: Any
    _thread: threading.Thread
    _folder: tempfile.TemporaryDirectory[str]

    def wait(self) -> None:
        """Until the server ends."""
        while self._thread.is_alive():
            self._thread.join(0.5)

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self._folder.cleanup()

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_lab(
    runs: Sequence[str | Path] = (),
    *,
    host: str = "127.0.0.1",
    port: int = 7860,
    token: str | None = None,
    home: str | Path | None = None,
    data: str | Path | None = None,
) -> Lab:
    """Start the lab in a thread. `port=0` takes any free one.

    Any other host than this machine needs a token; without one given, one is made. `home` is where
    the digits demo is trained (default: a folder of the user's cache); `data` an image set to
    attack pictures of.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    folder = tempfile.TemporaryDirectory(prefix="pidformer-lab-")
    os.environ["GRADIO_TEMP_DIR"] = folder.name
    try:
        import uvicorn
        from fastapi import FastAPI

        from pidformer.lab.app import mount
    except ImportError as error:
        raise InputError(
            f"the lab needs {error.name}; install it with: pip install 'pidformer[lab]'"
        ) from None
    if token is None and not is_local(host):
        token = secrets.token_urlsafe(18)
    if token is not None and len(token) < 8:
        raise InputError("a token must have at least 8 characters, or it can be guessed")
    listener = _listen(host, port)
    app = mount(FastAPI(openapi_url=None), runs, home=home, data=data)
    config = uvicorn.Config(
        Guard(app, token), log_level="warning", lifespan="on", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise InputError(f"the server did not start on {host}:{port}")
        time.sleep(0.01)
    shown = "127.0.0.1" if host in ("0.0.0.0", "::", "localhost") else host
    shown = f"[{shown}]" if ":" in shown else shown
    address = f"http://{shown}:{listener.getsockname()[1]}/"
    address += "" if token is None else f"?token={token}"
    return Lab(address, token, server, thread, folder)


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise InputError(f"a port must be 0 (any free one) to 65535, got {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise InputError(
            f"cannot listen on {host}:{port} ({error.strerror}); choose another --port"
        ) from None
    return listener
