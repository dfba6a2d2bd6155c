"""`pidformer demo`: what the controller does, in two minutes."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pidformer.cli.options import Jobs, Json, print_json, resumable


def demo(
    out: Path = Path("demo"),
    seeds: int = 2,
    device: str = "cpu",
    jobs: Jobs = None,
    open_report: Annotated[
        bool | None,
        typer.Option("--open/--no-open", help="Open the report; by default on a desktop."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train softmax and PID twins on handwritten digits, attack them, and write a report.

    Needs no data and no GPU, and ends in under two minutes on two cores. Run it again to go on
    where it stopped.

    Example: pidformer demo
    Example: pidformer demo --out my-demo --seeds 4 --json

    Options:
        --out: Folder for runs and report.
        --seeds N: Train with seeds 0 to N - 1.
        --device: cpu, cuda, cuda:N or auto.
    """
    from pidformer.reproduce import demo as run_demo

    with resumable(out):
        found = run_demo(out, seeds=seeds, device=device, jobs=jobs)
    if as_json:
        print_json(found.to_dict())
    else:
        _print(found.to_dict())
    if open_report if open_report is not None else _has_desktop() and not as_json:
        import webbrowser

        webbrowser.open(found.report.resolve().as_uri())


def _has_desktop() -> bool:
    """A person at a terminal, with a screen that is not at the far end of ssh."""
    if not sys.stdout.isatty() or "SSH_CONNECTION" in os.environ or "CI" in os.environ:
        return False
    has_screen = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return has_screen or sys.platform in ("darwin", "win32")


def _print(found: dict[str, Any]) -> None:
    from rich.console import Console

    from pidformer.display import plain_table
    from pidformer.report.demo.models import MODELS

    console = Console()
    seeds = len(found["seeds"])
    table = plain_table(
        title="softmax and PID twins on handwritten digits",
        caption="accuracy in per cent, chance is 10; token similarity in the last layer;\nmean"
        + (f" over {seeds} seeds, ± half their range" if seeds > 1 else ", one seed"),
    )
    eps = f"{found['eps']:g}"
    table.add_column("model", no_wrap=True)
    for heading in ("clean", f"FGSM {eps}", f"PGD {eps}", "token similarity"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in found["models"]:
        cells = [_spread(row[name], 1, seeds > 1) for name in ("clean", "fgsm", "pgd")]
        cells.append(_spread(row["similarity"], 3, seeds > 1))
        table.add_row(MODELS[row["model"]], *cells)
    console.print()
    console.print(table)
    for verdict in found["verdicts"].values():
        console.print()
        console.print(verdict["headline"], highlight=False)
    console.print(f"\n{found['seconds']:.0f} s; report: {found['report']}", soft_wrap=True)


def _spread(values: dict[str, float], digits: int, has_range: bool) -> str:
    mean = f"{values['mean']:.{digits}f}"
    half = (values["high"] - values["low"]) / 2
    return f"{mean} ±{half:.{digits}f}" if has_range else mean
