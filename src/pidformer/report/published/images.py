"""Classification: accuracy clean and under threats, out of distribution, and inside."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from pidformer.report.looks import layers
from pidformer.report.published.course import control_section
from pidformer.report.published.margin import stability_words
from pidformer.report.published.numbers import (
    Compared,
    Metric,
    compare_all,
    compare_pairs,
    findings,
    over_items,
    primary_words,
)
from pidformer.report.published.section import Section
from pidformer.report.published.shrink import corruption_hits
from pidformer.report.published.studies import PublishedRun, Study
from pidformer.report.published.tables import by_seed, by_variant, differences_by_variant
from pidformer.report.table1 import TITLES
from pidformer.results import Record
from pidformer.robustness.compare import hits
from pidformer.studies import load_study, shipped_studies

CONFIRMING = 10
"""Seeds from here on were not used to find anything."""
_ORDER = ("clean", "fgsm", "pgd", "spsa", "sld", "noise", "autoattack", "corruption")
_OUTSIDE = ("ood", "imagenet-o")


def classification_sections(study: Study) -> list[Section]:
    """Results (in two where a registered study kept some seeds for confirming), then control."""
    kept = [run for run in study.runs if run.seed >= CONFIRMING]
    if not kept or study.name not in shipped_studies():
        return [_section(study, "", None), *control_section(study)]
    looked = [run for run in study.runs if run.seed < CONFIRMING]
    found = [_section(study.only(kept), "Confirmed", 1)]
    if looked:
        found.append(_section(study.only(looked), "Searched", 0))
    return found + control_section(study)


_PARTS = {
    1: "Seeds from 10 on, and every second image (1, 3, 5, ...) of the validation set: neither "
    "was used to choose a row.",
    0: "Seeds below 10, and the other half of the images (0, 2, 4, ...): what rows were chosen by.",
    None: "All images of the validation set.",
}


def _section(study: Study, name: str, part: int | None) -> Section:
    metrics = classification_metrics(study.runs, part)
    compared = compare_all(study, metrics)
    words = [
        f"{_PARTS[part]} Accuracy in per cent, of corruptions the mean over their rows; AUPR: how "
        "well low confidence tells images of no class, over all images; similarity: mean cosine "
        "between the tokens of an image after the last layer; control's size: its root mean square "
        "over that of the attention's output, mean over the layers in which it acts, trained and "
        "(at first) before the first step. Rows on a sample of images take all of it."
    ]
    threats = _threats(study.runs)
    body = [*words, by_variant(study, metrics)]
    if compared:
        body += ["Paired differences:", differences_by_variant(compared, metrics)]
    said = findings(compared)
    if part == 1:
        more, first = _registered(study, metrics, compared)
        body, said = body + more, first + said
    margin = stability_words(study, compared)
    body += [margin] if margin else []
    body += ["By seed:", by_seed(study, metrics)] if part is None else []
    return Section(
        title=name,
        body=body + ([threats] if threats else []),
        findings=said,
        compared=compared,
    )


def _registered(
    study: Study, metrics: Sequence[Metric], compared: Sequence[Compared]
) -> tuple[list[str], list[str]]:
    """The contrasts and the primary comparisons that were fixed before: text and findings."""
    plan = load_study(study.name)
    contrasts = compare_pairs(study, plan.contrasts, metrics)
    more = []
    if contrasts:
        more = ["Other differences that were asked for:"]
        more.append(differences_by_variant(contrasts, metrics))
    first = [one for one in compared if (one.variant, one.metric.title) in plan.primary]
    return more, [primary_words(first)] if len(first) > 1 else []


class Key(NamedTuple):
    """Which robustness record of a run."""

    row: str
    threat: str
    limit: int | None
    domain: str

    @property
    def order(self) -> tuple[int, int]:
        return (self.limit is not None, _ORDER.index(self.row) if self.row in _ORDER else 99)


def _key(record: Record) -> Key:
    s = record.settings
    domain = str(s.get("domain") or "pixel")
    return Key(str(s["row"]), str(s.get("threat")), s.get("limit"), domain)


def classification_metrics(runs: Sequence[PublishedRun], part: int | None) -> list[Metric]:
    """What any of the runs has, in the order of the paper's table, samples of images last."""
    keys = dict.fromkeys(
        _key(r) for run in runs for r in run.all("robustness") if "@" not in str(r.settings["row"])
    )
    titles: dict[str, Key] = {}
    for key in sorted((k for k in keys if k.row not in _OUTSIDE), key=lambda k: k.order):
        title = TITLES.get(key.row, key.row) + ("" if key.domain == "pixel" else f", {key.domain}")
        title += "" if key.limit is None else f", {key.limit} images"
        budget = re.search(r"eps=([\d./]+)", key.threat)
        if title in titles:
            title += f", {budget[1]}" if budget else f", {key.threat}"
        titles[title] = key
    found = [_accuracy(title, key, part) for title, key in titles.items()]
    for key in (key for key in keys if key.row in _OUTSIDE):
        find = partial(_find, key=key)
        found.append(Metric(title=_AUPR[key.row], find=find, read=_aupr))
    if any(_similarity(run) is not None for run in runs):
        found.append(
            Metric(
                title="similarity",
                find=_similarity,
                read=lambda record: layers(record)[-1],
                better=0,
                digits=3,
                difference_digits=3,
            )
        )
    for name, title in (("ratio", "control's size"), ("initial_ratio", "at first")):
        if any(name in r.metrics for run in runs for r in run.all("analysis")):
            find = partial(_scale, name=name)
            read = partial(_number, name=name)
            found.append(Metric(title=title, find=find, read=read, better=0, digits=3))
    return found


def _scale(run: PublishedRun, name: str) -> Record | None:
    record = run.one("analysis", what="control_scale")
    return record if record is not None and name in record.metrics else None


def _number(record: Record, name: str) -> float:
    return record.metrics[name]


_AUPR = {"ood": "AUPR", "imagenet-o": "AUPR, ImageNet-O"}


def _accuracy(title: str, key: Key, part: int | None) -> Metric:
    of = partial(_outcomes, part=part if key.limit is None else None)
    return Metric(
        title=title,
        find=partial(_find, key=key),
        read=lambda record: 100 * float(of(record).mean()),
        compare=over_items(of, scale=100),
    )


def _outcomes(record: Record, part: int | None) -> np.ndarray:
    """Right or not (or the share of corruptions survived), for each image of a part."""
    found = corruption_hits(record) if "survived" in record.details else hits(record)
    return found if part is None else found[part::2]


def _find(run: PublishedRun, key: Key) -> Record | None:
    return next((r for r in run.all("robustness") if _key(r) == key), None)


def _similarity(run: PublishedRun) -> Record | None:
    return run.one("analysis", what="token_similarity")


def _aupr(record: Record) -> float:
    return record.metrics["aupr"]


def _threats(runs: Sequence[PublishedRun]) -> str:
    """What the rows mean, from their records."""
    keys = dict.fromkeys(_key(r) for run in runs for r in run.all("robustness"))
    found = dict.fromkeys(
        key.threat for key in keys if key.threat not in ("None", key.row) and "@" not in key.row
    )
    return f"Threats: {'; '.join(f'`{threat}`' for threat in found)}." if found else ""
