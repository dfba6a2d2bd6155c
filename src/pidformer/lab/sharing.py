"""What the views share: the address, the box that hands out commands, and messages."""

import html
from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from pidformer.lab.knobs import NOBODY, SLIDERS, VIEWS
from pidformer.report.figures import Drawn
from pidformer.report.panels import picture
from pidformer.report.templates import page_template

QUIET: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
"""For events that answer at once."""
ARRIVE = "() => window.labQuery"


class Shared:
    """What happens when a visitor arrives: each view reads its part of the address."""

    def __init__(self, query: gr.Textbox) -> None:
        self.query = query
        self.view: tuple[str, gr.Tab]
        """The view that is being laid out, and its tab."""
        self._loads: list[tuple[Callable[..., Any], Sequence[Any], Callable[[Any], None]]] = []

    def on_arrival(
        self,
        function: Callable[[str], Any],
        outputs: Sequence[Any],
        after: Callable[[Any], None] = lambda event: None,
    ) -> None:
        """`function(query)` sets `outputs` once the page is there; `after` may chain to it."""
        self._loads.append((function, outputs, after))

    def on_sight(
        self,
        function: Callable[..., Any] | None = None,
        inputs: Sequence[Any] = (),
        outputs: Sequence[Any] = (),
        **how: Any,
    ) -> Callable[[Any], None]:
        """Call `function(query, *inputs)` when a visitor first sees this view.

        By its tab; or by the address, for which what is returned belongs into `on_arrival`. The
        query is the address as they came, else empty, and then nothing is done. Where the view has
        a button that is not pressed yet, it is pressed then.
        """
        name, tab = self.view
        given = [self.query, *inputs]

        def look(query: str, *values: Any) -> Any:
            return function(query, *values) if query and function else gr.skip()

        def listen(event: Callable[..., Any], is_ready: str) -> None:
            js = f"(_, ...v) => [window.labSight('{name}', {is_ready}), ...v]"
            # not queued: of two queued events at once, gradio's page may lose the second answer
            action = look if function else None
            done = event(action, given, list(outputs), js=js, queue=False, **how)
            done.then(None, None, None, js=f"() => window.labGo('{name}', {is_ready})", **QUIET)

        listen(tab.select, "false")
        return lambda event: listen(event.then, "true")

    def wire(self, blocks: gr.Blocks) -> None:
        for function, outputs, after in self._loads:
            after(blocks.load(function, self.query, list(outputs), js=ARRIVE, **QUIET))


def always_last(
    events: Sequence[Any],
    function: Callable[..., Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    **how: Any,
) -> None:
    """One listener for all `events`: two may show their answers in the wrong order."""
    gr.on(events, function, list(inputs), list(outputs), trigger_mode="always_last", **how)


def sharing_box(view: str) -> tuple[gr.Textbox, gr.Code, gr.Code]:
    """Address (hidden), command and Python of what is shown, each with a button that copies it."""
    address = gr.Textbox(visible=False)
    with gr.Row(elem_classes="buttons"):
        buttons = [
            gr.Button(f"Copy the {what}", size="sm", elem_id=f"{view}-copy-{what.lower()}")
            for what in ("address", "command", "Python")
        ]
    with gr.Accordion("The command and the Python for this", open=False, elem_id=f"{view}-share"):
        look: dict[str, Any] = {"interactive": False, "wrap_lines": True}
        few: dict[str, Any] = look | {"lines": 1, "max_lines": 6}
        command = gr.Code(label="Command", language="shell", elem_id=f"{view}-command", **few)
        python = gr.Code(label="Python", language="python", elem_id=f"{view}-python", **look)
    for button, text in zip(buttons, (address, command, python), strict=True):
        whole = "location.origin + location.pathname + text" if text is address else "text"
        button.click(None, text, None, js=f"(text) => window.labCopy({whole}, '{view}')", **QUIET)
    gr.HTML(f'<span id="{view}-copied" role="status"></span>', padding=False)
    # the browser's address stays at what is shown, if this view is; no new page is loaded
    address.change(None, address, None, js=f"(query) => window.labFollow('{view}', query)", **QUIET)
    return address, command, python


def slider(view: str, knobs: type[Any], name: str, prefix: str = "") -> gr.Slider:
    """The slider of a view for one of its knobs, at its default."""
    low, high, step, label, info = SLIDERS[view][name]
    more: dict[str, Any] = {"elem_id": f"{prefix or view}-{name}", "buttons": []}
    default = getattr(knobs, name)
    return gr.Slider(low, high, default, step=step, label=label, info=info or None, **more)


def model_boxes(view: str, names: Sequence[str], pair: Sequence[str]) -> list[gr.Dropdown]:
    """A box for a model and one for its twin, with `pair` chosen."""
    return [
        gr.Dropdown(list(names), value=pair[0], label="model", elem_id=f"{view}-first"),
        gr.Dropdown(
            [NOBODY, *names], value=pair[1], label="and its twin", elem_id=f"{view}-second"
        ),
    ]


def explanation(view: str) -> gr.HTML:
    """A view in a few plain words and its equation."""
    words, equation = VIEWS[view]["words"], html.escape(VIEWS[view]["equation"])
    return gr.HTML(f'<p>{words}</p><div class="equation" tabindex="0">{equation}</div>')


def message(text: str) -> str:
    return f'<div class="message" role="alert">{html.escape(text)}</div>'


def charts_html(drawn: Sequence[Drawn]) -> str:
    """Panels of the report, light and dark, whose points answer to hovering."""
    pictures = [picture(panel, words) for panel, words in drawn]
    return page_template("lab", "pictures.html.j2").render(pictures=pictures)
