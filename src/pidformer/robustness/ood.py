"""Out-of-distribution detection: is the model less sure of images that belong to no class?"""

import numpy as np
import torch
from torch import Tensor

from pidformer.data.arguments import check_counts
from pidformer.errors import InputError

RECALL = 95  # per cent of the out-of-distribution images that "fpr95" must find
INTERVAL = (2.5, 97.5)
_PART = 1 << 21  # images drawn at once, which bounds memory


def confidence(logits: Tensor, classes: Tensor | None = None) -> Tensor:
    """The largest softmax probability of each row (B, K), on the CPU in float64 (B,).

    `classes` are indices of columns: the softmax is over these alone, as ImageNet-O asks. float32
    would call every image with a margin above 17 exactly 1, and so lose their order.
    """
    if logits.ndim != 2 or not logits.shape[1]:
        raise InputError(f"logits must be (images, classes), got shape {tuple(logits.shape)}")
    logits = logits.detach().to("cpu", torch.float64)
    if classes is not None:
        logits = logits[:, check_classes(classes, logits.shape[1])]
    return logits.softmax(-1).amax(-1)


def ood_scores(
    inside: Tensor, outside: Tensor, *, seed: int = 0, resamples: int = 1000
) -> dict[str, float]:
    """How well low confidence tells `outside` images from `inside` ones, in per cent.

    Both are confidences. An image's score is minus its confidence, and out of distribution is the
    positive class:

    - "aupr", average precision: sum over thresholds of (R_k - R_{k-1}) P_k, from the highest score
      down. A detector that knows nothing has the share of outside images.
    - "auroc": P(score outside > score inside) + P(equal) / 2. Chance is 50.
    - "fpr95": the share of inside images that score at least t, t being the highest threshold that
      at least 95 % of the outside images reach. Lower is better.

    Each has a 95 % interval in "_low" and "_high": percentiles of `resamples` bootstrap samples,
    drawn with replacement from inside and from outside, each as large as it is.
    """
    check_counts(seed=seed, resamples=resamples)
    negative, positive = _scores("inside", inside), _scores("outside", outside)
    # Thresholds at the positives' values are enough: each sum below changes at these alone.
    values, rank = np.unique(-positive, return_inverse=True)  # from the highest score down
    # A negative's place: 2 j above values[j], 2 j + 1 at it, 2 J below them all.
    above = np.searchsorted(values, -negative, side="left")
    at = above < np.searchsorted(values, -negative, side="right")
    place = 2 * above + at
    point = _curves(_counted(rank[None], len(values)), _counted(place[None], 2 * len(values) + 1))
    drawn = _bootstrap(rank, place, len(values), seed, resamples)
    scores = {}
    for name in point:
        low, high = np.percentile(drawn[name], INTERVAL)
        scores[name] = 100 * float(point[name][0])
        scores[f"{name}_low"], scores[f"{name}_high"] = 100 * float(low), 100 * float(high)
    return scores


def _bootstrap(
    rank: np.ndarray, place: np.ndarray, values: int, seed: int, resamples: int
) -> dict[str, np.ndarray]:
    rngs = [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(2)]
    rows = max(1, _PART // (len(rank) + len(place)))
    parts = []
    for start in range(0, resamples, rows):
        counts = []
        for rng, where, size in zip(rngs, (rank, place), (values, 2 * values + 1), strict=True):
            shape = (min(rows, resamples - start), len(where))
            drawn = rng.integers(len(where), size=shape, dtype=np.int32)
            counts.append(_counted(where[drawn], size))
        parts.append(_curves(*counts))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _counted(places: np.ndarray, size: int) -> np.ndarray:
    """How often each of 0 ... size - 1 occurs in each row: (R, N) -> (R, size)."""
    rows = len(places)
    flat = places + np.arange(rows)[:, None] * size
    return np.bincount(flat.ravel(), minlength=rows * size).reshape(rows, size)


def _curves(positives: np.ndarray, negatives: np.ndarray) -> dict[str, np.ndarray]:
    """The three scores of each row, in [0, 1].

    `positives` (R, J) counts the outside images at each value, highest first; `negatives`
    (R, 2 J + 1) the inside images between and at these values, in the same order.
    """
    total, others = int(positives[0].sum()), int(negatives[0].sum())
    found = positives.cumsum(1)  # true positives at a threshold
    passed = negatives.cumsum(1)
    higher, false = passed[:, 0:-1:2], passed[:, 1::2]  # inside images above, and at or above
    # A row may draw none down to a threshold: precision 0 / 0 with weight 0.
    precision = found / np.maximum(found + false, 1)
    lower = others - (higher + false) / 2  # beaten by an outside image here; ties count half
    needed = -(-RECALL * total // 100)  # rounded up
    first = (found >= needed).argmax(1)
    return {
        "aupr": (positives * precision).sum(1) / total,
        "auroc": (positives * lower).sum(1) / (total * others),
        "fpr95": np.take_along_axis(false, first[:, None], 1)[:, 0] / others,
    }


def _scores(name: str, confidences: Tensor) -> np.ndarray:
    values = confidences.detach().to("cpu", torch.float64).numpy()
    if values.ndim != 1 or not len(values):
        raise InputError(f"{name} needs one confidence an image, got shape {values.shape}")
    broken = int((~np.isfinite(values)).sum())
    if broken:
        raise InputError(
            f"{broken} of {len(values)} {name} confidences are not finite; "
            "the model gave infinite or undefined logits"
        )
    return -values


def check_classes(classes: Tensor, columns: int) -> Tensor:
    """The classes on the CPU, if they are different indices of the logits' columns."""
    classes = classes.detach().cpu()
    is_index = classes.ndim == 1 and classes.dtype in (torch.int64, torch.int32)
    if not is_index or not len(classes) or len(classes.unique()) < len(classes):
        raise InputError(
            f"classes must be a row of different class indices, got {classes.dtype} of "
            f"shape {tuple(classes.shape)}"
        )
    if int(classes.min()) < 0 or int(classes.max()) >= columns:
        raise InputError(
            f"class indices must be from 0 to {columns - 1}, the logits' columns; got "
            f"{int(classes.min())} to {int(classes.max())}"
        )
    return classes
