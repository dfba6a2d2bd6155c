"""What is measured of a classifier: accuracy clean and under threats, outside, and inside."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from pidformer.report.collect import PublishedRun
from pidformer.report.metrics import Metric
from pidformer.report.table1 import TITLES
from pidformer.results import Measurement, Record
from pidformer.robustness.compare import outcomes, over_items
from study.network_metrics import token_metrics

_ORDER = ("clean", "fgsm", "pgd", "spsa", "sld", "noise", "autoattack", "corruption")
_OUTSIDE = ("ood", "imagenet-o")


def _order(asked: Measurement) -> tuple[int, int, int]:
    place = _ORDER.index(str(asked.row)) if asked.row in _ORDER else 99
    return (asked.domain != "pixel", asked.limit or 0, place)


def _table(asked: Measurement) -> str:
    """Where it stands: rows in another domain, and on a sample, have tables of their own."""
    sample = "" if asked.limit is None else f"sample of {asked.limit} images"
    domain = "" if asked.domain == "pixel" else f"{asked.domain} domain"
    return ", ".join(word for word in (domain, sample) if word)


def classification_metrics(runs: Sequence[PublishedRun], part: int | None) -> list[Metric]:
    """What any of the runs has, in the order of the paper's table, samples of images last."""
    titles, keys = _titled(runs), _keys(runs)
    found = [_accuracy(title, key, part) for title, key in titles.items()]
    for key in (key for key in keys if key.row in _OUTSIDE):
        find = partial(_find, key=key)
        found.append(Metric(title=_AUPR[str(key.row)], find=find, read=_aupr))
    return found + token_metrics(runs)


def top5_metrics(runs: Sequence[PublishedRun]) -> list[Metric]:
    """Top-5 accuracy of all images, which records keep as one number: over seeds alone."""
    return [
        Metric(
            title=title,
            find=partial(_find_top5, key=key),
            read=lambda record: record.metrics["top5"],
            table=_table(key),
        )
        for title, key in _titled(runs).items()
        if not (key.row == "clean" and key.limit is not None)
        and any(_find_top5(run, key) is not None for run in runs)
    ]


def corruption_metrics(runs: Sequence[PublishedRun]) -> list[Metric]:
    """Each type of corruption by itself, the mean over its severities: over seeds alone."""
    merged = [r for run in runs for r in run.of("robustness", row="corruption")]
    names = dict.fromkeys(n.split("/")[1] for r in merged for n in r.metrics if "top1/" in n)
    return [
        Metric(
            title=name.replace("_", " "),
            find=_find_corruptions,
            read=partial(_of_type, name=name),
        )
        for name in names
    ]


def _find_corruptions(run: PublishedRun) -> Record | None:
    found = run.of("robustness", row="corruption")
    return next((r for r in found if r.measurement.domain == "pixel"), None)


def _of_type(record: Record, name: str) -> float:
    found = [value for key, value in record.metrics.items() if key.startswith(f"top1/{name}/")]
    return sum(found) / len(found)


def _keys(runs: Sequence[PublishedRun]) -> dict[Measurement, None]:
    return dict.fromkeys(
        r.measurement.anywhere
        for run in runs
        for r in run.of("robustness")
        if "@" not in str(r.measurement.row)
    )


def _titled(runs: Sequence[PublishedRun]) -> dict[str, Measurement]:
    """The rows that have accuracies, by titles that tell them apart."""
    keys, titles = _keys(runs), dict[str, Measurement]()
    for key in sorted((k for k in keys if k.row not in _OUTSIDE), key=_order):
        row = str(key.row)
        title = TITLES.get(row, row) + ("" if key.domain == "pixel" else f", {key.domain}")
        title += "" if key.limit is None else f", {key.limit} images"
        titles[f"{title}, {key.threat}" if title in titles else title] = key
    return titles


_AUPR = {"ood": "AUPR", "imagenet-o": "AUPR, ImageNet-O"}


def _accuracy(title: str, key: Measurement, part: int | None) -> Metric:
    of = partial(_outcomes, part=part if key.limit is None else None)
    return Metric(
        title=title,
        find=partial(_find, key=key),
        read=lambda record: 100 * float(of(record).mean()),
        compare=over_items(of, scale=100),
        table=_table(key),
    )


def _outcomes(record: Record, part: int | None) -> np.ndarray:
    """Right or not (or the share of corruptions survived), for each image of a part."""
    found = outcomes(record)
    return found if part is None else found[part::2]


def _find(run: PublishedRun, key: Measurement) -> Record | None:
    return next((r for r in run.of("robustness") if r.measurement.anywhere == key), None)


def _find_top5(run: PublishedRun, key: Measurement) -> Record | None:
    record = _find(run, key)
    return record if record is not None and "top5" in record.metrics else None


def _aupr(record: Record) -> float:
    return record.metrics["aupr"]


def threats_text(runs: Sequence[PublishedRun]) -> list[str]:
    """What the rows mean, from their records; none of rows that name themselves."""
    found = dict.fromkeys(k.threat for k in _keys(runs) if k.threat not in (None, k.row))
    return [f"Threats: {'; '.join(f'`{threat}`' for threat in found)}."] if found else []
