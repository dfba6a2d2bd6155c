"""The corruptions read one image at a time with NumPy, SciPy and Pillow: what ours must equal.

Images are (H, W, 3) float64, the 8-bit levels / 255; results are not yet clipped. `fields` gives
the random numbers: `Fields(generator)` draws them, `SameFields` hands out those that ours used.
"""

import io
import math

import numpy as np
from matplotlib.colors import hsv_to_rgb, rgb_to_hsv
from PIL import Image
from scipy import ndimage


class Fields:
    def __init__(self, generator):
        self.generator = generator

    def normal(self, purpose, *shape):
        return self.generator.normal(size=shape)

    def uniform(self, purpose, *shape):
        return self.generator.uniform(size=shape)

    def integers(self, purpose, bound, *shape):
        return self.generator.integers(bound, size=shape)


class SameFields:
    """Row `row` of each field of a `Draws`."""

    def __init__(self, draws, row):
        self.draws, self.row = draws, row

    def __getattr__(self, kind):
        def field(*arguments):
            return getattr(self.draws, kind)(*arguments)[self.row].cpu().numpy()

        return field


def quantise(image):
    return np.floor(np.clip(image, 0, 1) * 255 + 1e-9).astype(np.uint8)


def to_pil(image):
    return Image.fromarray(np.rint(image * 255).astype(np.uint8))


def smooth(image, sigma):
    return ndimage.gaussian_filter(image, (sigma, sigma, 0), mode="nearest", truncate=4)


def gaussian_noise(x, c, fields):
    return x + fields.normal("noise", 3, *x.shape[:2]).transpose(1, 2, 0) * c["sigma"]


def speckle_noise(x, c, fields):
    return x + x * fields.normal("noise", 3, *x.shape[:2]).transpose(1, 2, 0) * c["sigma"]


def shot_noise(x, c, fields):
    return fields.generator.poisson(x * c["rate"]) / c["rate"]


def impulse_noise(x, c, fields):
    x = x.copy()
    hit = fields.generator.uniform(size=x.shape) <= c["share"]
    x[hit] = fields.generator.integers(2, size=hit.sum())
    return x


def defocus_blur(x, c, fields):
    reach, rim = (8, 1) if c["radius"] <= 8 else (c["radius"], 2)
    rows, columns = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    disk = (rows**2 + columns**2 <= c["radius"] ** 2).astype(float)
    disk /= disk.sum()
    line = np.exp(-(np.arange(-rim, rim + 1) ** 2) / (2 * c["alias_sigma"] ** 2))
    rim_kernel = np.outer(line, line) / line.sum() ** 2
    disk = ndimage.correlate(disk, rim_kernel, mode="mirror")
    return np.dstack([ndimage.correlate(x[..., k], disk, mode="mirror") for k in range(3)])


def gaussian_blur(x, c, fields):
    return smooth(x, c["sigma"])


def glass_blur(x, c, fields):
    height, width = x.shape[:2]
    delta = int(c["reach"])
    x = quantise(smooth(x, c["sigma"]))
    for turn in range(int(c["passes"])):
        down, across = fields.integers(f"pass {turn}", 2 * delta, 2, height, width) - delta
        for row in range(height - delta, delta, -1):
            for column in range(width - delta, delta, -1):
                x[row, column] = x[row + down[row, column], column + across[row, column]]
    return smooth(x / 255, c["sigma"])


def trail(x, radius, sigma, degrees):
    """Each sample along the direction, as one shifted copy of the image."""
    height, width = x.shape[:2]
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(2 * radius + 1)]
    total = np.zeros_like(x)
    for i, weight in enumerate(weights):
        right = math.ceil(i * math.cos(math.radians(degrees)) - 0.5)
        down = math.ceil(i * math.sin(math.radians(degrees)) - 0.5)
        rows = np.clip(np.arange(height) + down, 0, height - 1)
        columns = np.clip(np.arange(width) + right, 0, width - 1)
        total += weight / sum(weights) * x[rows][:, columns]
    return total


def motion_blur(x, c, fields):
    angle = float(fields.uniform("angle", 1)[0]) * 90 - 45
    return trail(x, c["radius"], c["sigma"], angle)


def centre_zoom(x, factor):
    size = x.shape[0]
    crop = math.ceil(size / factor)
    top = (size - crop) // 2
    x = ndimage.zoom(
        x[top : top + crop, top : top + crop], (factor, factor, 1), order=1, mode="nearest"
    )
    trim = (x.shape[0] - size) // 2
    return x[trim : trim + size, trim : trim + size]


def zoom_blur(x, c, fields):
    factors = np.arange(1, c["largest"] + c["step"] / 2, c["step"])
    return (x + sum(centre_zoom(x, factor) for factor in factors)) / (len(factors) + 1)


def snow(x, c, fields):
    layer = fields.normal("flakes", 1, *x.shape[:2])[0].astype(float) * c["std"] + c["mean"]
    layer = centre_zoom(layer[..., None], c["zoom"])
    layer[layer < c["threshold"]] = 0
    angle = float(fields.uniform("angle", 1)[0]) * 90 - 135
    layer = trail(quantise(layer) / 255, c["radius"], c["sigma"], angle)
    layer = np.rint(layer * 255) / 255
    grey = (x @ [0.299, 0.587, 0.114])[..., None]
    x = c["keep"] * x + (1 - c["keep"]) * np.maximum(x, grey * 1.5 + 0.5)
    return x + layer + np.rot90(layer, 2)


def frost(x, c, fields, textures):
    texture = textures[int(fields.integers("texture", len(textures), 1, 1)[0, 0])]
    top, left = fields.integers("corner", len(texture), 2, 1)[:, 0]
    texture = np.roll(texture, (-top, -left), (0, 1))[: x.shape[0], : x.shape[1]]
    return c["image_weight"] * x + c["frost_weight"] * texture


def plasma(fields, side, decay):
    """Diamond-square, point by point on the torus."""
    grid, step, wobble = np.zeros((side, side)), side, 100.0
    while step >= 2:
        half = step // 2
        noise = wobble**2 * (
            2 * fields.uniform(f"grid {step}", 3, side // step, side // step).astype(float) - 1
        )
        tops = range(0, side, step)

        def at(row, column):
            return grid[row % side, column % side]

        def around(row, column, moves, half=half, at=at):
            return sum(at(row + half * a, column + half * b) for a, b in moves) / 4

        corners, cross = [(-1, -1), (-1, 1), (1, -1), (1, 1)], [(-1, 0), (1, 0), (0, -1), (0, 1)]
        for kind, down, right, moves in (
            (0, half, half, corners),
            (1, 0, half, cross),
            (2, half, 0, cross),
        ):
            for i, top in enumerate(tops):
                for j, left in enumerate(tops):
                    row, column = top + down, left + right
                    grid[row, column] = around(row, column, moves) + noise[kind, i, j]
        step, wobble = half, wobble / decay
    grid -= grid.min()
    return grid / grid.max()


def fog(x, c, fields):
    side = 2 ** math.ceil(math.log2(x.shape[0]))
    cloud = plasma(fields, side, c["decay"])[: x.shape[0], : x.shape[1], None]
    return (x + c["amount"] * cloud) * x.max() / (x.max() + c["amount"])


def brightness(x, c, fields):
    hsv = rgb_to_hsv(x)
    hsv[..., 2] = np.clip(hsv[..., 2] + c["add"], 0, 1)
    return hsv_to_rgb(hsv)


def saturate(x, c, fields):
    hsv = rgb_to_hsv(x)
    hsv[..., 1] = np.clip(hsv[..., 1] * c["multiply"] + c["add"], 0, 1)
    return hsv_to_rgb(hsv)


def contrast(x, c, fields):
    mean = x.mean((0, 1))
    return (x - mean) * c["scale"] + mean


def elastic_transform(x, c, fields):
    size = x.shape[0]
    centre, third = size // 2, size // 3
    before = centre + third * np.array([[1, 1], [1, -1], [-1, -1]])  # (x, y)
    jitter = fields.uniform("corners", 3, 2).astype(float) * 2 - 1
    after = before + jitter * c["jitter"]
    forward = np.linalg.solve(np.c_[before, np.ones(3)], after).T  # after = forward (x, y, 1)
    back = np.linalg.inv(np.vstack([forward, [0, 0, 1]]))
    flip = np.array([[0, 1], [1, 0]])  # SciPy counts rows first
    matrix, offset = flip @ back[:2, :2] @ flip, flip @ back[:2, 2]
    warp = {"order": 1, "mode": "mirror"}
    x = np.dstack([ndimage.affine_transform(x[..., k], matrix, offset, **warp) for k in range(3)])
    if c["alpha"] == 0:
        return x
    field = fields.uniform("displacement", 2, size, size).astype(float) * 2 - 1
    across, down = (
        c["alpha"] * ndimage.gaussian_filter(part, c["sigma"], mode="reflect", truncate=3)
        for part in field
    )
    rows, columns = np.mgrid[:size, :size]
    places = [rows + down, columns + across]
    return np.dstack(
        [ndimage.map_coordinates(x[..., k], places, order=1, mode="reflect") for k in range(3)]
    )


def pixelate(x, c, fields):
    height, width = x.shape[:2]
    small = (int(width * c["scale"]), int(height * c["scale"]))
    small_picture = to_pil(x).resize(small, Image.Resampling.BOX)
    return np.asarray(small_picture.resize((width, height), Image.Resampling.BOX)) / 255


def jpeg_compression(x, c, fields):
    file = io.BytesIO()
    to_pil(x).save(file, "JPEG", quality=c["quality"])
    return np.asarray(Image.open(file)) / 255


def canny(layer, low, high):
    """Pixel by pixel; edges grown from the strong ones by labelling connected ridges."""
    layer = layer.astype(float)
    across, down = (ndimage.sobel(layer, axis, mode="nearest") for axis in (1, 0))
    size = np.pad(np.abs(across) + np.abs(down), 1)
    ridge = np.zeros(layer.shape, bool)
    for row, column in zip(*np.nonzero(size[1:-1, 1:-1] > low), strict=True):
        gx, gy = across[row, column], down[row, column]
        window = size[row : row + 3, column : column + 3]
        mine = window[1, 1]
        angle = math.degrees(math.atan2(abs(gy), abs(gx)))
        if angle < 22.5:
            ridge[row, column] = mine > window[1, 0] and mine >= window[1, 2]
        elif angle > 67.5:
            ridge[row, column] = mine > window[0, 1] and mine >= window[2, 1]
        else:
            side = -1 if gx * gy < 0 else 1
            ridge[row, column] = mine > window[0, 1 - side] and mine > window[2, 1 + side]
    labels, _ = ndimage.label(ridge, np.ones((3, 3)))
    strong = np.unique(labels[ridge & (size[1:-1, 1:-1] > high)])
    return np.isin(labels, strong[strong > 0])


def equalise(image):
    counts = np.bincount(image.ravel(), minlength=256)
    lowest = counts[image.min()]
    if lowest == image.size:
        return image
    table = np.rint((counts.cumsum() - lowest) * (255 / (image.size - lowest)))
    return np.clip(table, 0, 255).astype(np.uint8)[image]


def spatter(x, c, fields):
    layer = fields.normal("liquid", *x.shape[:2]).astype(float) * c["std"] + c["mean"]
    layer = ndimage.gaussian_filter(layer, c["sigma"], mode="nearest")
    layer[layer < c["threshold"]] = 0
    if c["is_mud"]:
        weight = ndimage.gaussian_filter(
            (layer > c["threshold"]).astype(float), c["strength"], mode="nearest"
        )
        weight[weight < 0.8] = 0
        weight = weight[..., None]
        return x * (1 - weight) + np.array([63, 42, 20]) / 255 * weight
    layer = (layer * 255).astype(np.uint8)
    edges = canny(layer, 50, 150)
    far = ndimage.distance_transform_edt(~edges) if edges.any() else np.full(layer.shape, 20.0)
    box = np.ones((3, 3)) / 9
    far = (ndimage.correlate(np.minimum(far, 20), box, mode="mirror") + 1e-6).astype(np.uint8)
    emboss = [[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]
    lit = ndimage.correlate(equalise(far).astype(float), emboss, mode="mirror").clip(0, 255)
    relief = layer * np.rint(ndimage.correlate(lit, box, mode="mirror"))
    weight = c["strength"] * relief / max(relief.max(), 1)
    return x + weight[..., None] * np.array([175, 238, 238]) / 255
