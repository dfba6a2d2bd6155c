"""Pictures of segmented photographs: labels over the image, a legend, the labels as a file."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from pidformer.errors import InputError
from pidformer.files import atomic_path, out_folder, write_whole

OPACITY = 0.55
_ROW = 18
_MARGIN = 8


def overlay(
    image: Image.Image, labels: np.ndarray, palette: np.ndarray, opacity: float = OPACITY
) -> Image.Image:
    """The image with each pixel tinted in the colour of its class, edges of regions kept darker."""
    if not 0 <= opacity <= 1:
        raise InputError(f"opacity must be in [0, 1], got {opacity:g}")
    colours = palette[labels].astype(np.float32)
    pixels = np.asarray(image.convert("RGB"), dtype=np.float32)
    mixed = (1 - opacity) * pixels + opacity * colours
    mixed[_edges(labels)] *= 0.6
    return Image.fromarray(mixed.round().clip(0, 255).astype(np.uint8))


def with_legend(
    picture: Image.Image, labels: np.ndarray, classes: Sequence[str], palette: np.ndarray
) -> Image.Image:
    """The picture with the classes that are in it beside it, the largest first."""
    counts = np.bincount(labels.ravel(), minlength=len(classes))
    order = [int(label) for label in np.argsort(-counts, kind="stable") if counts[label]]
    lines = [f"{classes[label]}  {100 * counts[label] / labels.size:.1f} %" for label in order]
    row = max(_ROW, picture.height // 30)
    font = ImageFont.load_default(size=0.6 * row)
    width = max(int(font.getlength(line)) for line in lines) + row + 3 * _MARGIN
    height = max(picture.height, len(lines) * row + 2 * _MARGIN)
    page = Image.new("RGB", (picture.width + width, height), "white")
    page.paste(picture, (0, 0))
    draw = ImageDraw.Draw(page)
    for place, (label, line) in enumerate(zip(order, lines, strict=True)):
        left, top = picture.width + _MARGIN, _MARGIN + place * row
        box = (left, top + 2, left + row - 4, top + row - 2)
        draw.rectangle(box, fill=tuple(palette[label].tolist()), outline="black")
        draw.text((left + row + 2, top + 0.15 * row), line, fill="black", font=font)
    return page


def _edges(labels: np.ndarray) -> np.ndarray:
    """Pixels whose right or lower neighbour has another label."""
    is_edge = np.zeros(labels.shape, dtype=bool)
    is_edge[:, :-1] |= labels[:, 1:] != labels[:, :-1]
    is_edge[:-1] |= labels[1:] != labels[:-1]
    return is_edge


def save_segments(
    labelled: Iterable[tuple[Path, Image.Image, np.ndarray]],
    names: Mapping[Path, str],
    info: Mapping[str, Any],
    out: Path,
    *,
    opacity: float = OPACITY,
) -> list[dict[str, Any]]:
    """Write overlays, label maps and legend.json to `out`; where they are, and class shares."""
    classes, palette = info["classes"], np.array(info["palette"], dtype=np.uint8)
    found: list[dict[str, Any]] = []
    for file, image, labels in labelled:
        paths = {kind: out / f"{names[file]}.{kind}.png" for kind in ("overlay", "classes")}
        tinted = overlay(image, labels, palette, opacity)
        if not found:  # nothing is left behind where not one image can be read
            out_folder(out)
            legend = {"classes": classes, "palette": info["palette"]}
            write_whole(out / "legend.json", json.dumps(legend))
        # indexed: the pixels are the labels, shown in their colours
        indexed = Image.frombytes("P", labels.shape[::-1], labels.astype(np.uint8).tobytes())
        indexed.putpalette(palette.tobytes())
        pictures = {"overlay": with_legend(tinted, labels, classes, palette), "classes": indexed}
        for kind, picture in pictures.items():
            with atomic_path(paths[kind]) as temporary:
                picture.save(temporary)
        counts = np.bincount(labels.ravel(), minlength=len(classes))
        shares = {
            classes[label]: 100 * float(counts[label]) / labels.size
            for label in np.flatnonzero(counts)
        }
        found.append({"image": str(file), "shares": shares} | {k: str(p) for k, p in paths.items()})
    return found


def picture_names(files: Sequence[Path]) -> dict[Path, str]:
    """One name per file: its stem, with its ending where two files share a stem."""
    stems = [file.stem for file in files]
    names = [
        file.stem if stems.count(file.stem) == 1 else file.name.replace(".", "_") for file in files
    ]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(
            f"several images are called {', '.join(twice[:5])}; their pictures would overwrite "
            "each other: segment them into different folders"
        )
    return dict(zip(files, names, strict=True))
