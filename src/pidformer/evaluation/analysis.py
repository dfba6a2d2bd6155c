"""What `pidformer analyze` measures: tokens, spectra and certificates, as records.

A classifier sees images of the validation set; the encoder of a segmentation run sees windows of
its images; a language model sees stretches of the validation text.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pidformer.analysis import (
    Certificate,
    attention_matrices,
    attention_measures,
    attention_spectrum,
    certify,
    control_scale,
    token_similarity,
    token_spectrum,
)
from pidformer.analysis.controllers import read_controllers
from pidformer.analysis.summary import Analysis
from pidformer.devices import as_device
from pidformer.errors import InputError
from pidformer.evaluation.inputs import Inputs, open_inputs
from pidformer.evaluation.progress import EvaluationProgress
from pidformer.files import model_folder, out_folder
from pidformer.ledger import Found, Ledger
from pidformer.results import Record
from pidformer.runs.model import initial_model

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
    Figures, which go to `out`, need the eigenvalues, which no record holds: `for_figures` computes
    them in any case.
    """
    if not runs:
        raise InputError("give at least one model")
    for name, count in (("limit", limit), ("spectrum limit", spectrum_limit)):
        if count < 1:
            raise InputError(f"{name} must be at least 1 image, got {count}")
    place = as_device(device)
    models = _labelled([open_inputs(run, data, limit, seed) for run in runs])
    if for_figures:
        out_folder(out)  # before the long work, and after a model that is refused
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
        folder = subject.folder or model_folder(out, label)
        with EvaluationProgress(label, None, inputs=inputs.what, is_shown=is_shown) as progress:
            work = _Work(inputs, limit, min(limit, spectrum_limit), seed, place, progress)
            records = work.measure(Ledger("analysis", folder, settings))
            certificate = work.obstacle or (
                work.certificate if for_figures else records["certificate"].details["verdict"]
            )
        found.append(
            Analysis(
                label=label,
                name=subject.name,
                records=records,
                certificate=certificate,
                model=subject.model,
                example=work.few[0] if for_figures else None,
            )
        )
    return found


@dataclass
class _Work:
    """What is measured of one model: many inputs for the tokens, few for the spectra."""

    inputs: Inputs
    limit: int
    spectrum_limit: int
    seed: int
    device: torch.device
    progress: EvaluationProgress
    heads: Sequence[int] = ()
    """Their number in each layer, where attention can be seen."""

    @property
    def model(self) -> nn.Module:
        return self.inputs.subject.model

    @cached_property
    def few(self) -> Tensor:
        return self.inputs.take(self.spectrum_limit).to(self.device)

    @cached_property
    def obstacle(self) -> str | None:
        """Why there is no certificate, found on one input; None where there is one."""
        try:
            self.heads = [len(a[0]) for a in attention_matrices(self.model, self.few[:1])]
            read_controllers(self.model, None, self.heads)
        except InputError as error:
            return f"no certificate: {error}"
        return None

    @cached_property
    def certificate(self) -> Certificate:
        advance = self.progress.begin_steps("certificate", len(self.few))
        return certify(self.model, self.few, seed=self.seed, on_progress=advance)

    def measure(self, ledger: Ledger) -> dict[str, Record]:
        """The records by what they hold; the last one says why there is no certificate."""
        parts: dict[str, Callable[[], Found | None]] = {
            "control_scale": self._control_scale,
            "token_similarity": self._tokens,
            "attention": self._attention,
            "spectrum": self._spectrum,
            "certificate": self._closed_loop,
        }
        if self.obstacle is not None:  # another recursion, but perhaps attention all the same
            del parts["certificate"]
            if not self.heads:
                del parts["spectrum"], parts["attention"]
        last, records = list(parts)[-1], dict[str, Record]()
        for what, work in parts.items():
            is_few = what != "token_similarity"
            count = self.spectrum_limit if is_few else self.limit
            about: dict[str, Any] = {"what": what, "data_hash": self.inputs.data_hash(count)}
            if is_few and count != min(self.limit, SPECTRUM_LIMIT):
                about["spectrum_limit"] = count
            record = ledger.finished(about)
            is_old = record is not None
            if record is None and (made := work()) is not None:
                said = {"no_certificate": self.obstacle} if self.obstacle and what == last else {}
                record = ledger.write(about | said, *made)
            if record is not None:
                records[what] = record
                self.progress.done(what.replace("_", " "), record, is_old)
        return records

    def _tokens(self) -> Found:
        images = self.inputs.take(self.limit).to(self.device)
        total = len(images) * (1 + len(TENSORS))
        advance = self.progress.begin_steps("token similarity", total)
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

    def _attention(self) -> Found:
        """Rank and outer eigenvalues of attention by layer, from products with it."""
        advance = self.progress.begin_steps("attention", len(self.few))
        found = attention_measures(self.model, self.few, seed=self.seed, on_progress=advance)
        layers = {f"attention_{name}": values.tolist() for name, values in found._asdict().items()}
        metrics = {f"{name}_mean": sum(own) / len(own) for name, own in layers.items()}
        return metrics | {"images": float(len(self.few))}, layers

    def _spectrum(self) -> Found:
        is_certified = self.obstacle is None
        found = (
            self.certificate.spectrum if is_certified else attention_spectrum(self.model, self.few)
        )
        whole = found.summary().to_dict()
        quantiles = whole.pop("quantiles")
        layers = [found.summary(depth).to_dict() for depth in range(len(found.kappas))]
        return _floats(whole | {"images": found.images}), {"quantiles": quantiles, "layers": layers}

    def _closed_loop(self) -> Found:
        fields = self.certificate.to_dict()
        names = ("worst_radius", "share_outside", "gain_margin", "settling_depth", "images")
        metrics = {name: fields[name] for name in names} | {
            "peak_growth": self.certificate.peak_growth,
            "final_growth": self.certificate.final_growth,
        }
        return _floats(metrics | fields.get("response", {})), fields

    def _control_scale(self) -> Found | None:
        """The size of the control now and before the first step; None where there is none."""
        subject = self.inputs.subject
        try:
            now = control_scale(subject.model, self.few)
        except InputError:
            return None
        if now.mean_ratio == 0:
            return None
        details: dict[str, Any] = {name: t.tolist() for name, t in now._asdict().items()}
        details["ratio"] = now.ratio.tolist()
        metrics = {"ratio": now.mean_ratio}
        with suppress(InputError):  # of a run that did not begin from scratch
            if subject.folder is not None:
                model = self.inputs.part(initial_model(subject.folder)).to(self.device)
                initial = control_scale(model, self.few)
                metrics["initial_ratio"] = initial.mean_ratio
                details["initial_ratio"] = initial.ratio.tolist()
        return _floats(metrics), details


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
