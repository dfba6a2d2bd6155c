"""`pidformer evaluate`: scores of runs on their validation set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from pidformer.cli.options import Data, Device, Json


def evaluate(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.", metavar="RUN...")],
    data: Data = None,
    gains: Annotated[
        str | None, typer.Option(help="Other gains than the run was trained with: P,I,D[,BETA].")
    ] = None,
    ema: Annotated[bool, typer.Option("--ema", help="Use the averaged weights.")] = False,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Clean accuracy on the validation set, with 95 % intervals.

    Example: pidformer evaluate runs/softmax runs/pid
    """
    from pidformer.training.evaluation import evaluate_run

    found = [evaluate_run(run, data=data, device=device, gains=gains, ema=ema) for run in runs]
    if as_json:
        named = zip(runs, found, strict=True)
        typer.echo(json.dumps([{"run": str(run)} | scores for run, scores in named]))
        return
    table = Table(caption="per cent, Wilson 95 % interval", caption_justify="left")
    for heading in ("run", "top-1", "top-5", "images"):
        table.add_column(heading, justify="left" if heading == "run" else "right")
    for run, scores in zip(runs, found, strict=True):
        cells = [
            f"{scores[name]:.2f} [{scores[f'{name}_low']:.2f}, {scores[f'{name}_high']:.2f}]"
            for name in ("top1", "top5")
        ]
        table.add_row(str(run), *cells, f"{scores['images']:.0f}")
    Console().print(table)
