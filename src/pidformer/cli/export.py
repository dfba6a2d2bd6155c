"""`pidformer export`: a trained model for other runtimes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from pidformer.cli.options import Json
from pidformer.errors import InputError

HUB = "hub"


def export(
    run: Annotated[Path, typer.Argument(help="A run folder, or a converted Hugging Face folder.")],
    out: Annotated[
        Path, typer.Option(help="What to write: model.onnx, model.pt2, or a folder for hub.")
    ],
    format: Annotated[
        str | None,
        typer.Option(help="onnx, pt2 or hub; by the suffix of --out if not given."),
    ] = None,
    gains: Annotated[
        str | None, typer.Option(help="Other gains than the run was trained with: P,I,D[,BETA].")
    ] = None,
    ema: Annotated[bool, typer.Option("--ema", help="The averaged weights.")] = False,
    cache: Annotated[
        bool,
        typer.Option("--cache", help="A language model that takes and gives keys and values."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a run's model as ONNX or as a program of torch.export, for batches of any size.

    The file is kept only if its logits are within 1e-4 of PyTorch's on random input. `--format hub`
    writes a language run as a folder that Hugging Face's tools load, with a model card.

    Example: pidformer export runs/pid --out pid.onnx

    Example: pidformer export runs/pid --format pt2 --out pid.pt2

    Example: pidformer export runs/novels --cache --out novels.onnx

    Example: pidformer export runs/novels --format hub --out novels
    """
    if format == HUB:
        _export_folder(run, out, gains, ema, cache, as_json)
        return
    from pidformer.export import export as write

    chosen: Any = format
    found = write(run, out, format=chosen, gains=gains, ema=ema, cache=cache)
    if as_json:
        typer.echo(json.dumps(found))
        return
    takes = found["input"]
    typer.echo(
        f"{out}: takes {takes['name']} {takes['shape']}, logits within {found['difference']:.1e} "
        "of PyTorch's"
    )


def _export_folder(
    run: Path, out: Path, gains: str | None, ema: bool, cache: bool, as_json: bool
) -> None:
    from pidformer.report.hub import export_language

    if gains is not None or cache:
        raise InputError("--gains and --cache are for onnx and pt2; leave them out with hub")
    export_language(run, out, weights="ema" if ema else "auto")
    typer.echo(json.dumps({"folder": str(out), "format": HUB}) if as_json else f"{out}: written")
