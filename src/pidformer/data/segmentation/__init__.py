"""Segmentation sets, their loaders and scores."""

from pidformer.data.formats.masks import IGNORED
from pidformer.data.formats.table import open_segmentation
from pidformer.data.segmentation.augment import SegmentAugment
from pidformer.data.segmentation.confusion import (
    class_table,
    confusion,
    miou_interval,
    segmentation_scores,
    unpack_areas,
)
from pidformer.data.segmentation.segments import EvalSegments, SegmentBatch, TrainSegments
from pidformer.data.sources import Pair, SegmentSource

__all__ = [
    "IGNORED",
    "EvalSegments",
    "Pair",
    "SegmentAugment",
    "SegmentBatch",
    "SegmentSource",
    "TrainSegments",
    "class_table",
    "confusion",
    "miou_interval",
    "open_segmentation",
    "segmentation_scores",
    "unpack_areas",
]
