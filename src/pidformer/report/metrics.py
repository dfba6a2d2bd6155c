"""One number of a run, its mean over seeds, and how two models are compared on it."""
# N items (images, pairs, blocks of text), K classes

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pidformer.data.segmentation.confusion import unpack_areas
from pidformer.results import Record, check_pair
from pidformer.robustness.compare import (
    Pairs,
    Seeded,
    gain,
    outcomes,
    over_items,
    pack_survived,
    paired_runs,
)
from pidformer.statistics import Crossed, Mean, crossed_mean, mean_over_seeds

MILLI = "block_millinats"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number of a run, and how two models are compared on it."""

    title: str
    find: Callable[[Any], Record | None]
    """The record that holds it, of one of a model's runs."""
    read: Callable[[Record], float]
    compare: Callable[[Pairs], Crossed] | None = None
    """Model minus twin; None: over seeds alone."""
    contrast: Callable[[Record], float] | None = None
    """What is subtracted over seeds, when it is not what is shown (a logarithm)."""
    better: int = 1
    """1: more is better; -1: less is; 0: neither."""
    table: str = ""
    """Which of the tables it stands in; empty: the first."""
    digits: int = 2
    difference_digits: int = 2
    unit: str = "points"

    def records(self, model: Seeded) -> list[Record]:
        return [r for run in model.runs if (r := self.find(run)) is not None]

    def mean(self, model: Seeded) -> Mean | None:
        found = self.records(model)
        return mean_over_seeds([self.read(r) for r in found]) if found else None

    def difference(self, twin: Seeded, model: Seeded, *against: Seeded) -> Crossed | None:
        """Model minus twin on shared seeds; `against` (twin, model): minus their difference too."""
        pairs = self._pairs(twin, model, *against)
        if not pairs:
            return None
        if self.compare is not None:
            return self.compare(pairs)
        value = self.contrast or self.read
        return crossed_mean([gain([value(r) for r in pair]) for pair in pairs], 0.0, 0)

    def _pairs(self, *models: Seeded) -> list[list[Record]]:
        found = []
        for runs in paired_runs(*models):
            known = [record for run in runs if (record := self.find(run)) is not None]
            if len(known) == len(models):
                for other in known[1:]:
                    check_pair(known[0], other)
                found.append(known)
        return found


def block_losses(record: Record) -> np.ndarray:
    """Loss of each block of text, in nats, (N,)."""
    if MILLI in record.details:
        return np.asarray(record.details[MILLI], dtype=float) / 1000
    return np.asarray(record.details.get("block_nll", []), dtype=float)


def merged_corruptions(records: Sequence[Record]) -> Record:
    """One record of many corruptions: the mean, each one's accuracy, and what each image did."""
    first = records[0]
    name = str(first.settings["row"]).split("/")[0]
    by_row = {
        "top1/" + str(r.settings["row"]).removeprefix(f"{name}/"): r.metrics["top1"]
        for r in records
    }
    metrics = {
        "top1": sum(by_row.values()) / len(records),
        "rows": float(len(records)),
        "images": first.metrics["images"],
        "seconds": sum(record.metrics.get("seconds", 0.0) for record in records),
    }
    names = {row.split("/")[1] for row in by_row}
    threat = f"{len(names)} corruptions, {len(records)} rows"
    settings = dict(first.settings) | {"row": name, "threat": threat, "eps": None}
    details = {"survived": pack_survived(records)}
    return replace(first, metrics=metrics | by_row, settings=settings, details=details)


compare_accuracy = over_items(outcomes, scale=100)
"""In points of per cent, image by image."""
compare_error = over_items(outcomes, scale=-100)
"""The same of errors."""
compare_loss = over_items(block_losses)
"""In nats per token, block by block."""


def compare_miou(pairs: Pairs) -> Crossed:
    """mIoU of the second minus the first (`gain`): seeds as they are, images by the jackknife.

    The mIoU of a set is no mean over its images; leaving out one image after the other gives the
    variance that drawing them anew would make, without chance.
    """
    by_seed, without = [], []
    for pair in pairs:
        whole, left = zip(*(leave_one_out(areas(record)) for record in pair), strict=True)
        by_seed.append(gain(whole))
        without.append(gain(left))
    means = np.mean(without, axis=0)  # (N,)
    count = len(means)
    variance = float((count - 1) / count * ((means - means.mean()) ** 2).sum())
    return crossed_mean(by_seed, variance, count)


def areas(record: Record) -> np.ndarray:
    """Hits, true and predicted pixels of each pair, (N, 3, K)."""
    classes = record.details.get("num_classes") or len(record.details["confusion"])
    return unpack_areas(record.details["areas"], classes)


def leave_one_out(per_pair: np.ndarray) -> tuple[float, np.ndarray]:
    """mIoU in per cent of the set, and of the set without each of its pairs, (N,)."""
    total = per_pair.sum(0)
    return float(_miou(total)), _miou(total - per_pair)


def _miou(summed: np.ndarray) -> np.ndarray:
    hits, truth, predicted = np.moveaxis(summed.astype(float), -2, 0)  # (..., K)
    with np.errstate(invalid="ignore"):  # 0 / 0: a class that is nowhere does not count
        return 100 * np.nanmean(hits / (truth + predicted - hits), axis=-1)
