"""Figures of analysed models side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pidformer.analysis import Certificate
from pidformer.analysis.summary import Analysis
from pidformer.errors import InputError
from pidformer.report.figures import Curves, draw_curves
from pidformer.report.panels import Panel, check_format, save_panels
from pidformer.report.spectrum import spectrum_figure
from pidformer.report.trajectory import trajectory_plot

_PANELS = (
    ("similarity", "token similarity (1: all alike)", 1.05),
    ("effective_rank", "effective rank", None),
    ("mean_token_residual", "residual to the mean token", 1.05),
)


def analysis_figures(found: Sequence[Analysis], out: Path) -> list[Path]:
    """similarity.png, spectrum.png where there is a certificate, trajectory.png and .gif."""
    figures = [out / "similarity.png"]
    curves = {
        made.label: Collapse(
            similarity=made.tokens["similarity"]["blocks"],
            effective_rank=made.tokens["effective_rank"],
            mean_token_residual=made.tokens["mean_token_residual"],
            is_controlled=made.is_controlled,
        )
        for made in found
    }
    similarity_figure(curves, figures[0])
    certificates = {
        made.label: made.certificate for made in found if isinstance(made.certificate, Certificate)
    }
    if certificates:
        figures.append(out / "spectrum.png")
        spectrum_figure(certificates, figures[-1])
    image = found[0].example
    assert image is not None, "analyze(..., for_figures=True) keeps an example"
    models = {  # a model of another size cannot show the same image
        made.label: made.model
        for made in found
        if made.example is not None and made.example.shape == image.shape
    }
    flags = {made.label: made.is_controlled for made in found}
    figures += trajectory_plot(models, image, out / "trajectory.png", is_controlled=flags)
    return figures


class Collapse(NamedTuple):
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
    panels = []
    for name, title, top in _PANELS:
        curves = []
        for label, model in models.items():
            values = tuple(getattr(model, name))
            run = tuple(float(layer) for layer in range(1, len(values) + 1)), values
            curves.append(Curves(label, model.is_controlled, (run,)))
        look: dict[str, Any] = {"title": title, "x": "layer", "y": "", "top": top, "bottom": 0.0}
        panels.append(Panel(partial(draw_curves, curves=curves, **look), 4.4, 4.2))
    save_panels(panels, Path(path), columns=len(panels))
