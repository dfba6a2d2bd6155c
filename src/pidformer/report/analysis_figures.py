"""Figures of analysed models side by side: tokens by layer, eigenvalues of attention."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pidformer.analysis import Certificate
from pidformer.analysis.summary import Analysis
from pidformer.control import PIDGains, schur_cohn
from pidformer.errors import InputError
from pidformer.files import atomic_path
from pidformer.report.figures import Curves, by_layer, curve_panel
from pidformer.report.panels import (
    BAD,
    GOOD,
    GREY,
    INK,
    PID,
    SOFTMAX,
    check_format,
    save_panels,
    style,
)
from pidformer.report.trajectory import trajectory_plot

COLUMNS = 6
_MOST_DOTS = 4000
_LINE = np.linspace(-1.12, 1.12, 225)
_PANELS = (
    ("similarity", "token similarity (1: all alike)", 1.05),
    ("effective_rank", "effective rank", None),
    ("mean_token_residual", "residual to the mean token", 1.05),
    ("attention_rank", "stable rank of attention", None),
    ("attention_second", "second largest |kappa| of attention", 1.05),
)


def analysis_figures(found: Sequence[Analysis], out: Path) -> list[Path]:
    """similarity.png, spectrum.png where there is a certificate, trajectory.png and .gif."""
    figures = [out / "similarity.png"]
    flags = {made.label: made.is_controlled for made in found}
    similarity_figure({made.label: made.layers for made in found}, figures[0], is_controlled=flags)
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
    figures += trajectory_plot(models, image, out / "trajectory.png", is_controlled=flags)
    return figures


def similarity_figure(
    models: Mapping[str, Mapping[str, Sequence[float]]],
    path: str | Path,
    *,
    is_controlled: Mapping[str, bool] | None = None,
) -> None:
    """Write tokens and, where a model has it, attention by layer to `path`."""
    check_format(path)
    if not models:
        raise InputError("give at least one model to draw")
    panels = []
    for name, title, top in _PANELS:
        curves = [
            Curves(label, bool((is_controlled or {}).get(label)), [by_layer(model[name])])
            for label, model in models.items()
            if name in model  # attention may not be readable
        ]
        if curves:
            panel = curve_panel(curves, title, "layer", "", (4.4, 4.2), top=top, bottom=0.0)
            panels.append(panel)
    save_panels(panels, Path(path), columns=len(panels))


def spectrum_figure(models: Mapping[str, Certificate], path: str | Path) -> None:
    """A row of layers for each model, to `path`.

    Every dot is an eigenvalue of one head's attention on one image (a fixed share of them when
    there are many). The circle has radius one; dots that their head's gains do not hold are
    red. Green is where the gains of every head are stable.
    """
    check_format(path)
    if not models:
        raise InputError("give at least one model to draw")
    depths = [len(certificate.spectrum.kappas) for certificate in models.values()]
    columns = min(COLUMNS, max(depths))
    with matplotlib.rc_context(style()):
        figure = Figure(figsize=(2.5 * columns + 0.4, 3.0 * len(models)), layout="constrained")
        rows = figure.subfigures(len(models), 1, squeeze=False, hspace=0.04)[:, 0]
        for row, (label, certificate), depth in zip(rows, models.items(), depths, strict=True):
            share = certificate.outside
            said = "no control" if share is None else f"{100 * share:.2g} % of the modes outside"
            row.suptitle(f"{label}: {said}", fontsize=12, color=INK)
            places = row.subplots(1, columns, squeeze=False)[0]
            shown = np.unique(np.linspace(0, depth - 1, columns).round().astype(int))
            for axes, layer in zip(places, shown, strict=False):
                _draw_layer(axes, certificate, int(layer))
            for axes in places[len(shown) :]:
                axes.set_visible(False)
        with atomic_path(path) as temporary:
            figure.savefig(temporary, dpi=130)


def _draw_layer(axes: Axes, certificate: Certificate, layer: int) -> None:
    controllers, kappas = certificate.controllers, certificate.spectrum.kappas[layer]
    acts = controllers.acts(layer)
    if acts:
        stable = np.min([_stable_grid(gains) for gains in set(controllers.layers[layer])], axis=0)
        axes.contourf(_LINE, _LINE, stable, levels=[0.5, 1.5], colors=[GOOD], alpha=0.15)
        if stable.min() < stable.max():
            axes.contour(_LINE, _LINE, stable, levels=[0.5], colors=[GOOD], linewidths=1.2)
    angle = np.linspace(0, 2 * np.pi, 300)
    axes.plot(np.cos(angle), np.sin(angle), color=GREY, linewidth=1)
    color = PID if controllers.layers else SOFTMAX
    for head in range(kappas.shape[1]):
        points = kappas[:, head].flatten()
        points = points[:: max(1, len(points) * kappas.shape[1] // _MOST_DOTS)]
        inside = schur_cohn(controllers.layers[layer][head], points) if acts else None
        good = points if inside is None else points[inside]
        bad = points[:0] if inside is None else points[~inside]
        axes.scatter(good.real, good.imag, s=3.5, color=color, alpha=0.4, linewidths=0)
        axes.scatter(bad.real, bad.imag, s=3.5, color=BAD, alpha=0.5, linewidths=0)
    note = "" if acts or not controllers.layers else " (free)"
    axes.set_title(f"layer {layer + 1}{note}", fontsize=10.5)
    axes.set(xlim=(-1.12, 1.12), ylim=(-1.12, 1.12), aspect="equal")
    axes.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1])
    axes.tick_params(labelsize=9)


@lru_cache(maxsize=64)
def _stable_grid(gains: PIDGains) -> np.ndarray:
    """1 where kappa is stable, 0 elsewhere, over the square that is drawn."""
    real, imaginary = np.meshgrid(_LINE, _LINE)
    return schur_cohn(gains, torch.from_numpy(real + 1j * imaginary)).numpy().astype(float)
