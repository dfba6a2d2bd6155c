"""Image classifiers in folders of Hugging Face's `save_pretrained`, as models of pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pidformer.errors import InputError, shortened
from pidformer.models import PixelModel
from pidformer.models.language.folder import read_config, read_object
from pidformer.runs.weights import fingerprint

PREPROCESSOR = "preprocessor_config.json"


def open_classifier(folder: Path) -> dict[str, Any]:
    """Model, image size, share of the image that is kept, classes: what a `Subject` is made of."""
    fields = read_config(folder)
    kind = fields["architectures"][0]
    if not kind.endswith("ForImageClassification"):
        raise InputError(f"{folder} holds a {shortened(kind)}, which classifies no images")
    model = _converted(folder) if "pidformer" in fields else _plain(folder)
    size, kept, mean, std = _pixels(folder, model.config)
    pixels = PixelModel(model, mean, std).eval()
    names = model.config.id2label or {}
    return {
        "model": pixels,
        "image_size": size,
        "crop_ratio": kept,
        "classes": tuple(str(names[n]) for n in sorted(names)) or None,
        "facts": {"weights": fingerprint(pixels)},
    }


def _converted(folder: Path) -> Any:
    from pidformer.convert.hugging_face import from_pretrained  # needs the extra `lm`

    return from_pretrained(folder)


def _plain(folder: Path) -> Any:
    from transformers import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING, AutoConfig

    from pidformer.models.language.build import read_pretrained

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        kind = MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING[type(config)]
    except Exception as error:  # the library checks fields in many ways
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{folder} is no image classifier of transformers ({reason})") from None
    return read_pretrained(kind, folder)


def _pixels(folder: Path, config: Any) -> tuple[int, float, tuple[float, ...], tuple[float, ...]]:
    """Size, share kept by the crop, mean and std, as the model's own processor has them."""
    path = folder / PREPROCESSOR
    if not path.is_file():
        raise InputError(f"{folder} has no {PREPROCESSOR}, which says how pixels are normalised")
    given = read_object(path)
    try:
        factor = given.get("rescale_factor", 1 / 255) if given.get("do_rescale", True) else 1
        if abs(factor * 255 - 1) > 1e-3:
            raise InputError(f"{path}: rescale_factor must be 1/255: images are in [0, 1] here")
        normal = given.get("do_normalize", True)
        channels = getattr(config, "num_channels", 3)
        mean = tuple(map(float, given["image_mean"] if normal else [0.0] * channels))
        std = tuple(map(float, given["image_std"] if normal else [1.0] * channels))
        whole = _side(given.get("size"))
        size = _side(given.get("crop_size")) if given.get("do_center_crop") else whole
        size = size or whole or int(config.image_size)
        return size, min(1.0, size / (whole or size)), mean, std
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path} does not say how pixels are normalised ({error!r})") from None


def _side(size: Any) -> int | None:
    """Of {"height": 224, "width": 224}, {"shortest_edge": 256} or 224."""
    if isinstance(size, dict):
        size = size.get("shortest_edge") or size.get("height")
    return int(size) if size else None
