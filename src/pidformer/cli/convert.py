"""`pidformer convert`: a controller for a model that others trained."""

from pathlib import Path
from typing import Any

import typer

from pidformer.cli.options import Json, print_json
from pidformer.errors import InputError


def convert(
    model: str,
    gains: str,
    out: Path,
    layers: str | None = None,
    first_layer: str = "free",
    as_json: Json = False,
) -> None:
    """Put a controller into a model: same weights, in a folder that other commands take.

    Example: pidformer convert timm:deit_tiny_patch16_224 --gains 0.4,0.1,0.05 --out runs/deit-pid
    Example: pidformer convert runs/softmax --gains 0.4,0.1,0.05 --out runs/softmax-pid, then
    pidformer train finetune/tiny_imagenet_100_pid.yaml model.init=runs/softmax-pid

    Options:
        model: timm:NAME, timm:NAME@FILE, a run folder, or a Hugging Face folder.
        --gains: P,I,D[,BETA], or a preset: default, deit, segmenter, lm; or another method: xsa,
            laplacian, resformer.
        --out: New folder for the converted model.
        --layers: Layers to control, as 4-11 or 1,3,5; all by default.
        --first-layer: free: sets the reference; controlled: is controlled too.
    """
    from pidformer.training.converted import convert_run

    chosen: Any = first_layer
    found = convert_run(
        model, gains, out, layers=_layers(layers) if layers else None, first_layer=chosen
    )
    if as_json:
        print_json(found)
    else:
        typer.echo(f"{out}: {found['model']} with {gains}")


def _layers(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        own = (low, high if dash else low)
        if not all(end.isdecimal() for end in own) or int(own[0]) > int(own[1]):
            raise InputError(f"layers must be numbers or ranges, as 1,3 or 4-11, got {text!r}")
        found += range(int(own[0]), int(own[1]) + 1)
    return found
