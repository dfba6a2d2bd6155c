"""The tokens of one image over depth: a picture and a short film."""
# L layers, N tokens

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from pidformer.analysis import Trajectory, joint_trajectories
from pidformer.errors import InputError
from pidformer.files import atomic_path
from pidformer.report.panels import INK, check_format, run_colors, style

FRAMES = 4
"""Frames from one layer to the next."""
REST = 350
"""Milliseconds at each layer."""


class TrajectoryFiles(NamedTuple):
    """Where the picture and the film are."""

    picture: Path
    film: Path


def trajectory_plot(
    models: Mapping[str, Any],
    image: Tensor,
    path: str | Path,
    *,
    is_controlled: Mapping[str, bool] | None = None,
) -> TrajectoryFiles:
    """Draw the tokens of one image (C, H, W) in each model to `path` (PNG) and beside it as GIF.

    Points are the directions of the tokens after each block, in the plane of the first two
    principal components of all models' directions together, each model centred at its own mean
    (`joint_trajectories`); all panels have one scale, so a collapsed model is a dot.
    """
    check_format(path, (".png",))
    if not models:
        raise InputError("give at least one model to draw")
    paths = dict(zip(models, joint_trajectories(list(models.values()), image), strict=True))
    flags = [bool((is_controlled or {}).get(label)) for label in models]
    colors = dict(zip(models, run_colors(flags), strict=True))
    film = Path(path).with_suffix(".gif")
    with matplotlib.rc_context(style() | {"axes.grid": False}):
        _save_picture(paths, colors, Path(path))
        _save_film(paths, colors, film)
    return TrajectoryFiles(Path(path), film)


def _panels(paths: Mapping[str, Trajectory], dpi: int) -> tuple[Figure, list[Axes]]:
    columns = min(4, len(paths))
    rows = -(-len(paths) // columns)
    figure = Figure(figsize=(4.0 * columns, 4.2 * rows), layout="constrained", dpi=dpi)
    places = list(figure.subplots(rows, columns, squeeze=False).flat)
    reach = 1.1 * max(float(path.points.abs().max()) for path in paths.values())
    for axes, (label, path) in zip(places, paths.items(), strict=False):
        axes.set(xlim=(-reach, reach), ylim=(-reach, reach), xticks=[], yticks=[], aspect="equal")
        axes.set_title(f"{label}\nplane shows {path.explained:.0%}", fontsize=11)
        axes.spines[:].set_visible(True)
    for axes in places[len(paths) :]:
        axes.set_visible(False)
    return figure, places[: len(paths)]


def _save_picture(paths: Mapping[str, Trajectory], colors: Mapping[str, str], target: Path) -> None:
    figure, places = _panels(paths, dpi=130)
    for axes, (label, path) in zip(places, paths.items(), strict=True):
        points = path.points.numpy()  # (L + 1, N, 2)
        for token in range(points.shape[1]):
            steps = np.stack([points[:-1, token], points[1:, token]], axis=1)
            fade = np.linspace(0.12, 0.6, len(steps))
            axes.add_collection(
                LineCollection(list(steps), colors=colors[label], alpha=fade, linewidths=0.9)
            )
        (x, y), (last_x, last_y) = points[0].T, points[-1].T
        axes.scatter(x, y, s=16, facecolors="white", edgecolors=INK, linewidths=0.8)
        axes.scatter(last_x, last_y, s=26, color=colors[label], zorder=3, linewidths=0)
    figure.supxlabel("white: embedding; full: last layer", fontsize=10)
    with atomic_path(target) as temporary:
        figure.savefig(temporary)


def _save_film(paths: Mapping[str, Trajectory], colors: Mapping[str, str], target: Path) -> None:
    figure, places = _panels(paths, dpi=72)
    canvas = FigureCanvasAgg(figure)
    dots = [
        axes.scatter(
            path.points[0, :, 0], path.points[0, :, 1], s=26, color=colors[label], linewidths=0
        )
        for axes, (label, path) in zip(places, paths.items(), strict=True)
    ]
    caption = figure.supxlabel("embedding", fontsize=11)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, not for every frame
    moving = [*dots, caption]
    for artist in moving:
        artist.set_animated(True)  # left out here, and drawn onto it frame by frame
    canvas.draw()
    ground = canvas.copy_from_bbox(figure.bbox)
    depth = max(len(path.points) for path in paths.values()) - 1
    frames, shown = [], []  # type: list[Image.Image], list[int]
    for step in range(FRAMES * depth + 1):
        for spots, path in zip(dots, paths.values(), strict=True):
            spots.set_offsets(_at(path.points.numpy(), step / FRAMES))
        layer = round(step / FRAMES)
        caption.set_text(f"layer {layer}" if layer else "embedding")
        canvas.restore_region(ground)
        for artist in moving:
            figure.draw_artist(artist)
        frame = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
        frames.append(frame.quantize(64, dither=Image.Dither.NONE))
        shown.append(REST if step % FRAMES == 0 else 60)
    shown[-1] = 5 * REST
    with atomic_path(target) as temporary:
        frames[0].save(temporary, save_all=True, append_images=frames[1:], duration=shown, loop=0)


def _at(points: np.ndarray, time: float) -> np.ndarray:
    """Between two layers, eased so that the eye can rest at each."""
    last = len(points) - 1
    low = min(int(time), last)
    share = time - low if low < last else 0.0
    eased = share * share * (3 - 2 * share)
    return (1 - eased) * points[low] + eased * points[min(low + 1, last)]
