"""What `pidformer analyze` measures: tokens, spectra and certificates, as records."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pidformer.analysis import (
    AttentionSpectrum,
    Certificate,
    ControlScale,
    attention_spectrum,
    certify,
    control_scale,
    token_similarity,
    token_spectrum,
)
from pidformer.analysis.summary import Analysis
from pidformer.checkpoint import initial_model
from pidformer.devices import as_device
from pidformer.errors import InputError
from pidformer.evaluation.inputs import Inputs, open_inputs
from pidformer.evaluation.progress import Progress, Watch
from pidformer.files import out_folder
from pidformer.ledger import Found, Ledger
from pidformer.results import Record
from pidformer.subjects import Subject

TENSORS: dict[str, dict[str, Any]] = {
    "blocks": {},
    "patch": {"tokens": "patch"},
    "norm": {"of": "norm"},
    "values": {"of": "values"},
}
"""What the similarity is taken of, by the name in records."""
SPECTRUM_LIMIT = 64
"""Inputs for spectra and certificate; records of any other number say so."""


def analyze(
    runs: Sequence[str | Path],
    *,
    data: str | Path | None = None,
    out: str | Path = "analysis",
    limit: int = 1000,
    spectrum_limit: int = SPECTRUM_LIMIT,
    seed: int = 0,
    device: str = "auto",
    command: str | None = None,
    is_shown: bool = True,
    for_figures: bool = False,
) -> list[Analysis]:
    """Token similarity and ranks on `limit` images, spectra and certificate on `spectrum_limit`.

    The images are drawn with `seed`, the same for every model. Adds "analysis" records to each run
    folder (those of other models go to a folder in `out`); what is there is not measured again.
    Figures need the eigenvalues, which no record holds: `for_figures` computes them in any case.
    """
    if not runs:
        raise InputError("give at least one model")
    for name, count in (("limit", limit), ("spectrum limit", spectrum_limit)):
        if count < 1:
            raise InputError(f"{name} must be at least 1 image, got {count}")
    place = as_device(device)
    few = min(limit, spectrum_limit)
    models = _labelled([open_inputs(run, data, limit, seed) for run in runs])
    found = []
    for label, inputs in models.items():
        subject = inputs.subject
        subject.model.to(place)
        settings = dict(subject.facts) | {
            "model": subject.name,
            "label": label,
            "data": str(data or subject.data),
            "seed": seed,
            "limit": limit,
            "device": str(place),
            "command": command,
        }
        folder = subject.folder or out_folder(Path(out) / re.sub(r"[^\w.-]+", "-", label))
        ledger = Ledger("analysis", folder, settings, is_timed=False)
        of_few: dict[str, Any] = {"data_hash": inputs.data_hash(few)}
        if spectrum_limit != SPECTRUM_LIMIT:
            of_few["spectrum_limit"] = spectrum_limit
        with Progress(label, None, is_shown=is_shown) as progress:
            work = _Work(inputs, (limit, few), seed, place, ledger, progress, of_few)
            certificate = work.measure()
            if for_figures and "certificate" in work.records:
                certificate, _ = work.closed_loop
        found.append(
            Analysis(
                label=label,
                name=subject.name,
                records=work.records,
                certificate=certificate,
                model=subject.model,
                example=work.few[0] if for_figures else None,
            )
        )
    return found


@dataclass
class _Work:
    """The parts of one analysis, in the order of their records."""

    inputs: Inputs
    counts: tuple[int, int]
    seed: int
    device: torch.device
    ledger: Ledger
    progress: Progress
    of_few: Mapping[str, Any]
    """What the records of the few inputs say."""
    records: dict[str, Record] = field(default_factory=dict)

    @property
    def model(self) -> nn.Module:
        return self.inputs.subject.model

    @cached_property
    def few(self) -> Tensor:
        return self.inputs.take(self.counts[1]).to(self.device)

    @cached_property
    def closed_loop(self) -> tuple[Certificate | str, AttentionSpectrum]:
        """The certificate, or why there is none, and the spectrum."""
        advance = _advance(self.progress.begin("certificate", len(self.few)))
        try:
            found = certify(self.model, self.few, seed=self.seed, on_progress=advance)
        except InputError as error:  # another recursion, but attention all the same
            return f"no certificate: {error}", attention_spectrum(self.model, self.few)
        return found, found.spectrum

    def measure(self) -> Certificate | str:
        """Every part that is not there. Returns the certificate if it was made now, else what
        the records say in its place.

        The last record of a model without a certificate says why.
        """
        tokens = {"data_hash": self.inputs.data_hash(self.counts[0])}
        if not self._find("control_scale", self.of_few) and not self._find(
            "token_similarity", tokens
        ):
            now, initial = _scales(self.inputs.subject, self.few)
            if now is not None:
                self._add("control_scale", self.of_few, lambda: _scale_fields(now, initial))
        if not self._find("token_similarity", tokens):
            reason = _hidden(self.model, self.few[:1])
            said = {} if reason is None else {"no_certificate": reason}
            self._add("token_similarity", tokens | said, self._tokens)
        if self._reason is None and not self._find("spectrum", self.of_few):
            certificate, spectrum = self.closed_loop
            said = {"no_certificate": certificate} if isinstance(certificate, str) else {}
            self._add("spectrum", {**self.of_few, **said}, lambda: _spectrum_fields(spectrum))
        if self._reason is not None:
            return self._reason
        if self._find("certificate", self.of_few):
            return str(self.records["certificate"].details["verdict"])
        certificate, _ = self.closed_loop
        if isinstance(certificate, Certificate):
            made = certificate
            self._add("certificate", self.of_few, lambda: _certificate_fields(made))
        return certificate

    @property
    def _reason(self) -> str | None:
        """Why there is no certificate, once a record says so."""
        said = (record.settings.get("no_certificate") for record in self.records.values())
        return next((text for text in said if text is not None), None)

    def _find(self, what: str, about: Mapping[str, Any]) -> bool:
        if what not in self.records:
            record = self.ledger.finished({"what": what, **about})
            if record is None:
                return False
            self.records[what] = record
            self.progress.done(what.replace("_", " "), record, is_old=True)
        return True

    def _add(self, what: str, about: Mapping[str, Any], work: Callable[[], Found]) -> None:
        self.records[what] = self.ledger.add({"what": what, **about}, work)
        self.progress.done(what.replace("_", " "), self.records[what], is_old=False)

    def _tokens(self) -> Found:
        """Metrics and details of what the tokens are like."""
        images = self.inputs.take(self.counts[0]).to(self.device)
        total = len(images) * (1 + len(TENSORS))
        advance = _advance(self.progress.begin("token similarity", total))
        similarity: dict[str, list[float]] = {}
        for name, which in TENSORS.items():
            try:
                layers = token_similarity(self.model, images, on_progress=advance, **which)
            except InputError:
                if name == "blocks":
                    raise
                continue
            similarity[name] = layers.tolist()
        measures = token_spectrum(self.model, images, on_progress=advance)
        ranks = {name: values.tolist() for name, values in measures._asdict().items()}
        metrics = {f"similarity_layer_{k}": v for k, v in enumerate(similarity["blocks"], 1)}
        metrics |= {f"{name}_last": values[-1] for name, values in ranks.items()}
        return metrics | {"images": float(len(images))}, {"similarity": similarity} | ranks


def _hidden(model: nn.Module, one: Tensor) -> str | None:
    """Why no attention can be seen in a model, found on one input; None where it can."""
    try:
        attention_spectrum(model, one)
    except InputError:
        try:
            certify(model, one)
        except InputError as error:
            return f"no certificate: {error}"
    return None


def _advance(watch: Watch) -> Callable[[int], None]:
    """What to call with the inputs just done."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        watch(done)

    return advance


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


def _spectrum_fields(spectrum: AttentionSpectrum) -> Found:
    """Metrics and details of where the eigenvalues lie."""
    whole = spectrum.summary().to_dict()
    quantiles = whole.pop("quantiles")
    layers = [spectrum.summary(depth).to_dict() for depth in range(len(spectrum.kappas))]
    metrics = whole | {"images": spectrum.images}
    return _floats(metrics), {"quantiles": quantiles, "layers": layers}


def _scale_fields(now: ControlScale, initial: ControlScale | None) -> Found:
    """Metrics and details of the size of the control."""
    metrics: dict[str, Any] = {"ratio": now.mean_ratio}
    details: dict[str, Any] = {name: t.tolist() for name, t in now._asdict().items()}
    details["ratio"] = now.ratio.tolist()
    if initial is not None:
        metrics["initial_ratio"] = initial.mean_ratio
        details["initial_ratio"] = initial.ratio.tolist()
    return _floats(metrics), details


def _certificate_fields(found: Certificate) -> Found:
    """Metrics and details of the closed loop."""
    fields = found.to_dict()
    names = ("worst_radius", "share_outside", "gain_margin", "settling_depth", "images")
    metrics = {name: fields[name] for name in names}
    metrics |= {"peak_growth": found.peak_growth, "final_growth": found.final_growth}
    return _floats(metrics | fields.get("response", {})), fields


def _floats(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Those that are there."""
    return {name: float(value) for name, value in metrics.items() if value is not None}


def _labelled(models: Sequence[Inputs]) -> dict[str, Inputs]:
    """By their own labels, or by their whole names where these are not unique."""
    labels = [model.subject.label for model in models]
    named = {
        label if labels.count(label) == 1 else model.subject.name: model
        for label, model in zip(labels, models, strict=True)
    }
    if len(named) < len(models):
        raise InputError("each model may be given once")
    return named
