"""The Text view: one prompt, two language models."""

from __future__ import annotations

import html
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import gradio as gr

from pidformer.errors import InputError
from pidformer.lab.address import from_query, from_values, to_query, view_of
from pidformer.lab.runs import NOBODY, TEXTS, Shelf, named_models
from pidformer.lab.sharing import QUIET, Shared, always_last, explanation, message, sharing_box
from pidformer.lab.text import (
    MOST_CHARACTERS,
    NOISES,
    PROMPT,
    Read,
    TextKnobs,
    Token,
    opened,
    read,
)

WORDS = (
    "The models read the prompt as noise left it and guess each true token that follows; the "
    "colour of a token that was read is the loss of that guess. Then each goes on writing from "
    "what it has read; the colour of a token that was written is its own loss. The redder, the "
    "more surprised."
)
EQUATION = """\
loss(j) = -log P(true token j + 1 | disturbed tokens 1..j)      perplexity = exp(mean loss)"""
REDDEST = 10.0
"""Loss in nats that has the full colour."""
EXAMPLES = (
    "<p>No language model was named; these are examples of 57,632 weights, which have read 24 "
    "novels once, a softmax model and its twin with a controller. With a train.txt, valid.txt and "
    "test.txt in DIR, <code>pidformer train novels/pid.yaml --data DIR --out runs/lm</code> makes "
    "a larger one, and <code>pidformer lab --run runs/lm</code> shows it here.</p>"
)


def text_view(shared: Shared, shelf: Shelf) -> gr.Textbox:
    """Lay it out and connect it; the box that holds its address."""
    places = shelf.writers
    names = list(places)
    first, second = shelf.pair(names)
    if first in TEXTS:
        gr.HTML(EXAMPLES, padding=False, elem_id="text-examples")
    with gr.Row(elem_classes="board"):
        with gr.Column(scale=1, min_width=300):
            one = gr.Dropdown(names, value=first, label="model", elem_id="text-first")
            two = gr.Dropdown(
                [NOBODY, *names], value=second, label="and its twin", elem_id="text-second"
            )
            prompt = gr.Textbox(
                PROMPT, label="prompt", lines=4, max_length=MOST_CHARACTERS, elem_id="text-prompt"
            )
            noise = gr.Radio(list(NOISES), value=NOISES[0], label="noise", elem_id="text-noise")
            strength = gr.Slider(
                0, 5, 0, step=1, label="strength of the noise", buttons=[], elem_id="text-strength"
            )
            tokens = gr.Slider(1, 200, 40, step=1, label="tokens to write", buttons=[])
            temperature = gr.Slider(
                0, 2, 0.8, step=0.1, label="temperature", info="0: the likeliest", buttons=[]
            )
            button = gr.Button("Read and go on", variant="primary", elem_id="text-go")
        with gr.Column(scale=3, min_width=320):
            with gr.Row(elem_id="text-both"):
                with gr.Column(min_width=280):
                    left = gr.HTML(elem_id="text-left", min_height=120)
                with gr.Column(min_width=280):
                    right = gr.HTML(elem_id="text-right")
            explanation(WORDS, EQUATION)
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
            "\n".join(knobs.command(places[name]) for name in named_models(knobs)),
            knobs.python(places[knobs.first]),
        ]

    @lru_cache(maxsize=64)
    def result(name: str, knobs: TextKnobs) -> str:
        return text_html(name, read(opened(places[name]), knobs))

    def go_on(*values: Any) -> list[Any]:
        try:
            knobs = from_values(TextKnobs, values)
            shown = [result(name, knobs) for name in named_models(knobs)]
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
        is_here = view_of(query, ("", "text")) == "text"
        knobs = from_query(TextKnobs, query if is_here else "")
        values = [
            knobs.first if knobs.first in names else first,
            knobs.second if knobs.second in (NOBODY, *names) else second,
            knobs.prompt,
            knobs.noise,
            knobs.strength,
            knobs.tokens,
            knobs.temperature,
        ]
        return [*values, *texts_of(*values)]

    shared.on_arrival(arrive, [*inputs, *texts], shared.on_sight())
    return address


def text_html(name: str, found: Read) -> str:
    """The tokens that were read, those that were written, each with its colour, and the scale."""
    cost = f"perplexity {found.perplexity:.4g}" if found.losses else "nothing was guessed"
    return (
        f'<section class="read"><h2>{html.escape(name)}</h2><p>{cost} over {len(found.losses)} '
        f'guesses</p><h3>read</h3><p class="words">{_spans(found.tokens)}</p>'
        f'<h3>written</h3><p class="words written">{_spans(found.written)}</p>'
        f'<p class="scale"><span>0</span><i></i><span>{REDDEST:g}&nbsp;nats</span></p></section>'
    )


def _spans(tokens: Sequence[Token]) -> str:
    spans = []
    for token in tokens:
        share = 0.0 if token.loss is None else min(1.0, token.loss / REDDEST)
        title = "nothing to guess" if token.loss is None else f"{token.loss:.2f}"
        title += f" for {token.target!r}" if token.target else ""
        text = token.text.replace("\n", " ↵")  # a line that ends
        spans.append(
            f'<span style="background:rgba(217,98,43,{0.85 * share:.2f})" '
            f'title="{html.escape(title)}">{html.escape(text)}</span>'
        )
    return "".join(spans)
