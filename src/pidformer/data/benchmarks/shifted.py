"""ImageNet-A, ImageNet-R, ImageNet-O: a folder for each class, no splits."""

from pathlib import Path

from pidformer.data.benchmarks.names import set_name
from pidformer.data.formats.folders import FolderImages, class_folders
from pidformer.data.imagenet import SUBSETS, subset_classes
from pidformer.errors import InputError, some


def shifted_splits(root: Path) -> list[str]:
    """ "all" where the folder has the name of one of the three sets."""
    return ["all"] if set_name(root) in SUBSETS else []


def open_shift(root: Path) -> FolderImages:
    """The images of `root`/<class>/*; files beside the class folders (README.txt) do not count.

    Classes are the folder names, sorted. When `root` bears the name of one of the three sets they
    must be its 200 classes.
    """
    if not root.is_dir():
        raise InputError(f"no image set at {root}; give the folder that holds <class>/<image>.jpg")
    classes = class_folders(root)
    name = set_name(root)
    if name in SUBSETS:
        _check_classes(root, name, classes)
    if not classes:
        raise InputError(f"no class folder in {root}; expected {root}/<class>/<image>.jpg")
    return FolderImages(root, classes)


def _check_classes(root: Path, name: str, found: tuple[str, ...]) -> None:
    known = subset_classes(name)
    missing, foreign = sorted(set(known) - set(found)), sorted(set(found) - set(known))
    faults = [
        f"{len(names)} {what}: {some(names)}"
        for what, names in (("missing", missing), ("foreign", foreign))
        if names
    ]
    if faults:
        raise InputError(
            f"{root} is not the {len(known)} class folders of {name}; {'; '.join(faults)}; "
            "unpack the archive again, or rename a folder that is another set"
        )
