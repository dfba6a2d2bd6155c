"""The picture of README.md: the loop that one layer closes, and what it does to tokens.

    python docs/images/loop.py

writes loop-{light,dark}.svg and, stacked for a phone, loop-narrow-{light,dark}.svg beside this
file. The curves are computed: one number per token, over the layers of `pidformer.control.simulate`
with one attention matrix, without and with control.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from pidformer.control import PIDGains, simulate

TOKENS, LAYERS = 10, 16
GAINS = PIDGains(p=0.4, i=0.1, d=0.05)
COLOURS = {
    "light": {"ink": "#24292f", "soft": "#59636e", "box": "#f6f8fa", "line": "#8a94a0"},
    "dark": {"ink": "#e6edf3", "soft": "#9aa5b1", "box": "#1b222b", "line": "#7d8894"},
}
CURVES = {
    "light": {"softmax": "#d9622b", "pid": "#2f81c7"},
    "dark": {"softmax": "#ee8653", "pid": "#5aa9e6"},
}


class Layout(NamedTuple):
    """Horizontal places of the loop, and of the two charts with their size."""

    width: int
    height: int
    error: int
    terms: tuple[int, int]
    sum: int
    rest: tuple[int, int]
    right: int
    charts: tuple[tuple[int, int], tuple[int, int]]
    chart: tuple[int, int]


WIDE = Layout(
    960, 330, 120, (180, 300), 364, (432, 548), 582,
    ((640, 42), (640, 202)), (310, 100),
)  # fmt: skip
NARROW = Layout(
    400, 660, 92, (130, 206), 244, (286, 368), 386,
    ((16, 372), (16, 532)), (368, 100),
)  # fmt: skip


def paths() -> dict[str, torch.Tensor]:
    """Each token's value after every layer, without and with control: (layers + 1, tokens)."""
    torch.manual_seed(3)
    kernel = torch.randn(TOKENS, TOKENS, dtype=torch.float64).mul(0.7).softmax(-1)
    first = torch.linspace(-1, 1, TOKENS, dtype=torch.float64)[:, None]
    return {
        "softmax": simulate(kernel, first, None, LAYERS)[..., 0],
        "pid": simulate(kernel, first, GAINS, LAYERS)[..., 0],
    }


def words(x: float, y: float, text: str, anchor: str = "middle", kind: str = "") -> str:
    """Text, in which v_l is written with a lowered l and {l-1} with a lowered l-1."""
    parts = []
    for word in text.split("_"):
        if not parts:
            parts.append(word)
            continue
        low, _, rest = word[1:].partition("}") if word.startswith("{") else (word[0], "", word[1:])
        parts.append(f'<tspan dy="4" font-size="75%">{low}</tspan>')
        parts.append(f'<tspan dy="-4">{rest or "&#8203;"}</tspan>')
    name = f' class="{kind}"' if kind else ""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{name}>{"".join(parts)}</text>'


def box(left: float, right: float, middle: float, high: float, *lines: str) -> str:
    place = f'x="{left}" y="{middle - high / 2}" width="{right - left}" height="{high}"'
    shape = f'<rect {place} rx="6"/>'
    step = 17
    top = middle + 5 - step * (len(lines) - 1) / 2
    centre = (left + right) / 2
    return shape + "".join(words(centre, top + step * n, line) for n, line in enumerate(lines))


def arrow(*points: tuple[float, float]) -> str:
    """A line through the points, with a head at its end."""
    text = " ".join(f"{x},{y}" for x, y in points)
    return f'<polyline points="{text}" marker-end="url(#head)"/>'


def node(x: float, y: float) -> str:
    plus = f'<path d="M{x - 5} {y}h10M{x} {y - 5}v10"/>'
    return f'<circle cx="{x}" cy="{y}" r="11"/>{plus}'


def loop(place: Layout) -> Iterator[str]:
    """The block diagram: reference and feedback, the terms, attention, the rest of the layer."""
    middle, low, attention = 100, 286, 218
    left, right = place.terms
    split, join = (place.error + 11 + left) / 2, (right + place.sum - 11) / 2
    yield words(place.error - 22, middle - 26, "β v_0", "end", "term")
    yield words(place.error - 22, middle - 9, "reference", "end", "soft")
    yield arrow((place.error - 60, middle), (place.error - 12, middle))
    yield node(place.error, middle)
    yield words(place.error + 19, middle - 9, "e_l", "start")
    yield f'<path d="M{place.error + 11} {middle}H{split}"/>'
    for n, text in enumerate(("p e_l", "i Σ e", "d Δe_l")):
        height = middle + 46 * (n - 1)
        yield arrow((split, middle), (split, height), (left - 1, height))
        yield f'<g class="control">{box(left, right, height, 34, text)}</g>'
        yield f'<path d="M{right} {height}H{join}V{middle}"/>'
    yield arrow((join, middle), (place.sum - 12, middle))
    yield node(place.sum, middle)
    yield box(place.sum - 52, place.sum + 52, attention, 48, "attention", "A_l v_l")
    yield arrow((place.sum, attention - 24), (place.sum, middle + 12))
    yield words(place.sum + 15, middle - 9, "u_l", "start")
    yield arrow((place.sum + 11, middle), (place.rest[0] - 1, middle))
    yield box(*place.rest, middle, 56, "rest of", "the layer")
    yield f'<path d="M{place.rest[1]} {middle}H{place.right}V{low}H{place.sum}"/>'
    yield arrow((place.sum, low), (place.sum, attention + 25))
    yield f'<circle cx="{place.sum}" cy="{low}" r="3" class="dot"/>'
    yield arrow((place.sum, low), (place.error, low), (place.error, middle + 12))
    yield words(place.error + 9, middle + 28, "&#8722;", "start")
    yield words((place.error + place.sum) / 2 - 20, low - 9, "v_l", "middle", "term")
    yield words((place.error + place.sum) / 2 - 20, low + 19, "values of layer l", "middle", "soft")
    yield words(place.right - 6, low - 9, "next layer", "end", "soft")


def charts(place: Layout) -> Iterator[str]:
    """Two charts: what attention alone makes of the tokens, and with control."""
    wide, high = place.chart
    titles = {
        "softmax": "attention alone: tokens grow alike",
        "pid": "with the controller: kept apart",
    }
    for (name, values), (x, y) in zip(paths().items(), place.charts, strict=True):
        yield words(x, y - 12, titles[name], "start", "title")
        yield f'<path d="M{x} {y}V{y + high}H{x + wide}" class="axis"/>'
        for token in values.T.tolist():
            points = " ".join(
                f"{x + wide * layer / LAYERS:.1f},{y + high * (1.1 - value) / 2.2:.1f}"
                for layer, value in enumerate(token)
            )
            yield f'<polyline points="{points}" class="{name}"/>'
    yield words(x + wide, y + high + 18, "layer →", "end", "soft")
    yield words(x, y + high + 18, "one line per token", "start", "soft")


def style(shade: str) -> str:
    colour, curve = COLOURS[shade], CURVES[shade]
    return f"""
text {{ font: 15px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; stroke: none }}
text {{ fill: {colour["ink"]} }}
.soft {{ font-size: 13px; fill: {colour["soft"]} }} .term {{ font-weight: 600 }}
.title {{ font-size: 14px; font-weight: 600 }}
rect {{ fill: {colour["box"]} }} circle {{ fill: {colour["box"]} }}
.control rect {{ stroke: {curve["pid"]}; stroke-width: 2 }} .dot {{ fill: {colour["ink"]} }}
g {{ fill: none; stroke: {colour["ink"]}; stroke-width: 1.4 }}
.axis {{ stroke: {colour["line"]}; stroke-width: 1 }}
.softmax {{ stroke: {curve["softmax"]} }} .pid {{ stroke: {curve["pid"]} }}
marker path {{ fill: {colour["ink"]}; stroke: none }}
"""


ALT = (
    "A feedback loop: the error of layer l, reference minus values, goes through three gains and "
    "is added to attention. Two charts: with attention alone all tokens end alike, with the "
    "controller they stay apart."
)


def drawing(place: Layout, shade: str) -> str:
    """The whole picture as SVG."""
    wide, high = place.width, place.height
    size = f'width="{wide}" height="{high}" viewBox="0 0 {wide} {high}"'
    head = (
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto" markerUnits="userSpaceOnUse"><path d="M0 0L8 4L0 8z"/></marker>'
    )
    body = "\n".join([*loop(place), *charts(place)])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<title>{ALT}</title>\n'
        f"<style>{style(shade)}</style>\n<defs>{head}</defs>\n<g>\n{body}\n</g>\n</svg>\n"
    )


def pictures() -> dict[str, str]:
    """All four, by file name."""
    layouts = {"loop": WIDE, "loop-narrow": NARROW}
    return {
        f"{name}-{shade}.svg": drawing(place, shade)
        for name, place in layouts.items()
        for shade in COLOURS
    }


if __name__ == "__main__":
    for name, text in pictures().items():
        Path(__file__).with_name(name).write_text(text, encoding="utf-8")
