"""`pidformer train`: one recipe into one run folder."""

from pathlib import Path

import typer

from pidformer.cli.options import Data, Device, Json, print_json

_LINES = {
    "miou": "mIoU {miou:.2f} %, pixel accuracy {pixel_accuracy:.2f} %, "
    "mean accuracy {mean_accuracy:.2f} %",
    "ppl": "perplexity {ppl:.2f}, {bits_per_character:.3f} bits/character",
    "top1": "top-1 {top1:.2f} % [{top1_low:.2f}, {top1_high:.2f}], top-5 {top5:.2f} %",
}
"""What is said at the end, by the score that tells the task."""


def train(
    recipe: str,
    overrides: list[str] | None = None,
    out: Path | None = None,
    data: Data = None,
    device: Device = "auto",
    seed: int | None = None,
    as_json: Json = False,
) -> None:
    """Train a recipe; run the same command again to go on where it stopped.

    Example: pidformer train digits/pid.yaml --out runs/pid
    Example: torchrun --nproc_per_node 8 -m pidformer train imagenet/deit_tiny_pid.yaml
    --data /data/imagenet optim.lr=1e-3 model.gains=0.4,0.1,0.05,1

    Options:
        recipe: A recipe file, or the name of a shipped one.
        overrides: section.key=value, as optim.lr=1e-3.
        --out: Run folder; runs/RECIPE-seedN by default.
        --seed: Same as seed=N.
    """
    from pidformer.interrupts import Interrupted, exit_code
    from pidformer.training.engine import is_main_process
    from pidformer.training.recipe import load_recipe, recipe_name
    from pidformer.training.run import train as run_training

    given = list(overrides or []) + ([] if seed is None else [f"seed={seed}"])
    chosen = load_recipe(recipe, given)
    folder = out or Path("runs") / f"{recipe_name(recipe)}-seed{chosen.seed}"
    try:
        scores = run_training(
            chosen,
            folder,
            data=data,
            device=device,
            compile_on_cpu=any(text.strip().startswith("train.compile") for text in given),
        )
    except Interrupted as stopped:  # a signal while compiling saves nothing, and goes further up
        if is_main_process():
            typer.echo(f"saved in {folder}; run the same command to go on", err=True)
        raise typer.Exit(exit_code(stopped)) from None
    if not is_main_process():
        return
    if as_json:
        print_json({"run": str(folder)} | scores)
    else:
        line = next(line for score, line in _LINES.items() if score in scores)
        typer.echo(f"{folder}: {line.format(**scores)}")
