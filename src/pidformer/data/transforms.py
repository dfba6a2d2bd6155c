"""timm's training pipeline of PIL images, which streamed images go through."""

from collections.abc import Callable
from functools import partial
from typing import Any

from PIL import Image
from timm.data.auto_augment import RandAugment, posterize, rand_augment_transform
from timm.data.transforms import RandomResizedCropAndInterpolation
from torchvision import transforms

from pidformer.data.augment import Augment
from pidformer.data.pictures import fit

Transform = Callable[[Image.Image], Image.Image]


def train_transform(augment: Augment, image_size: int, mean: tuple[float, ...]) -> Transform:
    """timm's training pipeline up to, and without, the conversion to a tensor.

    Crop (bicubic), flip, RandAugment filling with the mean colour: the list that
    `timm.data.create_transform(is_training=True)` builds, in its order. Erasing and mixing follow
    in batches on the device.
    """
    steps: list[Callable[[Any], Any]] = []
    if augment.crop == "resized":
        steps.append(
            RandomResizedCropAndInterpolation(
                image_size, scale=augment.scale, ratio=augment.ratio, interpolation="bicubic"
            )
        )
    else:
        steps.append(partial(fit, height=image_size, width=image_size))
    if augment.crop == "padded":
        steps.append(transforms.RandomCrop(image_size, padding=augment.padding))
    if augment.flip > 0:
        steps.append(transforms.RandomHorizontalFlip(augment.flip))
    if augment.rand_augment is not None:
        levels = tuple(min(255, round(255 * value)) for value in mean)
        options = {
            "translate_const": int(image_size * 0.45),
            "img_mean": levels if len(levels) == 3 else levels[0],
            "interpolation": Image.Resampling.BICUBIC,
        }
        steps.append(_with_all_bits(rand_augment_transform(augment.rand_augment, options)))
    transform: Transform = transforms.Compose(steps)
    return transform


def _with_all_bits(rand_augment: RandAugment) -> RandAugment:
    """RandAugment whose Posterize may keep no bit at all, which is a black image.

    "inc1" strings reach that at full magnitude; timm hands it to Pillow, which now refuses.
    """
    for op in rand_augment.ops:
        if op.aug_fn is posterize:
            op.aug_fn = _posterize
    return rand_augment


def _posterize(image: Image.Image, bits: int, **options: Any) -> Image.Image:
    if bits < 1:
        return Image.new(image.mode, image.size)
    reduced: Image.Image = posterize(image, bits, **options)
    return reduced
