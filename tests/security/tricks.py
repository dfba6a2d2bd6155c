"""What a stranger may put into a folder so that whoever opens it runs, fetches or reads something.

`Trap` knows whether any of it worked: a canary file that the planted pickle writes, a socket that
counts connections, and an audit hook that sees what Python opens and starts.
"""

import json
import shutil
import socket
import sys
import threading
import zipfile
from pathlib import Path

import yaml

_WATCHED: list["Trap"] = []


def _audit(event: str, args: tuple) -> None:
    for trap in _WATCHED:
        trap.saw(event, args)


sys.addaudithook(_audit)  # for good: Python has no way to remove one


class Trap:
    """A folder outside every run, and everything that must not happen."""

    def __init__(self, folder: Path) -> None:
        self.outside = folder / "outside"
        self.outside.mkdir()
        self.canary = self.outside / "canary"
        self.secret = self.outside / "secret.yaml"
        self.secret.write_text("secret: 1\n")
        self.seen: list[str] = []
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:  # closed
                return
            self.seen.append("a connection")
            connection.close()

    def __enter__(self) -> "Trap":
        _WATCHED.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _WATCHED.remove(self)
        self.server.close()

    def saw(self, event: str, args: tuple) -> None:
        if event == "open" and str(args[0]).startswith(str(self.outside)):
            self.seen.append(f"opened {args[0]}")
        elif event in ("os.system", "subprocess.Popen", "socket.connect"):
            self.seen.append(f"{event} {args}")

    def check(self) -> None:
        """Nothing ran, connected, or was opened outside."""
        assert not self.canary.exists() and not self.seen, self.seen


def pickled(path: Path, trap: Trap) -> Path:
    """A file of weights on which torch's weights-only reader raises TypeError, not its own error.

    It sets the state of an OrderedDict to a pair, which only the full reader understands; the full
    reader then goes on to call `os.system`.
    """
    command = f"touch {trap.canary}".encode()
    program = (
        b"\x80\x02ccollections\nOrderedDict\n)R"  # OrderedDict()
        b"N}\x86b"  # its state becomes (None, {})
        b"cposix\nsystem\nX" + len(command).to_bytes(4, "little") + command + b"\x85R0."
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", program)
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
    return path


def copy(run: Path, to: Path) -> Path:
    return Path(shutil.copytree(run, to))


def edit(path: Path, **changes: object) -> None:
    """Change a recipe.yaml or a JSON file; a key with `__` names one inside a section."""
    is_yaml = path.suffix == ".yaml"
    fields = (yaml.safe_load if is_yaml else json.loads)(path.read_text())
    for key, value in changes.items():
        *sections, last = key.split("__")
        place = fields
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    path.write_text(yaml.safe_dump(fields) if is_yaml else json.dumps(fields))
