"""The Controller view: sliders on one side, what they do on the other."""

from collections.abc import Callable
from dataclasses import astuple, fields, replace
from functools import partial
from typing import Any

import gradio as gr

from pidformer.control.design import DESIGNS
from pidformer.errors import InputError
from pidformer.lab.address import from_values
from pidformer.lab.knobs import PRESETS, VIEWS, Knobs
from pidformer.lab.sharing import QUIET, Shared, always_last, explanation, sharing_box, slider
from pidformer.lab.static import charts_html

DRAW = "(...values) => { window.labDraw(values); }"
"""Verdict and charts are made by the browser: they answer to a slider in one frame."""
NAMES = [field.name for field in fields(Knobs)]
BOXES = VIEWS["controller"]["boxes"]


def controller_view(shared: Shared) -> gr.Textbox:
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
                sliders = [
                    gr.Checkbox(False, elem_id=f"knob-{name}", label=BOXES[name]["label"])
                    if name in BOXES
                    else slider("controller", Knobs, name, prefix="knob")
                    for name in NAMES
                ]
        with gr.Column(scale=3, min_width=320):
            gr.HTML(
                '<div class="verdict" role="status" aria-live="polite"></div>', elem_id="verdict"
            )
            gr.HTML(charts_html(), elem_id="charts", padding=False)
            explanation("controller")
            address, command, python = sharing_box("controller")
    shown = [address, command, python]

    def show(*values: Any) -> list[Any]:
        return _show(from_values(Knobs, values))

    def turn(knobs: Knobs) -> list[Any]:
        return [*astuple(knobs), *_show(knobs)]

    def designed(kind: str, knobs: Knobs) -> Knobs:
        try:
            return knobs.designed(kind)
        except InputError:  # at kappa_min -1, or with this d, no gains are stable
            return knobs

    changes: dict[gr.Button, Callable[[Knobs], Knobs]] = {
        button: partial(replace, **PRESETS[name]) for name, button in presets.items()
    } | {button: partial(designed, kind) for kind, button in designs.items()}
    for knob in sliders:
        knob.input(None, sliders, None, js=DRAW, **QUIET)  # the picture needs no server
    always_last([knob.input for knob in sliders], show, sliders, shown, **QUIET)
    for button, change in changes.items():
        event = button.click(
            lambda *values, change=change: turn(change(from_values(Knobs, values))),
            sliders,
            [*sliders, *shown],
            **QUIET,
        )
        event.then(None, sliders, None, js=DRAW, **QUIET)
    shared.on_arrival(
        lambda query: turn(Knobs.from_query(query)),
        [*sliders, *shown],
        lambda event: event.then(None, sliders, None, js=DRAW, **QUIET),
    )
    return address


def _show(knobs: Knobs) -> list[Any]:
    return [knobs.to_query(), knobs.command(), knobs.python()]
