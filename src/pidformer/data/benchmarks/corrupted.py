"""ImageNet-C, Tiny ImageNet-C, CIFAR-10-C, CIFAR-100-C: one corruption at one severity."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

from pidformer.data.benchmarks.arrays import LABELS, StackedImages
from pidformer.data.benchmarks.names import set_title
from pidformer.data.formats.folders import FolderImages, class_folders
from pidformer.data.sources import ImageSource
from pidformer.errors import InputError, unknown

# By the archives they come in: noise.tar, blur.tar, ... each unpacks into a folder of that name.
GROUPS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    "extra": ("speckle_noise", "gaussian_blur", "spatter", "saturate"),
}
STANDARD = tuple(name for group, names in GROUPS.items() if group != "extra" for name in names)
KNOWN = tuple(name for names in GROUPS.values() for name in names)
SEVERITIES = (1, 2, 3, 4, 5)


def open_corrupted(root: Path, corruption: str, severity: int) -> ImageSource:
    """The images of one corruption at one severity, of the set whose folder is `root`.

    - `root`/<corruption>/<severity>/<class>/*, with or without the archives' folders (noise, blur,
      weather, digital, extra) before the corruption; each corruption may have its own way.
    - `root`/<corruption>.npy and labels.npy (CIFAR), the five severities one after another.
    """
    _check(root, (corruption,), (severity,))
    if _is_arrays(root):
        return StackedImages(root, corruption, severity)
    place = _severity_folder(root, corruption, severity)
    if place is None:
        raise InputError(
            f"no {corruption} of severity {severity} in {root}; expected "
            f"{root}/[<group>/]{corruption}/{severity}/<class>/<image>.JPEG or {corruption}.npy"
        )
    title = f"{root.name}/{corruption}/{severity}"
    return FolderImages(place, class_folders(place), title)


def missing_corruptions(
    root: Path, names: Sequence[str] = STANDARD, severities: Sequence[int] = SEVERITIES
) -> list[str]:
    """What the set lacks: "fog" for a whole corruption, "fog/3" for one severity of it.

    An array that is there but cannot be used is no gap but an InputError that names the file.
    """
    _check(root, names, severities)
    missing, is_arrays = [], _is_arrays(root)
    for name in names:
        gaps = [level for level in severities if not _is_held(root, name, level, is_arrays)]
        whole = len(gaps) == len(severities)
        missing += [name] if whole else [f"{name}/{level}" for level in gaps]
        if not gaps and is_arrays:
            StackedImages(root, name, SEVERITIES[0])
    return missing


def corrupted_splits(root: Path) -> list[str]:
    """What the set has, as "fog/3"."""
    places, is_arrays = product(KNOWN, SEVERITIES), _is_arrays(root)
    return [f"{n}/{level}" for n, level in places if _is_held(root, n, level, is_arrays)]


def corrupted_notes(root: Path) -> tuple[str, ...]:
    """What keeps it from being whole."""
    try:
        lacking = missing_corruptions(root)
    except InputError as error:
        return (str(error),)
    return (f"of the 15 corruptions it lacks {', '.join(lacking)}",) if lacking else ()


def corrupted_title(root: Path) -> str:
    return set_title(root) or ("CIFAR-C" if _is_arrays(root) else "corrupted images")


def _is_held(root: Path, corruption: str, severity: int, is_arrays: bool) -> bool:
    if is_arrays:
        return (root / f"{corruption}.npy").exists()
    return _severity_folder(root, corruption, severity) is not None


def _is_arrays(root: Path) -> bool:
    return any((root / name).exists() for name in (LABELS, *(f"{name}.npy" for name in KNOWN)))


def _severity_folder(root: Path, corruption: str, severity: int) -> Path | None:
    """The first place that has class folders."""
    for place in (root, *(root / group for group in GROUPS)):
        folder = place / corruption / str(severity)
        if folder.is_dir() and class_folders(folder):
            return folder
    return None


def _check(root: Path, names: Sequence[str], severities: Sequence[int]) -> None:
    for name in names:
        if name not in KNOWN:
            raise unknown("corruption", name, KNOWN)
    for severity in severities:
        if isinstance(severity, bool) or severity not in SEVERITIES:
            raise InputError(f"severity must be 1, 2, 3, 4 or 5, got {severity!r}")
    if not root.is_dir():
        raise InputError(f"no corrupted set at {root}; give the folder that holds the corruptions")
