"""Figures of analysed models side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pidformer.analysis import Certificate
from pidformer.analysis.summary import Analysis
from pidformer.report.similarity import Collapse, similarity_figure
from pidformer.report.spectrum import spectrum_figure
from pidformer.report.trajectory import trajectory_plot


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
