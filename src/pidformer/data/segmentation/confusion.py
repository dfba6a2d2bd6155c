"""How often which class is taken for which, and the scores that follow from it.

With n_ct the labelled pixels of class t that were called c, over the whole set:

    IoU_c = n_cc / (sum_t n_ct + sum_p n_pc - n_cc),   mIoU = mean over classes,
    pixel accuracy = sum_c n_cc / sum n,               mean accuracy = mean_c n_cc / sum_p n_pc

The usual protocol for classes that are absent: one that is neither in the truth nor predicted has
no IoU and is left out of the mean; one that is predicted but not in the truth counts as 0, and is
left out of the mean accuracy. Pixels labelled 255 do not count at all.
"""
# B pairs, K classes

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pidformer.data.formats.masks import IGNORED
from pidformer.errors import InputError

RESAMPLES = 1000
_PLANES = "planes:"
"""Before packed areas whose bytes are sorted by their place in a number."""


def confusion(truth: Tensor, predicted: Tensor, num_classes: int) -> Tensor:
    """Pixels of each pair by (true class, predicted class), int64 (B, K, K), on their device."""
    if truth.shape != predicted.shape or truth.ndim != 3:
        raise InputError(
            "truth and prediction must be labels (B, H, W) of one shape, got "
            f"{tuple(truth.shape)} and {tuple(predicted.shape)}"
        )
    rows, columns = truth.flatten(1).long(), predicted.flatten(1).long()
    # Pixels that do not count fall into one more cell, which is cut off.
    cells = torch.where(rows == IGNORED, num_classes**2, rows * num_classes + columns)
    offset = torch.arange(len(cells), device=cells.device)[:, None] * (num_classes**2 + 1)
    counts = torch.bincount((cells + offset).flatten(), minlength=len(cells) * (num_classes**2 + 1))
    return counts.view(len(cells), -1)[:, :-1].unflatten(1, (num_classes, num_classes))


def segmentation_scores(matrix: Tensor | np.ndarray) -> dict[str, float]:
    """miou, pixel_accuracy and mean_accuracy in per cent, of a confusion matrix (K, K)."""
    iou, accuracy, truth, hits = _by_class(matrix)
    return {
        "miou": 100 * _mean(iou),
        "pixel_accuracy": 100 * float(_ratio(hits.sum(), truth.sum())),
        "mean_accuracy": 100 * _mean(accuracy),
    }


def class_table(matrix: Tensor | np.ndarray, classes: Sequence[str]) -> list[dict[str, Any]]:
    """IoU and accuracy (per cent, nan where there is none) and true pixels, class by class."""
    iou, accuracy, truth, _ = _by_class(matrix)
    return [
        {"class": name, "iou": 100 * float(a), "accuracy": 100 * float(b), "pixels": int(n)}
        for name, a, b, n in zip(classes, iou, accuracy, truth, strict=True)
    ]


def _by_class(matrix: Tensor | np.ndarray) -> tuple[np.ndarray, ...]:
    """IoU, accuracy, true pixels and hits of each class, (K,)."""
    counts = np.asarray(torch.as_tensor(matrix).cpu(), dtype=np.float64)
    hits, truth, predicted = counts.diagonal(), counts.sum(1), counts.sum(0)
    return _ratio(hits, truth + predicted - hits), _ratio(hits, truth), truth, hits


def miou_interval(per_pair: np.ndarray) -> tuple[float, float]:
    """95 % bootstrap interval of the mIoU, per cent, from the pairs' areas (N, 3, K).

    NaN of a single pair, which tells nothing of others.
    """
    if len(per_pair) < 2:
        return float("nan"), float("nan")
    rng = np.random.default_rng(0)
    even = np.full(len(per_pair), 1 / len(per_pair))
    weights = rng.multinomial(len(per_pair), even, size=RESAMPLES).astype(np.float64)
    hits, truth, predicted = np.tensordot(weights, per_pair, axes=1).swapaxes(0, 1)
    draws = [_mean(iou) for iou in _ratio(hits, truth + predicted - hits)]
    low, high = np.nanpercentile(draws, [2.5, 97.5])
    return 100 * float(low), 100 * float(high)


def areas(matrices: Tensor) -> np.ndarray:
    """Hits, true and predicted pixels of each pair, int64 (B, 3, K), of `confusion`."""
    hits = matrices.diagonal(dim1=1, dim2=2)
    return torch.stack([hits, matrices.sum(2), matrices.sum(1)], dim=1).cpu().numpy()


def pack_areas(per_pair: np.ndarray) -> str:
    """`areas` as text for a record: hits, missed and wrong pixels, compressed, base64.

    Class by class, and of the int32 numbers all lowest bytes first, then the next ones: that takes
    60 % of the space of the numbers as they are, which older records hold.
    """
    hits, truth, predicted = per_pair.astype("<i4").transpose(1, 2, 0)  # each (K, N)
    numbers = np.stack([hits, truth - hits, predicted - hits]).copy("C")
    planes = numbers.view(np.uint8).reshape(-1, 4).T
    return _PLANES + base64.b64encode(zlib.compress(planes.tobytes(), 9)).decode()


def unpack_areas(text: str, num_classes: int) -> np.ndarray:
    """The inverse of `pack_areas`, (N, 3, K)."""
    raw = zlib.decompress(base64.b64decode(text.removeprefix(_PLANES)))
    if not text.startswith(_PLANES):
        return np.frombuffer(raw, dtype="<i4").reshape(-1, 3, num_classes).astype(np.int64)
    planes = np.frombuffer(raw, dtype=np.uint8).reshape(4, -1)
    numbers = np.ascontiguousarray(planes.T).view("<i4").reshape(3, num_classes, -1)
    hits, missed, wrong = numbers.transpose(0, 2, 1).astype(np.int64)  # each (N, K)
    return np.stack([hits, hits + missed, hits + wrong], axis=1)


def _ratio(above: Any, below: Any) -> Any:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(below > 0, above / np.maximum(below, 1), np.nan)


def _mean(values: np.ndarray) -> float:
    return float(np.nanmean(values)) if not np.isnan(values).all() else float("nan")
