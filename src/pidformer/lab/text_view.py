"""The Text view: one prompt, two language models."""

from dataclasses import astuple
from functools import lru_cache
from typing import Any

import gradio as gr

from pidformer.errors import InputError
from pidformer.lab.address import from_query, from_values, to_query
from pidformer.lab.knobs import SLIDERS, VIEWS
from pidformer.lab.runs import TEXTS, Catalogue
from pidformer.lab.sharing import (
    QUIET,
    Shared,
    always_last,
    explanation,
    message,
    model_boxes,
    sharing_box,
    slider,
)
from pidformer.lab.text import MOST_CHARACTERS, NOISES, PROMPT, TextKnobs, opened, read
from pidformer.report.templates import page_template

REDDEST = 10.0
"""Loss in nats that has the full colour."""


def text_view(shared: Shared, catalogue: Catalogue) -> gr.Textbox:
    places = catalogue.writers
    names = list(places)
    pair = catalogue.pair(names)
    if pair[0] in TEXTS:
        gr.HTML(VIEWS["text"]["examples"], padding=False, elem_id="text-examples")
    with gr.Row(elem_classes="board"):
        with gr.Column(scale=1, min_width=300):
            one, two = model_boxes("text", names, pair)
            prompt = gr.Textbox(
                PROMPT, label="prompt", lines=4, max_length=MOST_CHARACTERS, elem_id="text-prompt"
            )
            noise = gr.Radio(list(NOISES), value=NOISES[0], label="noise", elem_id="text-noise")
            strength, tokens, temperature = (
                slider("text", TextKnobs, name) for name in SLIDERS["text"]
            )
            button = gr.Button("Read and go on", variant="primary", elem_id="text-go")
        with gr.Column(scale=3, min_width=320):
            with gr.Row(elem_id="text-both"):
                with gr.Column(min_width=280):
                    left = gr.HTML(elem_id="text-left", min_height=120)
                with gr.Column(min_width=280):
                    right = gr.HTML(elem_id="text-right")
            explanation("text")
            address, command, python = sharing_box("text")
    inputs = [one, two, prompt, noise, strength, tokens, temperature]

    def texts_of(*values: Any) -> list[Any]:
        """Address, command and Python of what is chosen, read already or not."""
        try:
            knobs = from_values(TextKnobs, values)
        except InputError:  # said where the answer stands
            return [gr.skip()] * 3
        return [
            to_query("text", knobs),
            "\n".join(knobs.command(places[name]) for name in knobs.models),
            knobs.python(places[knobs.first]),
        ]

    @lru_cache(maxsize=64)
    def result(name: str, knobs: TextKnobs) -> str:
        """The tokens that were read, and those that were written, each with its colour."""
        found = read(opened(places[name]), knobs)
        page = page_template("lab", "read.html.j2")
        return page.render(name=name, found=found, reddest=REDDEST)

    def go_on(*values: Any) -> list[Any]:
        try:
            knobs = from_values(TextKnobs, values)
            shown = [result(name, knobs) for name in knobs.models]
        except InputError as error:
            return [message(str(error)), ""]
        return [*shown, *[""] * (2 - len(shown))]

    always_last(
        [button.click, noise.input, strength.input],
        go_on,
        inputs,
        [left, right],
        api_visibility="private",
        concurrency_limit=2,
        show_progress_on=left,  # one sign is enough
    )
    texts = [address, command, python]
    chosen = [component.input for component in (one, two, noise, strength, tokens, temperature)]
    always_last([*chosen, prompt.blur, button.click], texts_of, inputs, texts, **QUIET)

    def arrive(query: str) -> list[Any]:
        knobs = from_query(TextKnobs, query, "text")
        values = [*knobs.present(names, pair), *astuple(knobs)[2:-1]]  # but the seed
        return [*values, *texts_of(*values)]

    shared.on_arrival(arrive, [*inputs, *texts], shared.on_sight())
    return address
