"""What is measured of a classifier: accuracy clean and under threats, outside, and inside."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from pidformer.report.published.inside import token_metrics
from pidformer.report.published.numbers import Metric, over_items
from pidformer.report.published.shrink import corruption_hits
from pidformer.report.published.studies import PublishedRun
from pidformer.report.table1 import TITLES
from pidformer.results import Record
from pidformer.robustness.compare import hits

_ORDER = ("clean", "fgsm", "pgd", "spsa", "sld", "noise", "autoattack", "corruption")
_OUTSIDE = ("ood", "imagenet-o")


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
    return found + token_metrics(runs)


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


def _aupr(record: Record) -> float:
    return record.metrics["aupr"]


def threats_text(runs: Sequence[PublishedRun]) -> str:
    """What the rows mean, from their records."""
    keys = dict.fromkeys(_key(r) for run in runs for r in run.all("robustness"))
    found = dict.fromkeys(
        key.threat for key in keys if key.threat not in ("None", key.row) and "@" not in key.row
    )
    return f"Threats: {'; '.join(f'`{threat}`' for threat in found)}." if found else ""
