"""`pidformer publish`: a run as a folder for a model hub."""

from pathlib import Path

import typer

from pidformer.cli.options import Json, print_json


def publish(
    run: Path, out: Path, license: str | None = None, ema: bool = False, as_json: Json = False
) -> None:
    """Write a folder to push to a model hub: weights, what builds the model, and a model card.

    The card has the gains, the scores in the run's records with their intervals, the commands that
    load and train the model, licence and citation. `pf.load(DIR)` loads a run of images, Hugging
    Face's AutoModelForCausalLM one of language. Nothing in the folder names a path of this machine.

    Example: pidformer publish runs/pid --out pid-deit-tiny
    Example: pidformer publish runs/novels --out novels --license apache-2.0

    Options:
        run: A run folder of any task.
        --out: The folder to write: new, or empty.
        --license: Licence of the weights, for the card: apache-2.0, cc-by-4.0, ...
        --ema: The averaged weights.
    """
    from pidformer.report.hub import publish_run

    publish_run(run, out, weights="ema" if ema else "auto", license=license)
    sizes = {path.name: path.stat().st_size for path in sorted(out.iterdir())}
    if as_json:
        print_json({"folder": str(out), "files": sizes})
        return
    typer.echo(f"{out}: {', '.join(sizes)} ({sum(sizes.values()) / 1e6:.1f} MB)")
