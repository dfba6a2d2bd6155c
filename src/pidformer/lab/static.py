"""The Controller view as one file that needs no server, no network and no Python."""

import json
from dataclasses import asdict
from pathlib import Path

from markupsafe import Markup

from pidformer import __version__
from pidformer.control import RELATIVES, as_spectrum, stable_interval, worst_radius
from pidformer.control.design import DESIGNS
from pidformer.control.feedback import is_linear
from pidformer.errors import InputError
from pidformer.files import write_whole
from pidformer.lab.knobs import LIMITS, PRESETS, VIEWS, Knobs
from pidformer.report.templates import page_template

_HERE = Path(__file__).parent


def setup() -> str:
    """What the scripts need to know of the knobs, as JSON that is safe inside a page."""
    fields = {
        "defaults": asdict(Knobs()),
        "limits": {name: limits._asdict() for name, limits in LIMITS.items()},
        "presets": {name: dict(gains) for name, gains in PRESETS.items()},
    }
    return json.dumps(fields).replace("<", "\\u003c")


def source(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def tips_css() -> str:
    """The look of what charts say when the pointer is on them, the report's."""
    return page_template("report", "tips.css").render()


def methods() -> list[tuple[str, ...]]:
    """The family: preset, stable real kappa, largest radius on [0, 1] and in the unit disc."""
    rows = []
    for name, law in RELATIVES.items():
        if is_linear(law):
            interval = stable_interval(law)
            radii = worst_radius(law), worst_radius(law, kappas=as_spectrum("disc")[0])
            shown = "none" if interval is None else "({:g}, {:g})".format(*interval)
            rows.append((name, shown, *(f"{radius:.3f}" for radius in radii)))
        else:
            rows.append((name, "not linear: measured only", "-", "-"))
    return rows


def _scripts() -> dict[str, Markup]:
    """The mathematics, the charts, and what they need to know."""
    sources = {"mathematics": Markup(source("control.js")), "charts": Markup(source("charts.js"))}
    return sources | {"setup": Markup(setup())}


def page() -> str:
    """The whole page: its mathematics (control.js), charts (charts.js) and knobs (page.js)."""
    return page_template("lab", "page.html.j2").render(
        **VIEWS["controller"],
        limits=LIMITS,
        presets=list(PRESETS),
        designs=DESIGNS,
        version=__version__,
        drawing=Markup(source("page.js")),
        can_drag=True,
        methods=methods(),
        **_scripts(),
    )


def charts_html() -> str:
    """The canvases alone."""
    return page_template("lab", "charts.html.j2").render(can_drag=False, methods=methods())


def charts_script() -> str:
    """`labDraw(values)` draws them from the values of the knobs, in the order of `Knobs`."""
    return page_template("lab", "embedded.html.j2").render(**_scripts())


def export_page(folder: str | Path) -> Path:
    """Write FOLDER/index.html; its path."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; --export names a folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "index.html", page())
    return folder / "index.html"
