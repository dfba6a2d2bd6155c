"""What all pictures share: colours, the look of axes, and panels.

A panel is a picture that goes onto a page as SVG, light and dark, and into files as PNG.
"""

import base64
import io
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from torch import Tensor
from torchvision.transforms.functional import to_pil_image

from pidformer.errors import InputError
from pidformer.files import atomic_path

SOFTMAX, PID, INK, FAINT = "#d9622b", "#2f81c7", "#24292f", "#cfd6dd"
GOOD, BAD, GREY = "#1b7f5c", "#c0392b", "#8a8f98"
OTHERS = ("#1b7f5c", "#8e4ec6", "#b58900", "#c2255c", "#0c8599", "#6b7280", "#8b5e34", "#6aa300")
FORMATS = (".png", ".svg", ".pdf")
DARK = {INK: "#e6edf3", FAINT: "#3d444d"}
"""What ink and grid become on a dark page; the colours of the models stand on both."""
_WIDTH, _HEIGHT = 5.2, 3.6
_TIPS = "tips"
_DRAWING = threading.Lock()
"""The settings of matplotlib belong to the whole process."""


class Panel(NamedTuple):
    """One picture of a figure: what is drawn on a (sub)figure, and its size in inches."""

    draw: Callable[[Figure | SubFigure], None]
    width: float = _WIDTH
    height: float = _HEIGHT


class Tip(NamedTuple):
    """What a point of a picture says when the pointer is on it."""

    left: float
    """Per cent of the picture's width; `top` of its height."""
    top: float
    text: str


class Picture(NamedTuple):
    """A panel as a page embeds it."""

    light: str
    dark: str
    alt: str
    width: int
    height: int
    tips: Sequence[Tip]


def add_tips(axes: Axes, points: Sequence[tuple[float, float]], texts: Sequence[str]) -> None:
    """Let points (x, y) answer to hovering; `picture` finds them again."""
    (hidden,) = axes.plot(*zip(*points, strict=True), visible=False, gid=_TIPS)
    hidden.set_url("\n".join(texts))


def style() -> Any:
    """Settings for `matplotlib.rc_context`."""
    names = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.titlecolor")
    return dict.fromkeys(names, INK) | {
        "axes.edgecolor": FAINT,
        "grid.color": FAINT,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "font.size": 11.5,
        "axes.titlesize": 12.5,
        "legend.frameon": False,
        "legend.labelcolor": INK,
    }


def run_colors(is_controlled: Sequence[bool]) -> list[str]:
    """A colour for each run: the first softmax and the first controlled one have their own."""
    free = {False: [SOFTMAX], True: [PID]}
    others = list(OTHERS) * (1 + len(is_controlled) // len(OTHERS))
    return [free[flag].pop() if free[flag] else others.pop(0) for flag in is_controlled]


def check_format(path: str | Path, known: Sequence[str] = FORMATS) -> None:
    """Refuse a picture's name whose ending names no format."""
    if Path(path).suffix.lower() not in known:
        raise InputError(f"cannot plot to {path}: the name must end in {', '.join(known)}")


def svg(panel: Panel) -> tuple[str, list[Tip]]:
    """A panel as SVG with a transparent ground, and the tips of its points."""
    with _DRAWING, matplotlib.rc_context(style() | {"svg.hashsalt": "pidformer"}):
        figure = Figure(figsize=(panel.width, panel.height), layout="constrained")
        panel.draw(figure)
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    drawn = text.getvalue()
    tips = []
    for line in figure.findobj(Line2D):
        if line.get_gid() == _TIPS:
            places = line.get_transform() - figure.transFigure
            for (x, y), words in zip(
                places.transform(line.get_xydata()).tolist(),
                str(line.get_url()).split("\n"),
                strict=True,
            ):
                if 0 <= x <= 1 and 0 <= y <= 1:  # NaN, or beyond the axes
                    tips.append(Tip(round(100 * x, 2), round(100 - 100 * y, 2), words))
    return drawn[drawn.index("<svg") :], tips


def picture(panel: Panel, alt: str) -> Picture:
    """A panel with its data, ready for `<picture>`; `alt` says it in words."""
    drawn, tips = svg(panel)
    darkened = drawn
    for color, on_dark in DARK.items():
        darkened = darkened.replace(color, on_dark)
    light, dark = (
        "data:image/svg+xml;base64," + base64.b64encode(text.encode()).decode()
        for text in (drawn, darkened)
    )
    return Picture(light, dark, alt, round(96 * panel.width), round(96 * panel.height), tips)


def png_uri(image: Tensor) -> str:
    """(C, H, W) in [0, 1] as a PNG inside a page, pixel for pixel."""
    kept = io.BytesIO()
    to_pil_image((image.clamp(0, 1) * 255).round().byte().cpu()).save(kept, "PNG")
    return "data:image/png;base64," + base64.b64encode(kept.getvalue()).decode()


def save_panels(panels: Sequence[Panel], *paths: Path, columns: int = 2) -> None:
    """All panels of a figure in one picture, drawn once for all paths; PNG or SVG by the ending."""
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    size = columns * panels[0].width, rows * panels[0].height
    with _DRAWING, matplotlib.rc_context(style() | {"svg.hashsalt": "pidformer"}):
        figure = Figure(figsize=size, layout="constrained")
        places = figure.subfigures(rows, columns, squeeze=False).flat
        for panel, place in zip(panels, places, strict=False):
            panel.draw(place)
        for path in paths:
            is_svg = path.suffix == ".svg"
            with atomic_path(path) as temporary:
                figure.savefig(temporary, dpi=130, metadata={"Date": None} if is_svg else None)
            figure.set_layout_engine("none")  # laid out once
