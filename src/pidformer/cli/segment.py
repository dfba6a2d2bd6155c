"""`pidformer segment`: label the pixels of photographs."""

from pathlib import Path

import typer

from pidformer.cli.options import Device, Json, print_json
from pidformer.errors import InputError


def segment(
    run: Path,
    images: list[Path],
    out: Path = Path("segments"),
    views: str = "single",
    max_windows: int = 32,
    opacity: float = 0.55,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Write NAME.overlay.png (with a legend) and NAME.classes.png (labels, indexed) for each image.

    Example: pidformer segment runs/camvid/pid-seed0 street.jpg --out segments
    Example: pidformer segment runs/ade20k photos/ --views multi --device cuda

    Options:
        run: Folder of a segmentation run.
        images IMAGE: Image files, or folders of them.
        --out: Folder for the pictures.
        --views: single, or multi: six scales, each flipped too.
        --max-windows N: Windows in one pass; fewer need less memory.
        --opacity: Opacity of the colours over the image.
    """
    from pidformer.display import counted
    from pidformer.evaluation.segmentation import label_photographs, segmentation_info
    from pidformer.report.segment_pictures import picture_names, save_segments

    files = _files(images)
    names = picture_names(files)
    labelled = label_photographs(run, files, views=views, max_windows=max_windows, device=device)
    is_shown = len(files) > 1 and not as_json
    shown = counted(labelled, "segmenting", len(files), is_shown=is_shown)
    found = save_segments(shown, names, segmentation_info(run), out, opacity=opacity)
    if as_json:
        print_json(found)
        return
    for entry in found:
        shares = sorted(entry["shares"].items(), key=lambda item: -item[1])[:3]
        typer.echo(
            f"{entry['image']}: {', '.join(f'{name} {share:.1f} %' for name, share in shares)} "
            f"-> {entry['overlay']}"
        )


def _files(given: list[Path]) -> list[Path]:
    from pidformer.data.formats.folders import SUFFIXES

    files: list[Path] = []
    for path in given:
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.suffix.lower() in SUFFIXES)
            if not inside:
                raise InputError(f"folder {path} holds no image ({', '.join(SUFFIXES)})")
            files += inside
        elif path.is_file():
            files.append(path)
        else:
            raise InputError(f"no image at {path}")
    return files
