"""One corruption at one severity, as a value or of the images one has; and the error over all.

`severities.json` beside this file has the published constants: five per corruption, for three
image sizes each, the numbers of the generator scripts of Hendrycks and Dietterich. Two are kept
in the scripts' own terms: zoom factors by their largest and their step, elastic lengths as
multiples of `ELASTIC_UNIT` pixels (244 for 224-pixel images is the scripts' number, a slip that
the published set contains).
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pidformer.data.benchmarks import GROUPS, SEVERITIES, STANDARD
from pidformer.errors import InputError, check_known
from pidformer.fields import read_json
from pidformer.robustness.corruptions import blur, digital, noise, weather
from pidformer.robustness.corruptions.filters import RandomFields, round_8_bit, to_8_bit
from pidformer.robustness.threat import Model, as_whole, check_span

_TABLE = read_json(Path(__file__).with_name("severities.json"))
CORRUPTIONS = STANDARD
"""The 15 of ImageNet-C, in the order of the published tables."""
EXTRA_CORRUPTIONS = GROUPS["extra"]
"""Four more, meant for validation: not part of any mean."""
_FUNCTIONS = vars(noise) | vars(blur) | vars(weather) | vars(digital)
_APPLY: dict[str, Callable[..., Tensor]] = {
    name: _FUNCTIONS[name] for name in (*CORRUPTIONS, *EXTRA_CORRUPTIONS)
}
"""Images (B, 3, H, W), their random fields and the constants by name to what becomes of them."""
SIZES = (224, 64, 32)
ELASTIC_UNIT = {224: 244, 64: 64, 32: 32}
FROST_SCALE = {224: 1.0, 64: 0.3, 32: 0.2}


def constants_size(height: int, width: int) -> int:
    """The constants for an image: 224 from a short side of 128 pixels on, 64 from 48, else 32."""
    short = min(height, width)
    return 224 if short >= 128 else 64 if short >= 48 else 32


def severity_constants(name: str, severity: int, size: int) -> dict[str, float]:
    """The constants of one corruption by parameter name; elastic lengths in pixels."""
    if size not in SIZES:
        raise InputError(f"there are constants for 224, 64 and 32 pixels, got constants={size!r}")
    entry = _TABLE[name]
    values = dict(zip(entry["parameters"], entry[str(size)][severity - 1], strict=True))
    if name == "elastic_transform":
        values = {key: value * ELASTIC_UNIT[size] for key, value in values.items()}
    if name == "frost":
        values["texture_scale"] = FROST_SCALE[size]
    return values


SAVE_AS_JPEG85 = 85
"""`jpeg_quality` of the published ImageNet-C and Tiny ImageNet-C files."""

FROST_TEXTURES = 2
"""Version of our frost textures; the first, which records do not name, was darker."""

_SMALLEST = 8
# Entries taken at once, which bounds memory: 2 MiB a copy on a CPU, a quarter of a GiB on a GPU.
_PART = {False: 1 << 18, True: 1 << 25}


@dataclass(frozen=True, kw_only=True)
class Corruption:
    """A corruption of ImageNet-C, or one of the four extra: a threat that asks no model.

    `corrupt(images)` reads images (B, 3, H, W) in [0, 1] as 8-bit pixels, corrupts them and
    gives 8-bit pixels back (clip, times 255, truncate, / 255), float32 on the same device. Image
    k's randomness depends on (seed, name, severity, its index) alone.
    """

    name: str
    severity: int = 3
    constants: int | None = None
    """Whose severity constants: 224, 64 or 32; None chooses by the short side (128, 48)."""
    jpeg_quality: int | None = None
    """Save the result as JPEG of this quality, as the published files were (85); None: do not."""

    def __post_init__(self) -> None:
        check_known("corruption", self.name, _APPLY)
        if not _is_one_of(SEVERITIES, self.severity):
            raise InputError(f"severity must be 1, 2, 3, 4 or 5, got {self.severity!r}")
        if self.constants is not None and not _is_one_of(SIZES, self.constants):
            raise InputError(f"constants must be 224, 64, 32 or None, got {self.constants!r}")
        if self.jpeg_quality is not None and not _is_one_of(range(1, 101), self.jpeg_quality):
            raise InputError(f"jpeg_quality must be in 1 ... 100, got {self.jpeg_quality!r}")

    def __repr__(self) -> str:
        """All it measures with: records are the same measurement where this is the same."""
        given = f"name={self.name!r}, severity={self.severity}, constants={self.constants}"
        drawn = f", textures={FROST_TEXTURES}" if self.name == "frost" else ""
        return f"Corruption({given}, jpeg_quality={self.jpeg_quality}{drawn})"

    def __call__(
        self, model: Model, images: Tensor, labels: Tensor, *, seed: int = 0, offset: int = 0
    ) -> Tensor:
        """The corrupted images, in their own type; a grey image goes in as R = G = B."""
        places = torch.arange(offset, offset + len(images))
        if images.shape[1] == 1:
            colour = self.corrupt(images.expand(-1, 3, -1, -1), seed=seed, indices=places)
            return colour.mean(1, keepdim=True).to(images.dtype)
        return self.corrupt(images, seed=seed, indices=places).to(images.dtype)

    def corrupt(
        self, images: Tensor, *, seed: int = 0, indices: Sequence[int] | Tensor | None = None
    ) -> Tensor:
        """Corrupt; `indices` are the images' places in their set, 0 ... B - 1 if not given."""
        _check_images(images)
        numbers = _check_indices(indices, images)
        size = self.constants or constants_size(*images.shape[-2:])
        constants = severity_constants(self.name, self.severity, size)
        seed = as_whole("seed", seed)
        result = torch.empty_like(
            images, dtype=torch.float32, memory_format=torch.contiguous_format
        )
        step = max(1, _PART[images.is_cuda] // images[0].numel()) if len(images) else 1
        with torch.no_grad():
            for start in range(0, len(images), step):
                part = slice(start, start + step)
                draws = RandomFields(seed, self.name, self.severity, numbers[part])
                given = round_8_bit(images[part].contiguous())
                found = to_8_bit(_APPLY[self.name](given, draws, **constants))
                if self.jpeg_quality is not None:
                    found = digital.jpeg_compression(found, draws, self.jpeg_quality)
                result[part] = found
        return result


def _is_one_of(allowed: Container[int], value: object) -> bool:
    """Whether it is one of these whole numbers: neither 3.0 nor True."""
    return isinstance(value, Integral) and not isinstance(value, bool) and value in allowed


def _check_images(images: Tensor) -> None:
    if not isinstance(images, Tensor) or not images.is_floating_point():
        kind = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise InputError(f"images must be a float tensor in [0, 1], got {kind}; divide by 255")
    if images.ndim != 4 or images.shape[1] != 3:
        raise InputError(
            f"images must be (B, 3, H, W), got {tuple(images.shape)}; add a batch dimension, or "
            "repeat a grey channel three times"
        )
    if min(images.shape[-2:]) < _SMALLEST:
        raise InputError(f"images must be at least 8 pixels wide and high, got {images.shape[-2:]}")
    if images.numel():
        check_span(images.aminmax())


def _check_indices(indices: Sequence[int] | Tensor | None, images: Tensor) -> Tensor:
    if indices is None:
        return torch.arange(len(images), device=images.device)
    numbers = torch.as_tensor(indices, device=images.device)
    if numbers.is_floating_point() or numbers.shape != (len(images),):
        raise InputError(
            f"indices must be {len(images)} whole numbers, one an image, got "
            f"{numbers.dtype} of shape {tuple(numbers.shape)}"
        )
    return numbers.long()


def corrupt(
    images: Any,
    name: str,
    severity: int = 3,
    *,
    seed: int = 0,
    indices: Sequence[int] | None = None,
    **options: Any,
) -> Any:
    """The images, corrupted, as what they came as: kind, shape, layout and type.

    NumPy images are (H, W, 3) or (B, H, W, 3), torch images (3, H, W) or (B, 3, H, W); uint8, or
    floats in [0, 1]. `options` are those of `Corruption` (`constants`, `jpeg_quality`).
    """
    corruption = Corruption(name=name, severity=severity, **options)
    is_array = isinstance(images, np.ndarray)
    if not is_array and not isinstance(images, Tensor):
        raise InputError(
            f"images must be a NumPy array or a torch tensor, got {type(images).__name__}; "
            "np.asarray(image) makes one of a picture"
        )
    given = torch.from_numpy(np.array(images, order="C")) if is_array else images
    if given.ndim not in (3, 4):
        layout = "(H, W, 3) or (B, H, W, 3)" if is_array else "(3, H, W) or (B, 3, H, W)"
        raise InputError(f"images must be {layout}, got {tuple(given.shape)}")
    batch = given if given.ndim == 4 else given[None]
    pixels = batch.permute(0, 3, 1, 2) if is_array else batch
    if pixels.dtype == torch.uint8:
        pixels = pixels.float() / 255
    found = corruption.corrupt(pixels, seed=seed, indices=indices)
    if given.dtype == torch.uint8:
        found = (found * 255).round()
    found = (found.permute(0, 2, 3, 1) if is_array else found).to(given.dtype)
    found = (found if given.ndim == 4 else found[0]).contiguous()
    return found.numpy() if is_array else found


ALEXNET_ERROR = {name: _TABLE[name]["alexnet_error"] for name in CORRUPTIONS}
"""AlexNet's error on ImageNet-C, the mean over the severities, as published with the set."""


def mean_corruption_error(errors: Mapping[str, Sequence[float]]) -> float:
    """The mean error rate, in [0, 1], over these corruptions and their five severities.

    `errors[name]` are the error rates at severities 1 to 5. Not normalised: the number for images
    that have no AlexNet constants (64 and 32 pixels). It is not the published mCE; see `mce`.
    """
    if not errors:
        raise InputError("there are no errors to average; give {corruption: five error rates}")
    means = [_mean(name, rates) for name, rates in errors.items()]
    return sum(means) / len(means)


def mce(errors: Mapping[str, Sequence[float]]) -> float:
    """mCE of ImageNet-C in per cent: 100 * mean over the 15 of sum_s E(s) / sum_s E_AlexNet(s).

    For ImageNet at 224 pixels only. The extra corruptions do not count and may be absent.
    """
    missing = [name for name in CORRUPTIONS if name not in errors]
    if missing:
        raise InputError(
            f"mCE is over all 15 corruptions, {', '.join(missing)} missing; "
            "mean_corruption_error takes any"
        )
    ratios = [_mean(name, errors[name]) / ALEXNET_ERROR[name] for name in CORRUPTIONS]
    return 100 * sum(ratios) / len(ratios)


def _mean(name: str, rates: Sequence[float]) -> float:
    known = CORRUPTIONS + EXTRA_CORRUPTIONS
    check_known("corruption", name, known)
    if len(rates) != len(SEVERITIES):
        raise InputError(f"{name} needs the error rates of 5 severities, got {len(rates)}")
    if not all(0 <= rate <= 1 for rate in rates):
        raise InputError(f"error rates must be in [0, 1], got {list(rates)} for {name}")
    return sum(rates) / len(rates)
