"""`pidformer analyze`: rank collapse, attention spectra and certificates of trained models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pidformer.cli.options import (
    Data,
    Device,
    Json,
    Models,
    Seed,
    command_line,
    print_facts,
    print_json,
)

if TYPE_CHECKING:
    from pidformer.analysis.summary import Analysis


def analyze(
    models: Models,
    data: Data = None,
    out: Path = Path("analysis"),
    limit: int = 1000,
    spectrum_limit: int = 64,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """What happens to the tokens: similarity by layer, spectra of attention, a certificate.

    Also written to each run's results.jsonl; figures of all runs side by side go to --out.

    Example: pidformer analyze runs/softmax runs/pid
    Example: pidformer analyze runs/pid --data /data/imagenet --limit 1000 --json

    Options:
        --out: Folder for the figures.
        --limit: Images for token similarity and ranks.
        --spectrum-limit: Images for spectra and certificate, which cost more.
    """
    from pidformer import ranks
    from pidformer.evaluation.analysis import analyze as measure
    from pidformer.report.analysis_figures import analysis_figures

    found = measure(
        models,
        data=data,
        out=out,
        limit=limit,
        spectrum_limit=spectrum_limit,
        seed=seed,
        device=ranks.join(device),
        command=command_line(),
        is_shown=not as_json and ranks.is_main(),
        for_figures=True,
    )
    if not ranks.is_main():
        return
    figures = [str(path) for path in analysis_figures(found, out)]
    if as_json:
        shown = [model.to_dict() for model in found]
        print_json({"models": shown, "figures": figures})
    else:
        _print(found, figures)


def _print(found: Sequence[Analysis], figures: Sequence[str]) -> None:
    from rich.console import Console

    from pidformer.analysis.certificate import LEAVES_OUT
    from pidformer.report.terminal_tables import analysis_table

    console = Console()
    console.print()
    console.print(analysis_table(found))
    for model in found:
        console.print(f"\n{model.label}", style="bold", highlight=False)
        console.print(model.verdict, highlight=False, soft_wrap=True)
        print_facts(console, model.in_words())
    console.print(f"\n{LEAVES_OUT}", highlight=False)
    console.print("\nfigures: " + ", ".join(figures), soft_wrap=True)
