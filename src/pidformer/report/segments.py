"""Photographs through a segmentation run, into pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from pidformer.data.pictures import UnreadableImage, pixels, read_picture
from pidformer.devices import as_device
from pidformer.errors import InputError
from pidformer.files import atomic_path
from pidformer.models.sliding import Sliding
from pidformer.report.overlay import OPACITY, overlay, save_labels, save_picture, with_legend
from pidformer.runs.folder import read_model_info, read_recipe
from pidformer.runs.model import load


def segment_files(
    run: str | Path,
    files: Sequence[Path],
    out: str | Path,
    *,
    views: str = "single",
    max_windows: int = 32,
    opacity: float = OPACITY,
    device: str = "auto",
    show_progress: bool = False,
) -> list[dict[str, Any]]:
    """Label photographs of any size; write overlays, label maps and legend.json to `out`.

    Returns, for each file, where its pictures are and the share of each class in per cent.
    """
    run, out = Path(run), Path(out)
    recipe = read_recipe(run)
    if recipe.get("task") != "segmentation":
        raise InputError(
            f"{run} is a run of {recipe.get('task', 'classification')}, not of segmentation"
        )
    names = _names(files)
    place = as_device(device)
    info = read_model_info(run)
    classes, palette = info["classes"], np.array(info["palette"], dtype=np.uint8)
    sliding = Sliding.of(info["inference"], views, max_windows)
    model = load(run).to(place)
    out.mkdir(parents=True, exist_ok=True)
    with atomic_path(out / "legend.json") as path:
        path.write_text(json.dumps({"classes": classes, "palette": info["palette"]}))
    found = []
    jobs = list(zip(files, names, strict=True))
    is_shown = show_progress and len(jobs) > 1
    console = Console(stderr=True)
    for file, name in track(
        jobs, "segmenting", console=console, transient=True, disable=not is_shown
    ):
        try:
            image = read_picture(file)
        except UnreadableImage as error:
            raise InputError(f"cannot read {file} as an image ({error})") from None
        batch = torch.from_numpy(pixels(image))[None].to(place).float() / 255
        labels = sliding.labels(model, batch)[0].cpu().numpy()
        paths = {kind: out / f"{name}.{kind}.png" for kind in ("overlay", "classes")}
        tinted = overlay(image, labels, palette, opacity)
        save_picture(paths["overlay"], with_legend(tinted, labels, classes, palette))
        save_labels(paths["classes"], labels, palette)
        counts = np.bincount(labels.ravel(), minlength=len(classes))
        shares = {
            classes[label]: 100 * float(counts[label]) / labels.size
            for label in np.flatnonzero(counts)
        }
        found.append({"image": str(file), "shares": shares} | {k: str(p) for k, p in paths.items()})
    return found


def _names(files: Sequence[Path]) -> list[str]:
    """One name a file: its stem, with its ending where two files share a stem."""
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
    return names
