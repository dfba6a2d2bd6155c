"""Windows of resized pairs, a whole batch at once, on the device that holds it.

Resizing and cutting are one gather: an output pixel reads the four (image) or one (mask) stored
pixels that it would have been resized from, and nothing outside the window is made. Images and
masks are resized as OpenCV does: bilinear between pixel centres without anti-aliasing, and

    label(y, x) = stored(floor(y h / h'), floor(x w / w'))
"""
# B pairs, H x W stored size, S window

import torch
from torch import Tensor

from pidformer.data.formats.masks import IGNORED
from pidformer.data.segmentation.augment import ATTEMPTS, Choices
from pidformer.data.segmentation.photometric import distort


def augmented(
    images: Tensor, masks: Tensor, choices: Choices, crop: int, max_category: float
) -> tuple[Tensor, Tensor]:
    """Levels (B, 3, S, S) and labels (B, S, S) of pairs (B, 3, H, W), (B, H, W), all uint8.

    Beyond a resized pair that is smaller than the window labels are 255 and levels undefined.
    """
    device = images.device
    size, corners, is_flipped = (
        torch.from_numpy(chosen).to(device, non_blocking=True)
        for chosen in (choices.size, choices.corners, choices.is_flipped)
    )
    corner = _chosen_corner(masks, size, corners, crop, max_category)
    rows, columns = _places(size, corner, is_flipped, crop)
    levels = _bilinear(images, size, rows, columns)
    labels = _labels(masks, size, rows, columns)
    return distort(levels, choices).to(torch.uint8), labels


def is_inside(size: Tensor, crop: int) -> Tensor:
    """Where a window (B, S, S) lies on its pair, which stands at the top left."""
    place = torch.arange(crop, device=size.device)
    rows, columns = (place < side[:, None] for side in size.unbind(1))
    return rows[:, :, None] & columns[:, None, :]


def _chosen_corner(
    masks: Tensor, size: Tensor, corners: Tensor, crop: int, max_category: float
) -> Tensor:
    """The first corner whose window is not ruled by one class, else the last, (B, 2)."""
    if max_category >= 1:
        return corners[:, 0]
    chosen = torch.full((len(masks),), ATTEMPTS, device=masks.device)
    straight = torch.zeros(len(masks), dtype=torch.bool, device=masks.device)
    for attempt in range(ATTEMPTS):
        places = _places(size, corners[:, attempt], straight, crop)
        is_mixed = _is_mixed(_labels(masks, size, *places), max_category)
        chosen = torch.where((chosen == ATTEMPTS) & is_mixed, attempt, chosen)
        if not masks.is_cuda and bool((chosen < ATTEMPTS).all()):
            break  # a GPU would have to wait for the answer
    return corners[torch.arange(len(masks), device=masks.device), chosen]


def _is_mixed(labels: Tensor, max_category: float) -> Tensor:
    """Whether two or more classes are in a window and none has `max_category` of it, (B,)."""
    flat = labels.flatten(1).long()
    counts = torch.zeros(len(labels), 256, dtype=torch.int32, device=labels.device)
    counts.scatter_add_(1, flat, torch.ones_like(flat, dtype=torch.int32))
    counts = counts[:, :IGNORED]
    largest, total = counts.amax(1), counts.sum(1)
    return ((counts > 0).sum(1) > 1) & (largest < max_category * total)


def _places(size: Tensor, corner: Tensor, is_flipped: Tensor, crop: int) -> tuple[Tensor, Tensor]:
    """Rows and columns (B, S) of the resized pair that a window shows; -1 beyond the pair."""
    place = torch.arange(crop, device=size.device)
    height, width = size.clamp(max=crop).unbind(1)
    mirrored = torch.where(is_flipped[:, None], width[:, None] - 1 - place, place)
    rows = torch.where(place < height[:, None], place + corner[:, :1], -1)
    columns = torch.where(place < width[:, None], mirrored + corner[:, 1:], -1)
    return rows, columns


def _labels(masks: Tensor, size: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Nearest labels (B, S, S); 255 beyond the pair."""
    height, width = size.unbind(1)
    y = rows.clamp(min=0) * masks.shape[1] // height[:, None]
    x = columns.clamp(min=0) * masks.shape[2] // width[:, None]
    batch = torch.arange(len(masks), device=masks.device)
    found = masks[batch[:, None, None], y[:, :, None], x[:, None, :]]
    beyond = (rows < 0)[:, :, None] | (columns < 0)[:, None, :]
    return torch.where(beyond, IGNORED, found).to(torch.uint8)


def _bilinear(images: Tensor, size: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Levels (B, 3, S, S), whole numbers in float32."""
    height, width = size.unbind(1)
    mixed = _mixed(images, 2, rows, images.shape[2] / height.double())
    mixed = _mixed(mixed, 3, columns, images.shape[3] / width.double())
    return mixed.add_(0.5).floor_()


def _mixed(images: Tensor, dim: int, target: Tensor, scale: Tensor) -> Tensor:
    """Rows (dim 2) or columns (dim 3) of the images at (target + 1/2) scale - 1/2."""
    last = images.shape[dim] - 1
    place = ((target.clamp(min=0) + 0.5) * scale[:, None] - 0.5).clamp(0, last)  # (B, S)
    before = place.long()
    share = (place - before).float()
    shape = [len(images), 1, 1, 1]
    shape[dim] = target.shape[1]
    low, high, share = (
        values.view(shape) for values in (before, (before + 1).clamp(max=last), share)
    )
    first = torch.take_along_dim(images, low, dim).float()
    second = torch.take_along_dim(images, high, dim).float()
    return torch.lerp(first, second, share)
