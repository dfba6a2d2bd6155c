"""Labelled photographs as pictures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pidformer.errors import InputError
from pidformer.files import atomic_path, out_folder
from pidformer.report.overlay import OPACITY, overlay, save_labels, save_picture, with_legend


def save_segments(
    labelled: Iterable[tuple[Path, Image.Image, np.ndarray]],
    names: Mapping[Path, str],
    info: Mapping[str, Any],
    out: Path,
    *,
    opacity: float = OPACITY,
) -> list[dict[str, Any]]:
    """Write overlays, label maps and legend.json to `out`, for a model with these `classes` and
    this `palette`.

    Returns, for each file, where its pictures are and the share of each class in per cent.
    """
    classes, palette = info["classes"], np.array(info["palette"], dtype=np.uint8)
    found: list[dict[str, Any]] = []
    for file, image, labels in labelled:
        paths = {kind: out / f"{names[file]}.{kind}.png" for kind in ("overlay", "classes")}
        tinted = overlay(image, labels, palette, opacity)
        if not found:  # nothing is left behind where not one image can be read
            out_folder(out)
            with atomic_path(out / "legend.json") as path:
                path.write_text(json.dumps({"classes": classes, "palette": info["palette"]}))
        save_picture(paths["overlay"], with_legend(tinted, labels, classes, palette))
        save_labels(paths["classes"], labels, palette)
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
