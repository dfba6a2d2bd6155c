"""`pidformer data`: look at a folder before training on it, decode it once, index a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pidformer.cli.options import CommandGroup, Json, print_json, register, show_help

if TYPE_CHECKING:
    from pidformer.data.check import Checked, SplitReport

data = typer.Typer(
    cls=CommandGroup,
    help="Look at data sets, or decode one once.\n\nExample: pidformer data check /data/imagenet",
    callback=show_help,
    invoke_without_command=True,
)
_NAMED = 20


def check(folder: Path, sample: int = 200, out: Path | None = None, as_json: Json = False) -> None:
    """Recognise the layout, count splits and classes, decode a sample, and name what is damaged.

    Exit code 1 when something is damaged, 2 when there is no known layout.

    Example: pidformer data check /data/imagenet --out contact.png
    Example: pidformer data check /data/camvid --sample 0 --json

    Options:
        folder DIR: Folder of the data set.
        --sample: Things to decode in each split; 0 for all of them.
        --out: Write a contact sheet here (.png).
    """
    from pidformer.data.check import check_data, check_sheet, contact_sheet

    if out is not None:
        check_sheet(out)
    found = check_data(folder, sample=sample or None)
    if as_json:
        print_json(found.to_dict())
    else:
        _print(found)
    if out is not None:
        if found.pictures:
            contact_sheet(found.pictures, out)
        if not as_json:
            typer.echo(f"contact sheet: {out if found.pictures else 'none, there is no picture'}")
    if not found.is_sound:
        raise typer.Exit(1)


def cache(folder: Path, out: Path, size: int = 256, as_json: Json = False) -> None:
    """Decode an image set once, to uint8 shards that --data of any command takes in its place.

    Size 256 is exact for evaluation at 224 pixels; random crops see less detail than in the files.
    The same command goes on where it was stopped.

    Example: pidformer data cache /data/imagenet --out /fast/imagenet-256

    Options:
        folder DIR: Folder of the image set.
        --out: Folder of the cache.
        --size: Short side that larger images are shrunk to, in pixels.
    """
    from pidformer.data.cache import cache_images
    from pidformer.data.formats.cached import fidelity

    found = cache_images(folder, out, size=size, is_shown=not as_json)
    if as_json:
        print_json(
            {
                split: {
                    "images": len(source),
                    "shrunk": source.shrunk,
                    "unreadable": source.unreadable,
                    "shards": len(source.files),
                }
                for split, source in found.items()
            }
        )
        return
    for split, source in found.items():
        typer.echo(fidelity(split, source))
        if source.unreadable:
            typer.echo(f"{split}: {source.unreadable:,} unreadable, kept as such")


def index(url: str, out: Path, as_json: Json = False) -> None:
    """Index WebDataset shards in an object store, for --data of any command to read them there.

    Every shard is read once. The same command goes on where it was stopped.

    Example: pidformer data index s3://bucket/imagenet --out imagenet-index

    Options:
        url URL: Address that fsspec reads: s3://, gs://, hf://, https://, file:// and others.
        --out: Folder of the index.
    """
    from pidformer.data.formats.indexed import index_images

    found = index_images(url, out, is_shown=not as_json)
    counts = {
        split: {"images": len(source), "shards": len(source.names), "classes": len(source.classes)}
        for split, source in found.items()
    }
    if as_json:
        print_json(counts)
        return
    for split, count in counts.items():
        typer.echo(
            f"{split}: {count['images']:,} images in {count['shards']:,} shard(s), "
            f"{count['classes']:,} classes"
        )


def _print(found: Checked) -> None:
    from rich.console import Console

    from pidformer.display import plain_table

    console = Console()
    console.print(f"{found.folder}: {found.layout}", highlight=False, markup=False)
    table = plain_table()
    for heading in ("split", "count", "classes", "a class", "sizes", "decoded", "damaged"):
        table.add_column(heading, justify="left" if heading in ("split", "sizes") else "right")
    for split in found.splits:
        table.add_row(*_cells(split))
    console.print(table)
    for split in found.splits:
        if split.facts:
            facts = ", ".join(f"{k} {v:,}" if isinstance(v, int) else f"{k} {v}"
                              for k, v in split.facts.items())  # fmt: skip
            typer.echo(f"{split.name}: {facts}")
        if split.error:
            typer.echo(f"damaged: {split.name}: {split.error}")
        for name in split.damaged[:_NAMED]:
            typer.echo(f"damaged: {name}")
        if len(split.damaged) > _NAMED:
            typer.echo(f"damaged: and {len(split.damaged) - _NAMED} more in {split.name}")
    for note in found.notes:
        typer.echo(f"note: {note}")


def _cells(split: SplitReport) -> tuple[str, ...]:
    if split.error:
        return split.name, "-", "-", "-", "-", "-", "all"
    counts = sorted(split.classes.values())
    spread = ""
    if counts:
        spread = str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
    sizes = ", ".join(list(split.sizes)[:2]) + (", ..." if len(split.sizes) > 2 else "")
    return (
        split.name,
        f"{split.count:,}",
        str(len(counts)) if counts else "",
        spread,
        sizes,
        str(split.opened),
        str(len(split.damaged)) if split.damaged else "none",
    )


for command in (check, cache, index):
    register(data, command)
