"""`pidformer export`: a trained model for other runtimes."""

from pathlib import Path
from typing import Annotated, Any

import typer

from pidformer.cli.options import Json, OtherGains, print_json
from pidformer.errors import InputError


def export(
    run: Annotated[Path, typer.Argument(help="A run folder, or a converted Hugging Face folder.")],
    out: Annotated[Path, typer.Option(help="What to write: model.onnx or model.pt2.")],
    format: Annotated[
        str | None,
        typer.Option(help="onnx or pt2; by the suffix of --out if not given."),
    ] = None,
    gains: OtherGains = None,
    ema: Annotated[bool, typer.Option("--ema", help="The averaged weights.")] = False,
    cache: Annotated[
        bool,
        typer.Option("--cache", help="A language model that takes and gives keys and values."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a run's model as ONNX or as a program of torch.export, for batches of any size.

    The file is kept only if its logits are within 1e-4 of PyTorch's on random input. For a folder
    that a model hub takes, see pidformer publish.

    Example: pidformer export runs/pid --out pid.onnx

    Example: pidformer export runs/pid --format pt2 --out pid.pt2

    Example: pidformer export runs/novels --cache --out novels.onnx
    """
    if format == "hub":
        raise InputError("a folder for a hub is made by pidformer publish RUN --out DIR")
    from pidformer.export import export as write

    chosen: Any = format
    found = write(run, out, format=chosen, gains=gains, ema=ema, cache=cache)
    if as_json:
        print_json(found)
        return
    takes = found["input"]
    typer.echo(
        f"{out}: takes {takes['name']} {takes['shape']}, logits within {found['difference']:.1e} "
        "of PyTorch's"
    )
