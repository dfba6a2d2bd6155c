"""Segmentation sets, their loaders and scores."""

from pidformer.data.segmentation.augment import SegmentAugment
from pidformer.data.segmentation.confusion import (
    class_table,
    confusion,
    miou_interval,
    segmentation_scores,
    unpack_areas,
)
from pidformer.data.segmentation.loaders import EvalSegments, SegmentBatch, TrainSegments
from pidformer.data.segmentation.masks import IGNORED
from pidformer.data.segmentation.pair import Pair, SegmentSource
from pidformer.data.segmentation.sources import open_segmentation

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
