"""Networks that embed sentences: how near a sentence stays to itself when its letters change."""

from __future__ import annotations

from functools import partial

import numpy as np

from pidformer.report.collect import PublishedRun
from pidformer.report.metrics import Metric
from pidformer.results import Record
from pidformer.robustness.compare import over_items
from pidformer.statistics import Hits, unpack
from study.frozen_section import frozen_sections
from study.records import Study
from study.registered import registered_sections
from study.section import Section, metrics_section
from study.tables import by_seed

KIND = "sentences"
_WORDS = (
    "The cosine of a misspelt sentence to its own clean self, and found: the share, in per cent, "
    "whose nearest clean sentence is their own; {count} sentences of 32 tokens, letters changed at "
    "{strengths} strengths. More is better. Differences over seeds and sentences."
)
_COUNTS = {2: "two", 3: "three"}


def sentence_sections(study: Study) -> list[Section]:
    """One table of both numbers at every strength, and what was registered of them."""
    metrics = sentence_metrics(study)
    records = [record for run in study.runs for record in run.of(KIND)]
    strengths = len({record.settings["row"] for record in records})
    words = _WORDS.format(
        count=records[0].details["sentences"], strengths=_COUNTS.get(strengths, strengths)
    )
    shown = [*metrics.values()]
    first = metrics_section(study, "", words, shown, more=["By seed:", by_seed(study, shown)])
    return [first, *registered_sections(study, metrics), *frozen_sections(study)]


def sentence_metrics(study: Study) -> dict[str, Metric]:
    """Cosine and share found at each strength, by title."""
    rows = dict.fromkeys(
        (str(r.settings["data"]), str(r.settings["row"]))
        for run in study.runs
        for r in run.of(KIND)
    )
    found = {}
    for data, row in rows:
        _, split, noise, strength = row.split("/")
        for name in ("cosine", "found"):
            metric = Metric(
                title=f"{data}, {split}, {name}, {noise} {strength}",
                find=partial(_find, data=data, row=row),
                read=partial(_read, name=name),
                compare=over_items(_cosines) if name == "cosine" else over_items(_hits, scale=100),
                digits=3 if name == "cosine" else 1,
                difference_digits=4 if name == "cosine" else 1,
                unit="cosine" if name == "cosine" else "points",
            )
            found[metric.title] = metric
    return found


def _find(run: PublishedRun, data: str, row: str) -> Record | None:
    return run.one(KIND, data=data, row=row)


def _read(record: Record, name: str) -> float:
    return record.metrics[name]


def _cosines(record: Record) -> np.ndarray:
    return np.asarray(record.details["cosine"])


def _hits(record: Record) -> Hits:
    return unpack(record.details["found"], record.details["sentences"])
