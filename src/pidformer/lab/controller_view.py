"""The Controller view: sliders on one side, what they do on the other."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import gradio as gr

from pidformer.control.design import DESIGNS
from pidformer.lab.address import from_values
from pidformer.lab.knobs import LIMITS, PRESETS, Knobs
from pidformer.lab.sharing import QUIET, Shared, always_last, explanation, sharing_box
from pidformer.lab.static import EQUATION, WORDS, charts_html

DRAW = "(...values) => { window.labDraw(values); }"
"""Verdict and charts are made by the browser: they answer to a slider in one frame."""
NAMES = [field.name for field in fields(Knobs)]


def controller_view(shared: Shared) -> gr.Textbox:
    """Lay it out and connect it; the box that holds its address."""
    with gr.Row(elem_classes="board"):
        with gr.Column(scale=1, min_width=300):
            gr.HTML("Presets", padding=False, elem_classes="small-head")
            with gr.Row(elem_classes="buttons"):
                presets = {
                    n: gr.Button(n, size="sm", min_width=40, elem_id=f"preset-{n}") for n in PRESETS
                }
            gr.HTML("Design for me", padding=False, elem_classes="small-head")
            with gr.Row(elem_classes="buttons"):
                designs = {
                    k: gr.Button(
                        k, size="sm", min_width=40, variant="primary", elem_id=f"design-{k}"
                    )
                    for k in DESIGNS
                }
            with gr.Group(elem_classes="knobs"):
                sliders = [_knob(name) for name in NAMES]
        with gr.Column(scale=3, min_width=320):
            gr.HTML(
                '<div class="verdict" role="status" aria-live="polite"></div>', elem_id="verdict"
            )
            gr.HTML(charts_html(), elem_id="charts", padding=False)
            explanation(WORDS, EQUATION)
            address, command, python = sharing_box("controller")
    shown = [address, command, python]

    def show(*values: Any) -> list[Any]:
        return _show(from_values(Knobs, values))

    def turn(knobs: Knobs) -> list[Any]:
        return [*_values(knobs), *_show(knobs)]

    def preset(name: str) -> Any:
        def set_gains(*values: Any) -> list[Any]:
            return turn(replace(from_values(Knobs, values), **PRESETS[name]))

        return set_gains

    def design(kind: str) -> Any:
        def set_gains(*values: Any) -> list[Any]:
            knobs = from_values(Knobs, values)
            if knobs.kappa_min == -1:
                return turn(knobs)  # there are none, as the verdict says
            return turn(knobs.designed(kind))

        return set_gains

    for slider in sliders:
        slider.input(None, sliders, None, js=DRAW, **QUIET)  # the picture needs no server
    always_last([slider.input for slider in sliders], show, sliders, shown, **QUIET)
    changes = [(button, preset(name)) for name, button in presets.items()]
    for button, change in (*changes, *((b, design(kind)) for kind, b in designs.items())):
        button.click(change, sliders, [*sliders, *shown], **QUIET).then(
            None, sliders, None, js=DRAW, **QUIET
        )
    shared.on_arrival(
        lambda query: turn(Knobs.from_query(query)),
        [*sliders, *shown],
        lambda event: event.then(None, sliders, None, js=DRAW, **QUIET),
    )
    return address


def _knob(name: str) -> gr.components.Component:
    default = Knobs.__dataclass_fields__[name].default
    if name == "causal":
        return gr.Checkbox(default, label="causal attention", elem_id="knob-causal")
    low, high, step, label, info = LIMITS[name]
    return gr.Slider(
        low, high, default, step=step, label=label, info=info, elem_id=f"knob-{name}", buttons=[]
    )


def _values(knobs: Knobs) -> list[Any]:
    return [getattr(knobs, name) for name in NAMES]


def _show(knobs: Knobs) -> list[Any]:
    return [knobs.to_query(), knobs.command(), knobs.python()]
