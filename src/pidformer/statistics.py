"""Numbers with their uncertainty: shares, means over seeds, paired differences."""
# S training seeds, N images

import base64
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pidformer.errors import InputError

Hits = NDArray[np.bool_]
Scores = NDArray[Any]
LEVEL = 0.05
"""The level of the tests, and of the 95 % intervals."""


def percentage(name: str, hits: int, total: int) -> dict[str, float]:
    """`name`, `name_low`, `name_high`: a share in per cent with Wilson's 95 % interval.

    >>> percentage("top1", 1, 2)["top1"]
    50.0
    """
    found = scipy.stats.binomtest(hits, total).proportion_ci(method="wilson")
    bounds = {f"{name}_low": 100 * float(found.low), f"{name}_high": 100 * float(found.high)}
    return {name: 100 * hits / total} | bounds


class Mean(NamedTuple):
    """A mean over training seeds; its 95 % interval (Student's t) needs two of them."""

    mean: float
    low: float
    high: float
    seeds: int


def mean_over_seeds(values: Sequence[float]) -> Mean:
    """Mean and t interval; of a single value the interval is not known (NaN)."""
    found = crossed_mean(values, 0.0, 0)
    return Mean(found.mean, found.low, found.high, found.seeds)


class Crossed(NamedTuple):
    """A mean over training seeds and items (images, blocks of text), with its 95 % interval."""

    mean: float
    low: float
    high: float
    p: float
    """Two-sided: could it be zero? NaN where nothing is known of the spread."""
    seeds: int

    @property
    def verdict(self) -> int:
        """1 or -1 when the interval is on one side of zero and p agrees (below 0.05), else 0."""
        return (int(self.low > 0) - int(self.high < 0)) * int(self.p < LEVEL)


def crossed_mean(by_seed: Sequence[float], item_variance: float, items: int) -> Crossed:
    """Interval for new seeds and new items, from both spreads at once.

        value of seed s on item i = m + a_s + b_i + c_si
        Var(mean) = Var(means by seed) / S + item_variance

    with `item_variance` the variance of the mean over seeds that drawing `items` anew makes (for
    plain means, that of the items' means over N). c_si is counted twice, so the interval errs on
    the wide side. Student's t, with Satterthwaite's degrees of freedom from S - 1 and N - 1: three
    seeds make wide intervals, as they should. `items` 0 is a number without items. With a single
    seed only the items' part is known, so the interval speaks of these trained models alone.

    The p-value is that t's, but never below that of the t test over seeds alone. Where few seeds
    happen to lie close together, the items' part rules, degrees of freedom jump from 2 to
    hundreds, and tails that three seeds cannot know make p-values such as 1e-50. The interval,
    which needs no such tails, stays; a verdict asks both.
    """
    values = np.asarray(by_seed, dtype=float)
    mean, count = float(values.mean()), len(values)
    parts = [(item_variance, items - 1)] if items > 1 else []
    if count > 1:
        parts.append((float(values.var(ddof=1)) / count, count - 1))
    total = sum(variance for variance, _ in parts)
    if not parts:
        return Crossed(mean, math.nan, math.nan, math.nan, count)
    if total == 0:
        return Crossed(mean, mean, mean, 1.0 if mean == 0 else 0.0, count)
    freedom = total**2 / sum(variance**2 / own for variance, own in parts)
    half = float(scipy.stats.t.ppf(0.975, freedom)) * math.sqrt(total)
    p_value = float(2 * scipy.stats.t.sf(abs(mean) / math.sqrt(total), freedom))
    if np.ptp(values) > 1e-12 * np.abs(values).max():  # a spread that is more than rounding
        p_value = max(p_value, float(scipy.stats.ttest_1samp(values, 0.0).pvalue))
    return Crossed(mean, mean - half, mean + half, p_value, count)


def crossed_items(values: Scores) -> Crossed:
    """`crossed_mean` of plain scores (S, N): row s is a seed, column i an item."""
    values = np.atleast_2d(np.asarray(values, dtype=float))
    items = values.shape[1]
    spread = float(values.mean(0).var(ddof=1)) / items if items > 1 else 0.0
    return crossed_mean(values.mean(1).tolist(), spread, items)


def pack(hits: Hits) -> str:
    """Booleans as text, eight to a byte: what a record keeps of each image."""
    return base64.b64encode(np.packbits(hits).tobytes()).decode()


def unpack(text: str, count: int) -> Hits:
    """`pack` undone.

    >>> unpack(pack(np.array([True, False, True])), 3).tolist()
    [True, False, True]
    """
    data = np.frombuffer(base64.b64decode(text), dtype=np.uint8)
    if len(data) != -(-count // 8):
        raise InputError(
            f"a record of {count} images holds {len(data)} bytes of them; is it whole?"
        )
    return np.unpackbits(data, count=count).astype(bool)
