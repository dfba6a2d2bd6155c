"""Crops of scikit-learn's two photographs."""

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_image


def photographs(count, size):
    """Images (count, 3, size, size) in [0, 1], all different, with 8-bit levels."""
    pictures = [Image.fromarray(load_sample_image(name)) for name in ("china.jpg", "flower.jpg")]
    crops = []
    for k in range(count):
        left, top, side = 23 * k % 200, 17 * k % 100, 320
        crop = pictures[k % 2].crop((left, top, left + side, top + side))
        crops.append(np.asarray(crop.resize((size, size), Image.Resampling.BILINEAR)))
    return torch.from_numpy(np.stack(crops)).permute(0, 3, 1, 2).contiguous().float() / 255
