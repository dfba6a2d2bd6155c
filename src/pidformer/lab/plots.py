"""The pictures of the Controller view, as plotly figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from pidformer.lab.controller import Look, region
from pidformer.lab.knobs import LIMITS
from pidformer.report.style import BAD, GOOD, GREY, PID, SOFTMAX

HEIGHT = 350
_EDGE = (1 - 0.4) / (1.1 - 0.4)
_SHADES = [[0, GOOD], [_EDGE, "#e3f3e8"], [_EDGE, "#f6dcd8"], [1, "#eec1ba"]]
"""Of radii from 0.4 to 1.1: green up to 1, then red."""
_WIDEST = 6.0
"""Values beyond this many times the first reach leave the picture: the controller diverges."""


def figures(found: Look) -> dict[str, go.Figure]:
    """All five, by name."""
    return {
        "poles": poles_figure(found),
        "radius": radius_figure(found),
        "region": region_figure(found),
        "tokens": tokens_figure(found),
        "alike": alike_figure(found),
    }


def poles_figure(found: Look) -> go.Figure:
    """Poles of a layer for kappa from kappa_min to 1, in the unit circle."""
    roots = np.array(found.poles)  # (kappas, 3)
    kappas = np.repeat(found.pole_kappas, roots.shape[1])
    is_out = np.abs(roots.ravel()) >= 1 + 1e-9
    angle = np.linspace(0, 2 * np.pi, 91)
    reach = float(min(4, max(1.15, 1.08 * np.abs(roots).max())))
    figure = Drawing("Poles of a layer (dark: kappa_min, light: 1)", "Re z", "Im z")
    figure.add(
        scatter(
            x=np.cos(angle).round(4),
            y=np.sin(angle).round(4),
            mode="lines",
            line={"color": GREY, "width": 1.2},
            fill="toself",
            fillcolor=_faint(GOOD, 0.1),
            hoverinfo="skip",
        )
    )
    figure.add(
        scatter(
            x=roots.real.ravel().round(4),
            y=roots.imag.ravel().round(4),
            mode="markers",
            customdata=kappas,
            hovertemplate="kappa %{customdata:.2f}: %{x:.3f} %{y:+.3f} i<extra></extra>",
            marker={
                "size": 7,
                "color": kappas,
                "colorscale": "Viridis",
                "line": {"color": BAD, "width": np.where(is_out, 1.6, 0)},
            },
        )
    )
    figure.axis("x", range=[-reach, reach], constrain="domain")
    figure.axis("y", range=[-reach, reach], scaleanchor="x", constrain="domain")
    return figure.done(has_legend=False)


def radius_figure(found: Look) -> go.Figure:
    """Largest |pole| over kappa, with the eigenvalues of this attention below."""
    kappas, radii = np.array(found.radius_kappas), np.array(found.radii)
    top = float(min(3, max(1.3, 1.05 * radii.max())))
    figure = Drawing(
        "Spectral radius (blue ticks: this attention)", "kappa (eigenvalue)", "largest |pole|"
    )
    looked_at = {"x0": found.knobs.kappa_min, "x1": 1, "yref": "paper", "y0": 0, "y1": 1}
    figure.shape("rect", **looked_at, fillcolor=GREY, opacity=0.13, line={"width": 0})
    one = {"xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1}
    figure.shape("line", **one, line={"color": GREY, "width": 1})
    for is_below, color, name in ((True, GOOD, "stable"), (False, BAD, "unstable")):
        part = np.where((radii < 1 - 1e-12) == is_below, radii, np.nan)
        figure.add(scatter(x=kappas, y=_plain(part), name=name, line={"color": color, "width": 3}))
    figure.add(
        scatter(
            x=found.eigenvalues,
            y=[0.02 * top] * len(found.eigenvalues),
            mode="markers",
            name="this attention",
            marker={"symbol": "line-ns-open", "size": 11, "color": PID},
            hovertemplate="eigenvalue %{x:.3f}<extra></extra>",
        )
    )
    figure.axis("y", range=[0, top])
    figure.axis("x", range=[-1.02, 1.02])
    return figure.done(has_legend=False)


def region_figure(found: Look) -> go.Figure:
    """The (p, i) plane: worst radius, its stable corner 2p + i + 4d < 2 (1 + kappa_min)."""
    knobs = found.knobs
    p, i, radii = region(knobs.d, knobs.kappa_min)
    figure = Drawing("Stable region (star: fastest, dot: these gains)", "p", "i")
    figure.add(
        {
            "type": "heatmap",
            "x": p,
            "y": i,
            "z": _plain(np.array(radii).round(4)),
            "colorscale": _SHADES,
            "zmin": 0.4,
            "zmax": 1.1,
            "zsmooth": "fast",
            "showlegend": False,
            "showscale": False,
            "hovertemplate": "p %{x:.2f}, i %{y:.2f}: radius %{z:.3f}<extra></extra>",
        }
    )
    budget = max(0.0, 2 * (1 + knobs.kappa_min) - 4 * knobs.d)
    figure.add(
        scatter(
            x=[budget / 2, 0],
            y=[0, budget],
            mode="lines",
            name="edge of stability",
            line={"color": BAD, "width": 2.5},
        )
    )
    figure.add(
        scatter(
            x=[found.fastest[0]],
            y=[found.fastest[1]],
            mode="markers",
            name="fastest (d = 0)",
            marker={"symbol": "star", "size": 14, "color": "#24292f", "line": _white()},
        )
    )
    color = GOOD if found.report.stable else BAD
    figure.add(
        scatter(
            x=[knobs.p],
            y=[knobs.i],
            mode="markers",
            name="these gains",
            cliponaxis=False,
            marker={"size": 15, "color": color, "line": _white()},
        )
    )
    figure.axis("x", range=[0, LIMITS["p"].high])
    figure.axis("y", range=[0, LIMITS["i"].high])
    return figure.done(has_legend=False)


def tokens_figure(found: Look) -> go.Figure:
    """Where each token goes, in the first two coordinates, with and without control."""
    reach = 1.15 * float(np.abs(found.free[:, :, :2]).max())
    seen = float(np.abs(np.nan_to_num(found.held[:, :, :2], posinf=1e300)).max())
    reach = min(max(reach, 1.05 * seen), _WIDEST * reach)
    figure = Drawing("Tokens over depth", "first coordinate", "second coordinate")
    for values, color, name, width in (
        (found.free, SOFTMAX, "no control", 1.2),
        (found.held, PID, found.knobs.gains.kind, 1.8),
    ):
        figure.add(_paths(values, color, width))
        figure.add(_spots(values[-1], color, name, "circle", 9))
    figure.add(_spots(found.free[0], GREY, "first layer", "circle-open", 9))
    figure.axis("x", range=[-reach, reach])
    figure.axis("y", range=[-reach, reach])
    return figure.done()


def alike_figure(found: Look) -> go.Figure:
    """Similarity (left axis) and effective rank (right axis, dotted) over depth."""
    layers = list(range(len(found.similarity)))
    figure = Drawing("Do the tokens grow alike?", "layer", "mean cosine (solid)")
    kind = found.knobs.gains.kind
    for similarity, rank, color, name in (
        (found.free_similarity, found.free_rank, SOFTMAX, "no control"),
        (found.similarity, found.rank, PID, kind),
    ):
        figure.add(
            scatter(x=layers, y=_plain(similarity), name=name, line={"color": color, "width": 3})
        )
        figure.add(
            scatter(
                x=layers,
                y=_plain(rank),
                yaxis="y2",
                showlegend=False,
                name=f"rank, {name}",
                line={"color": color, "width": 1.8, "dash": "dot"},
            )
        )
    figure.axis("y", range=[-0.3, 1.05])
    figure.layout["yaxis2"] = {
        "title": {"text": "effective rank (dotted)"},
        "overlaying": "y",
        "side": "right",
        "range": [0.8, 6.2],
        "showgrid": False,
        "fixedrange": True,
    }
    figure.layout["margin"] |= {"r": 52}
    return figure.done()


class Drawing:
    """A figure in the making, as plain dictionaries.

    plotly's own classes check every property, which takes ten times as long as the mathematics.
    `test_figures_are_valid_plotly` checks them instead.
    """

    def __init__(self, title: str, x: str, y: str) -> None:
        grid = {"gridcolor": "rgba(128,136,146,0.22)", "zeroline": False, "fixedrange": True}
        font = {"family": "system-ui, sans-serif", "size": 12, "color": "#76808b"}
        self.data: list[dict[str, Any]] = []
        self.layout: dict[str, Any] = {
            "title": {
                "text": title,
                "font": {"size": 14},
                "x": 0.01,
                "xanchor": "left",
                "y": 0.97,
            },
            "template": {},
            "height": HEIGHT,
            "margin": {"l": 52, "r": 14, "t": 42, "b": 44},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": font,
            "showlegend": False,
            "hovermode": "closest",
            "dragmode": False,
            "xaxis": {"title": {"text": x}} | grid,
            "yaxis": {"title": {"text": y}} | grid,
        }

    def add(self, *traces: dict[str, Any]) -> None:
        self.data += traces

    def shape(self, kind: str, **fields: Any) -> None:
        self.layout.setdefault("shapes", []).append({"type": kind, "layer": "below"} | fields)

    def axis(self, name: str, **fields: Any) -> None:
        self.layout.setdefault(f"{name}axis", {}).update(fields)

    def done(self, *, has_legend: bool = True) -> go.Figure:
        legend = {"orientation": "h", "x": 1, "xanchor": "right", "y": 1.0, "yanchor": "bottom"}
        if has_legend:
            self.layout |= {"showlegend": True, "legend": legend}
        return go.Figure({"data": self.data, "layout": self.layout}, _validate=False)


def scatter(**fields: Any) -> dict[str, Any]:
    return {"type": "scatter"} | fields


def _paths(values: np.ndarray, color: str, width: float) -> dict[str, Any]:
    """All paths as one line, broken between tokens: one trace draws faster than twenty."""
    gap = np.full((1, values.shape[1], 2), np.nan)
    joined = np.concatenate([values[:, :, :2], gap]).transpose(1, 0, 2).reshape(-1, 2)
    return scatter(
        x=_plain(joined[:, 0].round(4)),
        y=_plain(joined[:, 1].round(4)),
        mode="lines",
        line={"color": color, "width": width},
        opacity=0.75,
        hoverinfo="skip",
        showlegend=False,
    )


def _spots(points: np.ndarray, color: str, name: str, symbol: str, size: int) -> dict[str, Any]:
    return scatter(
        x=_plain(points[:, 0].round(4)),
        y=_plain(points[:, 1].round(4)),
        mode="markers",
        name=name,
        marker={"color": color, "symbol": symbol, "size": size},
        customdata=list(range(1, len(points) + 1)),
        hovertemplate="token %{customdata}<extra>" + name + "</extra>",
    )


def _plain(numbers: Any) -> list[Any]:
    """Lists, with None where a number is missing or endless: JSON has neither."""
    array = np.asarray(numbers, dtype=float)
    kept = array.astype(object)
    kept[~np.isfinite(array)] = None
    return kept.tolist()


def _white() -> dict[str, Any]:
    return {"color": "white", "width": 1.5}


def _faint(color: str, share: float) -> str:
    red, green, blue = (int(color[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},{share})"
