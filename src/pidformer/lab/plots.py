"""Charts of the Attack view, as plotly figures."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

HEIGHT = 350


class Drawing:
    """A figure in the making, as plain dictionaries.

    plotly's own classes check every property, which takes longer than the rest; a test checks
    them instead.
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
            "margin": {"l": 52, "r": 14, "t": 68, "b": 44},
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

    def axis(self, name: str, **fields: Any) -> None:
        self.layout[f"{name}axis"].update(fields)

    def done(self, *, has_legend: bool = True) -> go.Figure:
        legend = {"orientation": "h", "x": 1, "xanchor": "right", "y": 1.0, "yanchor": "bottom"}
        if has_legend:
            self.layout |= {"showlegend": True, "legend": legend}
        return go.Figure({"data": self.data, "layout": self.layout}, _validate=False)


def scatter(**fields: Any) -> dict[str, Any]:
    return {"type": "scatter"} | fields
