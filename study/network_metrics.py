"""What `pidformer analyze` measured inside the networks: tokens, control, spectra, certificates."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from pidformer.report.collect import PublishedRun
from pidformer.report.details import layers
from pidformer.report.metrics import Metric
from pidformer.results import Record
from study.records import Study
from study.section import Section
from study.tables import by_variant


class Quantity(NamedTuple):
    """A number of an analysis: its record, the metric in it, how it is shown."""

    what: str
    name: str
    title: str
    digits: int = 2
    scale: float = 1.0


TOKENS = (
    Quantity("token_similarity", "effective_rank_last", "effective rank"),
    Quantity("control_scale", "ratio", "control's size", 3),
    Quantity("control_scale", "initial_ratio", "at first", 3),
)
SPECTRA = (
    Quantity("spectrum", "min_real", "Re kappa from"),
    Quantity("spectrum", "share_negative", "below 0, %", 1, 100),
    Quantity("certificate", "share_outside", "modes outside, %", 2, 100),
    Quantity("certificate", "worst_radius", "largest radius"),
    Quantity("certificate", "peak_growth", "growth of v_0"),
    Quantity("certificate", "value_gain_mean", "sensitivity"),
)
_WORDS = (
    "Attention on {images} images: the smallest real part of its eigenvalues kappa, and the "
    "share with a negative one. With these eigenvalues the idealised recursion (no LayerNorm, "
    "projections, residual or MLP) has this share of modes outside the unit circle and this "
    "largest radius; with the matrices, layer by layer, it lets a perturbation of the first values "
    "grow to this at most. Sensitivity is that of the whole network: last values over first, along "
    "random directions of the input ([analysis.md](analysis.md#certificates))."
)


def token_metrics(runs: Sequence[PublishedRun]) -> list[Metric]:
    """How alike the last layer's tokens are, and how large the control is."""
    found = inside_metrics(runs, TOKENS)
    if all(_similarity(run) is None for run in runs):
        return found
    similarity = Metric(
        title="similarity",
        find=_similarity,
        read=lambda record: layers(record)[-1],
        better=0,
        digits=3,
        difference_digits=3,
    )
    return [similarity, *found]


def inside_metrics(runs: Sequence[PublishedRun], quantities: Sequence[Quantity]) -> list[Metric]:
    """Those of the quantities that any of the runs has; none is better or worse."""
    return [
        Metric(
            title=quantity.title,
            find=partial(_find, quantity=quantity),
            read=partial(_read, quantity=quantity),
            better=0,
            digits=quantity.digits,
        )
        for quantity in quantities
        if any(_find(run, quantity) is not None for run in runs)
    ]


def spectra_section(study: Study) -> list[Section]:
    """A table of all variants; nothing where no run was looked into."""
    metrics = inside_metrics(study.runs, SPECTRA)
    if not metrics:
        return []
    looked = [r for run in study.runs if (r := run.one("analysis", what="spectrum")) is not None]
    counts = sorted({round(record.metrics["images"]) for record in looked})
    words = _WORDS.format(images=" or ".join(map(str, counts)))
    body = [words, by_variant(study, metrics)]
    return [Section(title="Spectra and certificates", body=body)]


def _similarity(run: PublishedRun) -> Record | None:
    return run.one("analysis", what="token_similarity")


def _find(run: PublishedRun, quantity: Quantity) -> Record | None:
    record = run.one("analysis", what=quantity.what)
    return record if record is not None and quantity.name in record.metrics else None


def _read(record: Record, quantity: Quantity) -> float:
    return quantity.scale * record.metrics[quantity.name]
