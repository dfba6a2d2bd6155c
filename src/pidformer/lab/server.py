"""The lab's server: this machine only, unless told otherwise, and then with a token."""

from __future__ import annotations

import errno
import os
import re
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pidformer.errors import InputError
from pidformer.lab.guard import Guard, is_local

_TOKEN = re.compile(r"[A-Za-z0-9._~-]{8,200}", re.ASCII)


@dataclass(frozen=True)
class Lab:
    """A running lab. `close` it, or use it in a `with`."""

    address: str
    """To open in a browser; carries the token, if there is one."""
    token: str | None
    folder: Path
    """What visitors upload and what is drawn for them, until it closes."""
    _server: Any
    _thread: threading.Thread
    _held: ExitStack
    """Its folder and its port."""

    def wait(self) -> None:
        while self._thread.is_alive():
            self._thread.join(0.5)

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self._held.close()

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
    the examples are copied to (default: a folder of the user's cache); `data` an image set to
    attack pictures of.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import uvicorn
        from fastapi import FastAPI

        from pidformer.lab.app import build, mount
        from pidformer.lab.inputs import Events
    except ImportError as error:
        raise InputError(
            f"the lab needs {error.name}; install it with: pip install 'pidformer[lab]'"
        ) from None
    if token is None and not is_local(host):
        token = secrets.token_urlsafe(18)
    if token is not None and not _TOKEN.fullmatch(token):
        raise InputError(
            f"a token must have at least 8 characters, or it can be guessed, and at most 200, of "
            f"letters, digits and . _ ~ -; this one has {len(token)}"
        )
    with ExitStack() as held:  # given back if anything below fails
        listener = held.enter_context(_listen(host, port))
        folder = held.enter_context(_gradio_folder())
        blocks = build(runs, home=home, data=data)
        app = mount(FastAPI(openapi_url=None), blocks)
        guard = Guard(app, Events(blocks).rebuilt, host=host, token=token, folder=folder)
        how: Any = {"log_level": "warning", "lifespan": "on", "proxy_headers": False}
        server = uvicorn.Server(uvicorn.Config(guard, timeout_graceful_shutdown=1, **how))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        while not server.started:
            if not thread.is_alive():
                raise InputError(f"the server did not start on {host}:{port}")
            time.sleep(0.01)
        held = held.pop_all()
    shown = "127.0.0.1" if host in ("0.0.0.0", "::", "localhost") else host
    shown = f"[{shown}]" if ":" in shown else shown
    address = f"http://{shown}:{listener.getsockname()[1]}/"
    address += "" if token is None else f"?token={token}"
    return Lab(address, token, folder, server, thread, held)


@contextmanager
def _gradio_folder() -> Iterator[Path]:
    """A folder of its own for all that gradio writes."""
    before = os.environ.get("GRADIO_TEMP_DIR")
    with tempfile.TemporaryDirectory(prefix="pidformer-lab-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        try:
            yield Path(folder)
        finally:
            del os.environ["GRADIO_TEMP_DIR"]
            if before is not None:
                os.environ["GRADIO_TEMP_DIR"] = before


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise InputError(f"a port must be 0 (any free one) to 65535, got {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if not host:
            raise UnicodeError  # to the system, no name is every address
        listener.bind((host, port))
    except (socket.gaierror, UnicodeError):
        listener.close()
        raise InputError(
            f"no address of this machine is named {host!r}; --host takes 127.0.0.1 (this machine "
            "alone), 0.0.0.0 (all its addresses) or one of them"
        ) from None
    except OSError as error:
        listener.close()
        advice = "--host" if error.errno == errno.EADDRNOTAVAIL else "--port"
        raise InputError(
            f"cannot listen on {host}:{port} ({error.strerror}); choose another {advice}"
        ) from None
    return listener
