"""`pidformer generate`: a trained language model writes."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from pidformer.cli.options import Device, Json, OtherGains, Seed


def generate(
    run: Annotated[Path, typer.Argument(help="A run folder, or one written by save_pretrained.")],
    prompt: Annotated[str, typer.Option(help="The text to go on from.")] = "",
    max_tokens: Annotated[int, typer.Option(help="Tokens to write.")] = 100,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.8,
    top_k: Annotated[int, typer.Option(help="Draw from so many tokens; 0 from all.")] = 50,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the likeliest tokens of this total chance.")
    ] = None,
    gains: OtherGains = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Write text with a language model, word by word.

    Example: pidformer generate runs/novels-pid --prompt "It was a dark night"
    """
    from pidformer.devices import as_device
    from pidformer.models.language.generate import generate_text
    from pidformer.runs.model import load_language

    place = as_device(device)
    loaded = load_language(run, gains=gains)

    def show(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    if not as_json:
        show(prompt)
    text = generate_text(
        loaded.model.to(place),
        loaded.tokenizer,
        prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        on_text=(lambda text: None) if as_json else show,
    )
    typer.echo(json.dumps({"prompt": prompt, "text": text}) if as_json else "")
