"""Everything `pidformer analyze` does: measure runs, record, draw them side by side."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from torch import Tensor

from pidformer import results
from pidformer.analysis import (
    AttentionSpectrum,
    Certificate,
    ControlScale,
    RankMeasures,
    attention_spectrum,
    certify,
    control_scale,
    token_similarity,
    token_spectrum,
)
from pidformer.devices import as_device
from pidformer.errors import InputError
from pidformer.files import out_folder
from pidformer.report.similarity import Collapse, similarity_figure
from pidformer.report.specimens import Specimen, open_specimen
from pidformer.report.spectrum import spectrum_figure
from pidformer.report.trajectory import trajectory_plot
from pidformer.runs.model import initial_model
from pidformer.runs.open import Subject

TENSORS: dict[str, dict[str, Any]] = {
    "blocks": {},
    "patch": {"tokens": "patch"},
    "norm": {"of": "norm"},
    "values": {"of": "values"},
}
"""What the similarity is taken of, by the name in records."""


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """What was found in one model."""

    label: str
    name: str
    images: int
    similarity: dict[str, list[float]]
    """By layer, for each entry of `TENSORS` that the model offers."""
    ranks: RankMeasures
    certificate: Certificate | str
    """Or why there is none."""
    spectrum: AttentionSpectrum | None = None
    """Of the attention alone; None where it cannot be seen."""
    scale: ControlScale | None = None
    """None without control, or when it cannot be read."""
    initial_scale: ControlScale | None = None
    """The same before the first step, for runs that began from scratch."""

    @property
    def is_controlled(self) -> bool:
        found = self.certificate
        return found.is_controlled if isinstance(found, Certificate) else self.scale is not None

    def in_words(self) -> str:
        found = self.certificate
        return found if isinstance(found, str) else found.describe()

    def to_dict(self) -> dict[str, Any]:
        ranks = {name: values.tolist() for name, values in self.ranks._asdict().items()}
        found = self.certificate
        return {
            "label": self.label,
            "model": self.name,
            "images": self.images,
            "similarity": self.similarity,
            "ranks": ranks,
            "certificate": found if isinstance(found, str) else found.to_dict(),
        }


@dataclass(frozen=True, kw_only=True)
class Analyses:
    """All models, and the figures that show them together."""

    models: list[Analysis]
    figures: list[Path] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {
            "models": [model.to_dict() for model in self.models],
            "figures": [str(path) for path in self.figures],
        }


def analyze(
    runs: Sequence[str | Path],
    *,
    data: str | Path | None = None,
    out: str | Path = "analysis",
    limit: int = 1000,
    spectrum_limit: int = 64,
    seed: int = 0,
    device: str = "auto",
    command: str | None = None,
    is_shown: bool = True,
    draw: bool = True,
) -> Analyses:
    """Token similarity and ranks on `limit` images, spectra and certificate on `spectrum_limit`.

    The images are drawn with `seed`, the same for every model. Adds "analysis" records to each run
    folder and writes similarity.png, spectrum.png, trajectory.png and trajectory.gif to `out`
    (unless `draw` is false).
    """
    if not runs:
        raise InputError("give at least one model")
    for name, count in (("limit", limit), ("spectrum limit", spectrum_limit)):
        if count < 1:
            raise InputError(f"{name} must be at least 1 image, got {count}")
    out, place = Path(out), as_device(device)
    counts = (limit, min(limit, spectrum_limit))
    specimens = _labelled([open_specimen(run, data, counts, seed) for run in runs])
    if draw:
        out_folder(out)
    console = Console(stderr=True, quiet=not is_shown)
    found: list[Analysis] = []
    pictures: dict[str, Tensor] = {}
    for label, specimen in specimens.items():
        subject = specimen.subject
        subject.model.to(place)
        images, small = (batch.to(place) for batch in specimen.inputs())
        found.append(_measure(subject, label, images, small, seed, console))
        pictures[label] = small[0]
        settings = dict(subject.facts) | {
            "model": subject.name,
            "label": label,
            "data": str(data or subject.data),
            "seed": seed,
            "limit": limit,
            "device": str(place),
            "machine": results.machine(),
            "command": command,
        }
        folder = subject.folder or out_folder(out / re.sub(r"[^\w.-]+", "-", label))
        _record(folder, found[-1], settings, specimen.hashes())
    figures: list[Path] = []
    if draw:
        with _bar(console, "figures", None):
            figures = _draw(found, specimens, pictures, out)
    return Analyses(models=found, figures=figures)


def _measure(
    subject: Subject, label: str, images: Tensor, small: Tensor, seed: int, console: Console
) -> Analysis:
    model = subject.model
    similarity: dict[str, list[float]] = {}
    with _bar(console, f"{label}: token similarity", len(images) * (1 + len(TENSORS))) as advance:
        for name, which in TENSORS.items():
            try:
                layers = token_similarity(model, images, on_progress=advance, **which)
            except InputError:
                if name == "blocks":
                    raise
                continue
            similarity[name] = layers.tolist()
        ranks = token_spectrum(model, images, on_progress=advance)
    certificate: Certificate | str
    with _bar(console, f"{label}: certificate", len(small)) as advance:
        try:
            certificate = certify(model, small, seed=seed, on_progress=advance)
        except InputError as error:
            certificate = f"no certificate: {error}"
    spectrum = certificate.spectrum if isinstance(certificate, Certificate) else None
    if spectrum is None:
        with suppress(InputError):  # another recursion, but attention all the same
            spectrum = attention_spectrum(model, small)
    scale, initial = _scales(subject, small)
    return Analysis(
        label=label,
        name=subject.name,
        images=len(images),
        similarity=similarity,
        ranks=RankMeasures(*(values.cpu() for values in ranks)),
        certificate=certificate,
        spectrum=spectrum,
        scale=scale,
        initial_scale=initial,
    )


def _scales(subject: Subject, images: Tensor) -> tuple[ControlScale | None, ControlScale | None]:
    """The size of the control now and before the first step; None where there is none."""
    try:
        now = control_scale(subject.model, images)
    except InputError:
        return None, None
    if now.mean_ratio == 0:
        return None, None
    if subject.folder is None:
        return now, None
    try:
        return now, control_scale(initial_model(subject.folder).to(images.device), images)
    except InputError:
        return now, None


def _record(folder: Path, made: Analysis, settings: dict[str, Any], hashes: Sequence[str]) -> None:
    """One "analysis" record for each thing that was measured."""

    def add(what: str, data_hash: str, metrics: dict[str, Any], details: dict[str, Any]) -> None:
        numbers = {name: float(value) for name, value in metrics.items() if value is not None}
        about = settings | {"what": what, "data_hash": data_hash}
        record = results.Record(kind="analysis", metrics=numbers, settings=about, details=details)
        results.append(folder, record)

    found = made.certificate
    if made.scale is not None:
        add("control_scale", hashes[1], *_scale_fields(made.scale, made.initial_scale))
    looked = [("token_similarity", hashes[0], *_similarity_fields(made))]
    if made.spectrum is not None:
        looked.append(("spectrum", hashes[1], *_spectrum_fields(made.spectrum)))
    for place, one in enumerate(looked, 1):
        if isinstance(found, str) and place == len(looked):  # the last record says so
            settings = settings | {"no_certificate": found}
        add(*one)
    if isinstance(found, str):
        return
    fields = found.to_dict()
    names = ("worst_radius", "share_outside", "gain_margin", "settling_depth", "images")
    add(
        "certificate",
        hashes[1],
        {name: fields[name] for name in names}
        | {"peak_growth": found.peak_growth, "final_growth": found.final_growth}
        | fields.get("response", {}),
        fields,
    )


def _similarity_fields(made: Analysis) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metrics and details of what the tokens are like."""
    ranks = {name: values.tolist() for name, values in made.ranks._asdict().items()}
    layers = enumerate(made.similarity["blocks"], 1)
    metrics = {f"similarity_layer_{depth}": value for depth, value in layers}
    metrics |= {f"{name}_last": values[-1] for name, values in ranks.items()}
    return metrics | {"images": made.images}, {"similarity": made.similarity} | ranks


def _spectrum_fields(spectrum: AttentionSpectrum) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metrics and details of where the eigenvalues lie."""
    whole = spectrum.summary().to_dict()
    quantiles = whole.pop("quantiles")
    layers = [spectrum.summary(depth).to_dict() for depth in range(len(spectrum.kappas))]
    return whole | {"images": spectrum.images}, {"quantiles": quantiles, "layers": layers}


def _scale_fields(
    now: ControlScale, initial: ControlScale | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metrics and details of the size of the control."""
    metrics: dict[str, Any] = {"ratio": now.mean_ratio}
    details: dict[str, Any] = {name: t.tolist() for name, t in now._asdict().items()}
    details["ratio"] = now.ratio.tolist()
    if initial is not None:
        metrics["initial_ratio"] = initial.mean_ratio
        details["initial_ratio"] = initial.ratio.tolist()
    return metrics, details


def _draw(
    found: Sequence[Analysis],
    specimens: Mapping[str, Specimen],
    pictures: Mapping[str, Tensor],
    out: Path,
) -> list[Path]:
    figures = [out / "similarity.png"]
    curves = {
        made.label: Collapse(
            similarity=made.similarity["blocks"],
            effective_rank=made.ranks.effective_rank.tolist(),
            mean_token_residual=made.ranks.mean_token_residual.tolist(),
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
    image = next(iter(pictures.values()))  # a model of another size cannot show the same one
    models = {
        label: specimens[label].subject.model
        for label, own in pictures.items()
        if own.shape == image.shape
    }
    flags = {made.label: made.is_controlled for made in found}
    figures += trajectory_plot(models, image, out / "trajectory.png", is_controlled=flags)
    return figures


def _labelled(specimens: Sequence[Specimen]) -> dict[str, Specimen]:
    """By their own labels, or by their whole names where these are not unique."""
    labels = [specimen.subject.label for specimen in specimens]
    named = {
        label if labels.count(label) == 1 else specimen.subject.name: specimen
        for label, specimen in zip(labels, specimens, strict=True)
    }
    if len(named) < len(specimens):
        raise InputError("each model may be given once")
    return named


@contextmanager
def _bar(console: Console, what: str, total: int | None) -> Iterator[Any]:
    """A bar on a terminal, a line elsewhere; yields what to call with the images just done."""
    begun = time.perf_counter()
    if console.is_terminal and not console.quiet:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Bars(*columns, console=console, transient=True) as bars:
            task = bars.add_task(what, total=total)
            yield lambda images: bars.advance(task, images)
    else:
        yield lambda images: None
    console.print(f"{what}: {time.perf_counter() - begun:.1f} s", highlight=False, soft_wrap=True)
