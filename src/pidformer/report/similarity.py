"""Rank collapse by layer, several models in one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pidformer.errors import InputError
from pidformer.files import atomic_path
from pidformer.report.style import INK, check_format, run_colors, style


@dataclass(frozen=True, kw_only=True)
class Collapse:
    """Numbers of one model by layer."""

    similarity: Sequence[float]
    effective_rank: Sequence[float]
    mean_token_residual: Sequence[float]
    is_controlled: bool


def similarity_figure(models: Mapping[str, Collapse], path: str | Path) -> None:
    """Token similarity, effective rank and residual to the mean token by layer, to `path`."""
    check_format(path)
    if not models:
        raise InputError("give at least one model to draw")
    colors = run_colors([model.is_controlled for model in models.values()])
    with matplotlib.rc_context(style()):
        figure = Figure(figsize=(13, 4.2), layout="constrained")
        panels: list[Axes] = list(figure.subplots(1, 3))
        for (label, model), color in zip(models.items(), colors, strict=True):
            curves = (model.similarity, model.effective_rank, model.mean_token_residual)
            for axes, curve in zip(panels, curves, strict=True):
                axes.plot(
                    range(1, len(curve) + 1),
                    curve,
                    color=color,
                    linewidth=2.2,
                    marker="o",
                    markersize=4.5,
                    label=label,
                )
        titles = ("token similarity (1: all alike)", "effective rank", "residual to the mean token")
        for axes, title in zip(panels, titles, strict=True):
            axes.set(title=title, xlabel="layer")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.set_ylim(bottom=min(0.0, axes.dataLim.ymin))
        panels[0].set_ylim(top=1.05)
        panels[0].axhline(1, color=INK, linewidth=0.8, linestyle=":")
        panels[2].set_ylim(top=1.05)
        figure.legend(
            *panels[0].get_legend_handles_labels(),
            loc="outside lower center",
            ncols=min(5, len(models)),
        )
        with atomic_path(path) as temporary:
            figure.savefig(temporary, dpi=130)
