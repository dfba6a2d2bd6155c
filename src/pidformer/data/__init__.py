"""Image sets by location, and loaders that give the same batches however they are run."""

from pidformer.data.augment import Augment
from pidformer.data.loaders import Batch, EvalImages, TrainImages
from pidformer.data.sample import sample_images
from pidformer.data.sources import ImageSource, open_images

__all__ = [
    "Augment",
    "Batch",
    "EvalImages",
    "ImageSource",
    "TrainImages",
    "open_images",
    "sample_images",
]
