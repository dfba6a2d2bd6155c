"""What the views share: the look, the address, and the box that hands out commands."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from pidformer.report.style import BAD, GOOD

QUIET: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
"""For events that answer at once."""

CSS = f"""
#lab-head h1 {{ font-size: 1.5rem; margin: 0; }}
#lab-head p {{ margin: .1rem 0 0; opacity: .75; }}
.gradio-container {{ max-width: min(1500px, 100vw) !important; margin: 0 auto !important; }}
.js-plotly-plot text {{ fill: var(--body-text-color) !important; }}
.js-plotly-plot .modebar {{ display: none; }}
.buttons {{ gap: .35rem !important; flex-wrap: wrap; }}
.buttons > button {{ flex: 0 0 auto !important; width: auto !important;
  padding: .25rem .55rem !important; min-width: max-content !important; }}
.small-head {{ font-size: .85rem; opacity: .8; margin-bottom: -.6rem; }}
.charts {{ --ink: var(--body-text-color); --soft: var(--body-text-color-subdued);
  --line: var(--border-color-primary); --card: var(--background-fill-secondary);
  --ground: var(--background-fill-primary); }}
.charts figcaption button {{ border: 1px solid var(--line) !important; border-radius: 6px;
  padding: 0 .6rem !important; font-size: .84rem !important; font-weight: 400 !important;
  background: var(--card) !important; }}
.charts figcaption {{ font-size: .84rem; margin-top: .3rem; opacity: .85; }}
.verdict {{ border-left: 5px solid #8a8f98; background: var(--background-fill-secondary);
  padding: .6rem .9rem; border-radius: 0 6px 6px 0; }}
.verdict.good {{ border-color: {GOOD}; }}
.verdict.bad {{ border-color: {BAD}; }}
.verdict p {{ margin: .2rem 0; }}
.verdict p:first-child {{ font-weight: 600; }}
.equation {{ font-family: var(--font-mono); font-size: .9rem; white-space: pre; overflow-x: auto;
  padding: .5rem .7rem; background: var(--background-fill-secondary); border-radius: 6px; }}
#attack-shown {{ min-height: 5rem; }}
#attack-shown:has(.progress-level) .html-container {{ visibility: hidden; }}
.cm-line span {{ color: inherit !important; }}
.strip {{ display: flex; flex-wrap: wrap; gap: .8rem; }}
.strip figure {{ margin: 0; text-align: center; }}
.strip img {{ width: 168px; height: 168px; image-rendering: pixelated; border-radius: 4px;
  border: 1px solid var(--border-color-primary); }}
.strip figcaption {{ font-size: .85rem; max-width: 168px; }}
.attacked {{ margin-bottom: 1.4rem; }}
.attacked .strip {{ margin-top: .7rem; }}
.chances {{ flex: 1 1 280px; }}
.report-frame {{ width: 100%; height: 80vh; border: 1px solid var(--border-color-primary);
  border-radius: 6px; background: white; }}
.bars {{ display: grid; grid-template-columns: minmax(3rem, auto) 1fr 4rem; gap: .15rem .6rem;
  align-items: center; font-variant-numeric: tabular-nums; font-size: .9rem; max-width: 34rem; }}
.bars .bar {{ height: .8rem; border-radius: 2px; min-width: 1px; }}
.bars .name {{ text-align: right; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }}
.words {{ line-height: 2; overflow-wrap: anywhere; }}
.words span {{ border-radius: 3px; padding: .12rem 0; white-space: pre-wrap; }}
.read h2 {{ margin: 0; font-size: 1.05rem; }}
.read h3 {{ margin: .6rem 0 0; font-size: .85rem; font-weight: 400; opacity: .8; }}
button[role=tab].selected {{ color: var(--primary-700) !important; }}
.dark button[role=tab].selected {{ color: var(--primary-300) !important; }}
.read .words {{ margin: 0; }}
.scale {{ display: flex; gap: .4rem; align-items: center; font-size: .8rem; margin-top: .8rem; }}
.scale i {{ flex: 0 1 8rem; height: .7rem; border-radius: 3px;
  background: linear-gradient(90deg, rgba(217,98,43,0), rgba(217,98,43,.85)); }}
.message {{ border-left: 5px solid {BAD}; padding: .5rem .8rem; }}
.lab-table {{ overflow-x: auto; }}
.lab-table table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
.lab-table th, .lab-table td {{ padding: .3rem .6rem; text-align: right;
  border-bottom: 1px solid var(--border-color-primary); vertical-align: top; }}
.lab-table th:first-child {{ text-align: left; }}
.lab-table small {{ display: block; opacity: .75; }}
@media (max-width: 640px) {{
  .gradio-container {{ padding: .4rem !important; }}
  .gradio-container main.contain, .gradio-container .tabitem {{ padding: 0 !important; }}
  .knobs .form {{ display: grid !important; grid-template-columns: 1fr 1fr; }}
  .knobs .info-text {{ display: none; }}
  .strip {{ gap: .4rem; }}
  .strip figure {{ flex: 1 1 28%; }}
  .strip img {{ width: 100%; height: auto; aspect-ratio: 1; }}
  .chances {{ flex: 1 0 100%; }}
}}
"""


HEAD = """<script>
window.labQuery = window.location.search;  // as the visitor came; the address moves later
window.labFollow = (view, query) => {
  const shown = new URLSearchParams(window.location.search).get("view") || "controller";
  if (window.labArrived && query && view === shown && query !== window.location.search)
    window.history.replaceState(null, "", window.location.pathname + query);
};
window.labTurnTo = (view, query) => {
  if (window.labArrived)
    window.history.replaceState(null, "", window.location.pathname + (query || "?view=" + view));
};
window.labCopy = async (text, view) => {
  const tell = (words) => { document.getElementById(view + "-copied").textContent = words; };
  const area = Object.assign(document.createElement("textarea"), { value: text });
  try {
    await navigator.clipboard.writeText(text);
    tell("copied");
  } catch {  // not allowed, or the page is not from this machine
    document.body.append(area);
    area.select();
    tell(document.execCommand("copy") ? "copied" : "the browser forbids copying");
    area.remove();
  }
  setTimeout(() => tell(""), 1500);
};
</script>"""
ARRIVE = "() => window.labQuery"


class Shared:
    """What happens when a visitor arrives: each view reads its part of the address."""

    def __init__(self, query: gr.Textbox) -> None:
        self.query = query
        self._loads: list[tuple[Callable[..., Any], Sequence[Any], Callable[[Any], None]]] = []

    def on_arrival(
        self,
        function: Callable[[str], Any],
        outputs: Sequence[Any],
        after: Callable[[Any], None] = lambda event: None,
    ) -> None:
        """`function(query)` sets `outputs` once the page is there; `after` may go on from it."""
        self._loads.append((function, outputs, after))

    def wire(self, blocks: gr.Blocks) -> None:
        for function, outputs, after in self._loads:
            after(blocks.load(function, self.query, list(outputs), js=ARRIVE, **QUIET))


def sharing_box(view: str) -> tuple[gr.Textbox, gr.Code, gr.Code]:
    """Address, command and Python of what is shown, each with a button that copies it.

    The box of the address is not shown: the browser's own address follows it.
    """
    address = gr.Textbox(visible=False)
    with gr.Row(elem_classes="buttons"):
        buttons = [
            gr.Button(f"Copy the {what}", size="sm", elem_id=f"{view}-copy-{what.lower()}")
            for what in ("address", "command", "Python")
        ]
    with gr.Accordion("The command and the Python for this", open=False, elem_id=f"{view}-share"):
        command = gr.Code(
            label="Command",
            language="shell",
            interactive=False,
            lines=1,
            max_lines=6,
            wrap_lines=True,
            elem_id=f"{view}-command",
        )
        python = gr.Code(
            label="Python",
            language="python",
            interactive=False,
            wrap_lines=True,
            elem_id=f"{view}-python",
        )
    for button, text in zip(buttons, (address, command, python), strict=True):
        whole = "location.origin + location.pathname + text" if text is address else "text"
        button.click(None, text, None, js=f"(text) => window.labCopy({whole}, '{view}')", **QUIET)
    gr.HTML(f'<span id="{view}-copied" role="status"></span>', padding=False)
    follow_address(view, address)
    return address, command, python


def follow_address(view: str, address: gr.Textbox) -> None:
    """Keep the browser's address at what is shown, if this view is; no new page is loaded."""
    address.change(None, address, None, js=f"(query) => window.labFollow('{view}', query)", **QUIET)


def explanation(words: str, equation: str) -> gr.HTML:
    """A few plain words and the equation."""
    return gr.HTML(
        f'<p>{words}</p><div class="equation" tabindex="0">{html.escape(equation)}</div>'
    )


def message(text: str) -> str:
    """Something went wrong, in one line."""
    return f'<div class="message" role="alert">{html.escape(text)}</div>'
