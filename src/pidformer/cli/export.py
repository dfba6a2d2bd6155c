"""`pidformer export`: a trained model for other runtimes."""

from pathlib import Path
from typing import Any

import typer

from pidformer.cli.options import Json, OtherGains, print_json
from pidformer.errors import InputError


def export(
    run: Path,
    out: Path,
    format: str | None = None,
    gains: OtherGains = None,
    ema: bool = False,
    cache: bool = False,
    as_json: Json = False,
) -> None:
    """Write a run's model as ONNX or as a program of torch.export, for batches of any size.

    The file is kept only if its logits are within 1e-4 of PyTorch's on random input. For a folder
    that a model hub takes, see pidformer publish.

    Example: pidformer export runs/pid --out pid.onnx
    Example: pidformer export runs/pid --format pt2 --out pid.pt2
    Example: pidformer export runs/novels --cache --out novels.onnx

    Options:
        run: A run folder, or a converted Hugging Face folder.
        --out: What to write: model.onnx or model.pt2.
        --format: onnx or pt2; by the suffix of --out if not given.
        --ema: The averaged weights.
        --cache: A language model that takes and gives keys and values.
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
