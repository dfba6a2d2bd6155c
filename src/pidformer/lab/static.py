"""The Controller view as one file that needs no server, no network and no Python."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from markupsafe import Markup

from pidformer import __version__
from pidformer.control.design import DESIGNS
from pidformer.errors import InputError
from pidformer.files import atomic_path
from pidformer.lab.knobs import LIMITS, PRESETS, Knobs
from pidformer.lab.words import EQUATION, WORDS
from pidformer.report.templates import page_template

_HERE = Path(__file__).parent


def page() -> str:
    """The whole page, with its mathematics (control.js) and its drawing (page.js) inside."""
    setup = {
        "defaults": asdict(Knobs()),
        "limits": {name: limits._asdict() for name, limits in LIMITS.items()},
        "presets": {name: dict(gains) for name, gains in PRESETS.items()},
    }
    return page_template("lab", "page.html.j2").render(
        words=WORDS,
        equation=EQUATION,
        limits=LIMITS,
        presets=list(PRESETS),
        designs=DESIGNS,
        version=__version__,
        setup=Markup(json.dumps(setup).replace("<", "\\u003c")),
        mathematics=Markup((_HERE / "control.js").read_text(encoding="utf-8")),
        drawing=Markup((_HERE / "page.js").read_text(encoding="utf-8")),
    )


def export_page(folder: str | Path) -> Path:
    """Write FOLDER/index.html; its path."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; --export names a folder")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "index.html"
    with atomic_path(path) as temporary:
        temporary.write_text(page(), encoding="utf-8")
    return path
