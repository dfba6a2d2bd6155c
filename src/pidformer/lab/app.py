"""The page: four views on one gradio application."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from pidformer.lab.address import view_of
from pidformer.lab.attack_view import attack_view
from pidformer.lab.controller_view import controller_view
from pidformer.lab.pictures import MOST_BYTES
from pidformer.lab.results_view import results_view
from pidformer.lab.runs import Catalogue
from pidformer.lab.sharing import ARRIVE, QUIET, Shared
from pidformer.lab.static import charts_script, source, tips_css
from pidformer.lab.text_view import text_view

STICKY = "<style>.gradio-container { overflow: clip !important; }</style>"
"""Nothing sticks inside gradio's `hidden`; `css=` cannot reach the container itself."""
SESSIONS = 64
"""Visitors whose picture and last answers gradio keeps; who was away longest is forgotten first."""


def mount(app: Any, blocks: gr.Blocks) -> Any:
    """Put the lab onto a FastAPI application; serve it behind a `Guard` alone."""
    blocks.has_launched = True  # or else gradio checks no path, neither taken nor handed out
    blocks.state_session_capacity = SESSIONS
    return gr.mount_gradio_app(
        app,
        blocks,
        path="/",
        footer_links=[],
        ssr_mode=False,
        allowed_paths=[],
        max_file_size=MOST_BYTES,
        show_error=True,
        css=tips_css() + source("charts.css") + source("app.css"),
        head=f"{STICKY}<script>{source('app.js')}</script>{charts_script()}",
        theme=_theme(),
        pwa=False,
    )


def _theme() -> gr.themes.Base:
    """Fonts of the system: nothing is fetched from anywhere."""
    return gr.themes.Default(
        primary_hue="blue",
        neutral_hue="slate",
        font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
        font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"],
    ).set(  # readable: gradio's greys and blues are a little pale
        body_text_color_subdued="*neutral_600",
        block_info_text_color="*neutral_600",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover_dark="*primary_800",
    )


def build(
    runs: Sequence[str | Path] = (),
    *,
    home: str | Path | None = None,
    data: str | Path | None = None,
) -> gr.Blocks:
    """All views, and one event that reads the address when a visitor arrives."""
    catalogue = Catalogue(runs, home, data)
    with gr.Blocks(title="pidformer lab", analytics_enabled=False, fill_width=True) as blocks:
        gr.HTML(
            "<h1>pidformer lab</h1><p>Attention mixes tokens until they are alike. "
            "A controller brings back what each of them has lost.</p>",
            elem_id="lab-head",
        )
        query = gr.Textbox(visible=False)
        shared = Shared(query)
        views = {
            "controller": lambda: controller_view(shared),
            "attack": lambda: attack_view(shared, catalogue),
            "text": lambda: text_view(shared, catalogue),
            "results": lambda: results_view(shared, catalogue),
        }
        with gr.Tabs() as tabs:
            for name, lay_out in views.items():
                with gr.Tab(name.capitalize(), id=name) as tab:
                    shared.view = name, tab
                    address = lay_out()
                js = f"(query) => window.labTurnTo('{name}', query)"
                tab.select(None, address, None, js=js, **QUIET)
        shared.wire(blocks)
        blocks.load(
            lambda text: gr.Tabs(selected=view_of(text, tuple(views))),
            query,
            tabs,
            js=ARRIVE,
            **QUIET,
        ).then(None, None, None, js="() => { window.labArrived = true; }", **QUIET)
    return blocks
