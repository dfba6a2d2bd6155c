"""mIoU of a segmentation run on clean, corrupted and attacked images."""
# B pairs, K classes

import hashlib
import shlex
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from pidformer import ranks
from pidformer.data.pictures import UnreadableImage, pixels, read_picture
from pidformer.data.segmentation import (
    EvalSegments,
    SegmentSource,
    class_table,
    confusion,
    miou_interval,
    open_segmentation,
    segmentation_scores,
)
from pidformer.data.segmentation.confusion import areas, pack_areas
from pidformer.devices import as_device
from pidformer.errors import InputError, some
from pidformer.ledger import Found, Ledger
from pidformer.models.sliding import Sliding, View
from pidformer.results import Record, as_text
from pidformer.robustness.segmentation import PixelThreat, check_threat, row_name, threatened
from pidformer.runs.folder import damaged, read_model_info, read_recipe
from pidformer.runs.model import load
from pidformer.runs.open import run_facts
from pidformer.runs.weights import fingerprint

GROUP = 16
"""Pairs of one size taken together, at most."""


@dataclass(frozen=True, kw_only=True)
class SegmentationSetup:
    """A segmentation run, and pairs to show it. Nothing is read before it is asked for."""

    run: Path
    data: str | Path
    device: torch.device
    limit: int | None = None
    seed: int = 0
    gains: Any = None
    ema: bool = False
    max_windows: int = 32
    precision: Literal["float32", "bfloat16"] = "float32"
    num_workers: int = 0
    command: str | None = None

    @cached_property
    def info(self) -> dict[str, Any]:
        return segmentation_info(self.run)

    @cached_property
    def model(self) -> nn.Module:
        found = load(self.run, gains=self.gains, ema=self.ema).to(self.device)
        return found.requires_grad_(False)

    @cached_property
    def source(self) -> SegmentSource:
        source, known = open_segmentation(self.data, "val"), self.info["classes"]
        if list(source.classes) != known:
            raise InputError(
                f"run {self.run} knows {len(known)} classes ({some(known, 3)}), the data has "
                f"{len(source.classes)} ({some(source.classes, 3)})"
            )
        return source

    @cached_property
    def pairs(self) -> EvalSegments:
        return EvalSegments(
            self.source,
            batch_size=GROUP,
            limit=self.limit,
            seed=self.seed,
            device=self.device,
            num_workers=self.num_workers,
        )

    @cached_property
    def data_hash(self) -> str:
        """16 hex digits of the true labels: one walk over the pairs."""
        digest, count = hashlib.sha256(), 0
        for _, masks, _ in self.pairs:
            digest.update(masks.cpu().numpy().tobytes())
            count += len(masks)
        if not count:
            raise InputError("no pair could be read; nothing to score")
        digest.update(str(count).encode())
        return digest.hexdigest()[:16]

    @cached_property
    def ledger(self) -> Ledger:
        inner: Any = self.model.model
        settings = run_facts(self.run, fingerprint(self.model), inner.gains) | {
            "decoder_gains": as_text(inner.decoder_gains),
            "backbone": self.info.get("backbone"),
            "data": str(self.data),
            "data_hash": self.data_hash,
            "domain": "pixel",
            "seed": self.seed,
            "limit": self.limit,
            "ema": self.ema,
            "precision": self.precision,
            "batch_size": self.max_windows,
            "command": self.command or shlex.join(sys.argv),
        }
        return Ledger("segmentation", self.run, settings, reads_images=True)

    def measure(
        self, threat: PixelThreat | None = None, *, row: str | None = None, views: str = "single"
    ) -> Record:
        check_threat(threat)
        sliding = Sliding.of(self.info["inference"], views, self.max_windows)
        about = {
            "views": views,
            "row": row or row_name(threat),
            "threat": as_text(threat),
            "scale": list(sliding.scale),
            "window": sliding.window,
            "stride": sliding.stride,
        }
        return self.ledger.measure(about, lambda: self._scores(sliding, threat))

    def classes(self, record: Record) -> list[dict[str, Any]]:
        return class_table(np.array(record.details["confusion"]), self.source.classes)

    def _scores(self, sliding: Sliding, threat: PixelThreat | None) -> Found:
        """Confusion (K, K) over the whole set, and the areas of each pair (N, 3, K)."""
        classes, attacked = len(self.source.classes), replace(sliding, views=(View(),))

        def whole(images: Tensor) -> Tensor:
            return attacked.logits(self._logits, images)

        def score(part: tuple[Tensor, Tensor, list[int]], _: int) -> tuple[Tensor, np.ndarray]:
            images, masks, indices = part
            shown = threatened(threat, whole, images, masks, seed=self.seed, indices=indices)
            matrices = confusion(masks, sliding.labels(self._logits, shown), classes)
            return matrices.sum(0).cpu(), areas(matrices)

        parts = (part for batch in self.pairs for part in _parts(batch, sliding))
        found = ranks.spread(parts, score)
        total = torch.stack([matrix for matrix, _ in found]).sum(0)
        per_pair = np.concatenate([own for _, own in found])
        low, high = miou_interval(per_pair)
        metrics = segmentation_scores(total) | {
            "miou_low": low,
            "miou_high": high,
            "images": float(len(per_pair)),
        }
        return metrics, {"confusion": total.tolist(), "areas": pack_areas(per_pair)}

    def _logits(self, images: Tensor) -> Tensor:
        is_half = self.precision == "bfloat16"
        with torch.autocast(images.device.type, torch.bfloat16, enabled=is_half):
            logits: Tensor = self.model(images)
        if not torch.is_grad_enabled() and not bool(logits.isfinite().all()):
            raise InputError(
                f"the logits of {self.run} are not finite; check its weights, or evaluate it in "
                "float32"
            )
        return logits


def evaluate_segmentation(
    run: str | Path,
    *,
    data: str | Path,
    views: str = "single",
    device: str = "auto",
    threat: PixelThreat | None = None,
    row: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """mIoU of a segmentation run on a set's validation split; also written to its results.

    `views` "single" takes one view, "multi" twelve (six scales, each flipped too); `max_windows`
    bounds memory. Under a `threat` the images are corrupted at their own size, or attacked through
    the single-scale prediction. `options` are those of `SegmentationSetup`. What the run's results
    have is not measured again. Returns the metrics (per cent, mIoU with a 95 % interval over
    images) and, as "classes", the table by class.
    """
    setup = SegmentationSetup(run=Path(run), data=data, device=as_device(device), **options)
    record = setup.measure(threat, row=row, views=views)
    return dict(record.metrics) | {"classes": setup.classes(record)}


def label_photographs(
    run: Path,
    files: Iterable[Path],
    *,
    views: str = "single",
    max_windows: int = 32,
    device: str = "auto",
) -> Iterator[tuple[Path, Image.Image, np.ndarray]]:
    """Photographs of any size, one by one, with the label (H, W) that a run gives each pixel.

    The run is opened at once: one that is refused leaves nothing behind.
    """
    place = as_device(device)
    sliding = Sliding.of(segmentation_info(run)["inference"], views, max_windows)
    model = load(run).to(place)

    def labelled(file: Path) -> tuple[Path, Image.Image, np.ndarray]:
        try:
            image = read_picture(file)
        except UnreadableImage as error:
            raise InputError(f"cannot read {file} as an image ({error})") from None
        batch = torch.from_numpy(pixels(image))[None].to(place).float() / 255
        return file, image, sliding.labels(model, batch)[0].cpu().numpy()

    return map(labelled, files)


def segmentation_info(run: Path) -> dict[str, Any]:
    """What a segmentation run says about its model; other runs are refused."""
    task = read_recipe(run).get("task", "classification")
    if task != "segmentation":
        raise InputError(f"{run} is a run of {task}, not of segmentation")
    info = read_model_info(run)
    try:
        Sliding.of(info["inference"])
        np.array(info["palette"], dtype=np.uint8).reshape(len(info["classes"]), 3)
    except KeyError as error:
        raise damaged(run / "model.json", f"it does not say {error.args[0]}") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise damaged(run / "model.json", error) from None
    return info


def _parts(
    batch: tuple[Tensor, Tensor, list[int]], sliding: Sliding
) -> Iterator[tuple[Tensor, Tensor, list[int]]]:
    """Parts whose windows fit into one pass: their logits, and an attack's graph, stay whole."""
    images, masks, indices = batch
    step = max(1, sliding.max_windows // sliding.count(images.shape[-2], images.shape[-1]))
    for start in range(0, len(indices), step):
        part = slice(start, start + step)
        yield images[part], masks[part], indices[part]
