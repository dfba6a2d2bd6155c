"""`pidformer generate`: a trained language model writes."""

import json
from functools import partial
from pathlib import Path

import typer

from pidformer.cli.options import Device, Json, OtherGains, Seed


def generate(
    run: Path,
    prompt: str = "",
    max_tokens: int = 100,
    temperature: float = 0.8,
    top_k: int = 50,
    top_p: float | None = None,
    gains: OtherGains = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Write text with a language model, word by word.

    Example: pidformer generate runs/novels-pid --prompt "It was a dark night"

    Options:
        run: A run folder, or one written by save_pretrained.
        --prompt: The text to go on from.
        --max-tokens: Tokens to write.
        --temperature: 0 takes the likeliest token.
        --top-k: Draw from so many tokens; 0 from all.
        --top-p: Draw from the likeliest tokens of this total chance.
    """
    from pidformer.devices import as_device
    from pidformer.models.language.generate import generate_text
    from pidformer.runs.model import load_language

    place = as_device(device)
    loaded = load_language(run, gains=gains)
    show = partial(print, end="", flush=True)
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
