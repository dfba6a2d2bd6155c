"""Everything `pidformer analyze` does: measure runs, record, draw them side by side."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from torch import Tensor

from pidformer import results
from pidformer.analysis import (
    Certificate,
    RankMeasures,
    certify,
    token_similarity,
    token_spectrum,
)
from pidformer.data import Batch, open_images, sample_images
from pidformer.errors import InputError
from pidformer.report.opening import Subject, open_subject
from pidformer.report.similarity import Collapse, similarity_figure
from pidformer.report.spectrum import spectrum_figure
from pidformer.report.trajectory import trajectory_plot

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

    @property
    def is_controlled(self) -> bool:
        return isinstance(self.certificate, Certificate) and self.certificate.is_controlled

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
) -> Analyses:
    """Token similarity and ranks on `limit` images, spectra and certificate on `spectrum_limit`.

    The images are drawn with `seed`, the same for every model. Adds "analysis" records to each run
    folder and writes similarity.png, spectrum.png, trajectory.png and trajectory.gif to `out`.
    """
    if not runs:
        raise InputError("give at least one run folder")
    for name, count in (("limit", limit), ("spectrum limit", spectrum_limit)):
        if count < 1:
            raise InputError(f"{name} must be at least 1 image, got {count}")
    out = _folder(Path(out))
    place = _device(device)
    labels = _labels([Path(run) for run in runs])
    found: list[Analysis] = []
    drawn: list[tuple[str, Subject, Tensor]] = []
    console = Console(stderr=True, quiet=not is_shown)
    for run, label in zip(runs, labels, strict=True):
        subject = open_subject(run)
        subject.model.to(place)
        sample, small = (
            _sample(subject, data, count, seed, place)
            for count in (limit, min(limit, spectrum_limit))
        )
        made = _measure(subject, label, sample.images, small.images, seed, console)
        found.append(made)
        drawn.append((label, subject, small.images[0]))
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
        hashes = {"sample": _data_hash(sample, subject), "small": _data_hash(small, subject)}
        _record(subject.folder or _folder(out / _plain(label)), made, settings, hashes)
    with _bar(console, "figures", None):
        figures = _draw(found, drawn, out)
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
    return Analysis(
        label=label,
        name=subject.name,
        images=len(images),
        similarity=similarity,
        ranks=RankMeasures(*(values.cpu() for values in ranks)),
        certificate=certificate,
    )


def _record(folder: Path, made: Analysis, settings: dict[str, Any], hashes: dict[str, str]) -> None:
    """One "analysis" record for each thing that was measured."""

    def add(what: str, which: str, metrics: dict[str, Any], details: dict[str, Any]) -> None:
        numbers = {name: float(value) for name, value in metrics.items() if value is not None}
        about = settings | {"what": what, "data_hash": hashes[which]}
        record = results.Record(kind="analysis", metrics=numbers, settings=about, details=details)
        results.append(folder, record)

    layers = made.similarity["blocks"]
    ranks = {name: values.tolist() for name, values in made.ranks._asdict().items()}
    add(
        "token_similarity",
        "sample",
        {f"similarity_layer_{depth}": value for depth, value in enumerate(layers, 1)}
        | {f"{name}_last": values[-1] for name, values in ranks.items()}
        | {"images": made.images},
        {"similarity": made.similarity} | ranks,
    )
    found = made.certificate
    if isinstance(found, str):
        return
    whole = found.spectrum.summary().to_dict()
    quantiles = whole.pop("quantiles")
    by_layer = [found.spectrum.summary(k).to_dict() for k in range(len(found.spectrum.kappas))]
    add(
        "spectrum",
        "small",
        whole | {"images": found.spectrum.images},
        {"quantiles": quantiles, "layers": by_layer},
    )
    fields = found.to_dict()
    names = ("worst_radius", "share_outside", "gain_margin", "settling_depth", "images")
    add(
        "certificate",
        "small",
        {name: fields[name] for name in names}
        | {"peak_growth": found.peak_growth, "final_growth": found.final_growth}
        | fields.get("response", {}),
        fields,
    )


def _draw(
    found: Sequence[Analysis], drawn: Sequence[tuple[str, Subject, Tensor]], out: Path
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
    image = drawn[0][2]  # models that take another size cannot show the same picture
    models = {label: subject.model for label, subject, own in drawn if own.shape == image.shape}
    flags = {made.label: made.is_controlled for made in found}
    figures += trajectory_plot(models, image, out / "trajectory.png", is_controlled=flags)
    return figures


def _sample(
    subject: Subject, data: str | Path | None, count: int, seed: int, device: torch.device
) -> Batch:
    location = data or subject.data
    if location is None or (data is None and location != "digits"):
        trained = f", trained on {location}," if location else ""
        raise InputError(f"{subject.name}{trained} needs images: say where with --data DIR")
    return sample_images(
        open_images(location, "val"),
        count,
        seed,
        image_size=subject.image_size,
        crop_ratio=subject.crop_ratio,
        device=device,
    )


def _data_hash(batch: Batch, subject: Subject) -> str:
    """16 hex digits of which images were looked at, by number, labels and size."""
    digest = hashlib.sha256(batch.targets.cpu().numpy().tobytes())
    digest.update(f"{len(batch.targets)} {subject.image_size} {subject.crop_ratio}".encode())
    return digest.hexdigest()[:16]


def _labels(runs: Sequence[Path]) -> list[str]:
    """The folders' own names, or their whole paths where these are not unique."""
    short = [run.resolve().name for run in runs]
    if len(set(map(str, runs))) < len(runs):
        raise InputError("each run may be given once")
    return [
        name if short.count(name) == 1 else str(run) for name, run in zip(short, runs, strict=True)
    ]


def _plain(label: str) -> str:
    return re.sub(r"[^\w.-]+", "-", label)


def _folder(path: Path) -> Path:
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file; --out names a folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot write to {path} ({error.strerror}); choose another --out"
        ) from None
    return path


def _device(name: str) -> torch.device:
    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"device must be auto, cpu or cuda, got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device 'cuda' needs a GPU that torch can use; use cpu")
    return torch.device(
        ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
    )


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
