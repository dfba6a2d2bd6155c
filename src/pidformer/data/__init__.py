"""Image sets by location, and loaders whose batches depend on their place alone.

A batch is a function of (seed, epoch, step): the same after a resume, and for any number of
workers and processes. Images kept on the device and images streamed from workers are augmented
with one distribution but with random numbers of their own (see `TrainImages`).
"""

from pidformer.data.augment import Augment
from pidformer.data.formats.table import open_images
from pidformer.data.images import EvalImages, TrainImages
from pidformer.data.loaders import Batch
from pidformer.data.sources import ImageSource
from pidformer.data.views import sample_images

__all__ = [
    "Augment",
    "Batch",
    "EvalImages",
    "ImageSource",
    "TrainImages",
    "open_images",
    "sample_images",
]
