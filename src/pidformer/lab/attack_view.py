"""The Attack view: an image, an attack, and what two models make of it."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
import plotly.graph_objects as go
from PIL import Image
from torch import Tensor

from pidformer.errors import InputError
from pidformer.lab import attack as attacks
from pidformer.lab.address import from_query, from_values, to_query
from pidformer.lab.attack import ATTACKS, HIGHEST, Attacked, AttackKnobs
from pidformer.lab.pictures import DIGITS, LabelledPicture
from pidformer.lab.runs import DEMO, NOBODY, Shelf, named_models
from pidformer.lab.sharing import QUIET, Shared, explanation, message, sharing_box
from pidformer.lab.uploads import ENDINGS, take_upload
from pidformer.report.panels import run_colors

UPLOADS = "<p><small>PNG, JPEG or WebP, at most 8 MB; it is not kept.</small></p>"
WORDS = (
    "An attack moves every pixel a little, in the direction that hurts this model most. Each model "
    "is attacked on its own, with its own gradients. The budget eps is the largest change of a "
    "pixel (for noise: its spread)."
)
EQUATION = """\
x(0) = x + eps U(-1, 1)                                     pgd; fgsm: one step from x itself
x(k+1) = clip(x(k) + step sign d loss(f(x(k)), y) / dx)     |x' - x| <= eps, pixels in [0, 1]"""


def attack_view(shared: Shared, shelf: Shelf) -> gr.Textbox | None:
    """Lay it out and connect it; the box that holds its address."""
    places = shelf.classifiers
    names = list(places)
    first, second = _defaults(shelf)
    sets = shelf.pictures
    at_first = shelf.first_pictures(first)
    with gr.Row():
        with gr.Column(scale=1, min_width=300):
            one = gr.Dropdown(names, value=first, label="model", elem_id="attack-first")
            two = gr.Dropdown(
                [NOBODY, *names], value=second, label="and its twin", elem_id="attack-second"
            )
            images = gr.Dropdown(
                sets.names,
                value=at_first,
                label="pictures of",
                visible=len(sets.names) > 1,
                elem_id="attack-images",
            )
            number = gr.Slider(
                0,
                sets.count(at_first) - 1,
                0,
                step=1,
                label="picture",
                info="of the validation set",
                elem_id="attack-number",
                buttons=[],
            )
            upload = gr.File(
                label="or your own",
                file_types=ENDINGS,
                height=140,
                elem_id="attack-upload",
            )
            said = gr.HTML(UPLOADS, elem_id="attack-said", padding=False)
            kind = gr.Radio(list(ATTACKS), value="pgd", label="attack", elem_id="attack-kind")
            strength = gr.Slider(
                0,
                HIGHEST,
                AttackKnobs().strength,
                step=1,
                label="strength",
                info="eps in 1/255",
                elem_id="attack-strength",
                buttons=[],
            )
            button = gr.Button("Attack", variant="primary", elem_id="attack-go")
        with gr.Column(scale=3, min_width=320):
            shown = gr.HTML(_invitation(first), elem_id="attack-shown")
            layers = gr.Plot(show_label=False, visible=False, elem_id="attack-layers")
            explanation(WORDS, EQUATION)
            address, command, python = sharing_box("attack")
    picture = gr.State(None, time_to_live=3600)
    inputs = [one, two, images, number, kind, strength, picture]
    outputs = [shown, layers, address, command, python]

    def texts_of(*values: Any) -> list[str]:
        """Address, command and Python of what is chosen, attacked already or not."""
        *chosen, picture = values
        knobs = from_values(AttackKnobs, chosen)
        folder = sets.folders.get(knobs.images, Path(DIGITS))
        return [
            to_query("attack", knobs),
            knobs.command([places[name] for name in named_models(knobs)], folder),
            knobs.python(places[knobs.first], folder if picture is None else None),
        ]

    def go_on(progress: gr.Progress = gr.Progress(), *values: Any) -> list[Any]:  # noqa: B008
        *chosen, picture = values
        knobs, texts = from_values(AttackKnobs, chosen), texts_of(*values)
        try:
            subjects = [
                shelf.subject(name, lambda s, w: progress(s, desc=w))
                for name in named_models(knobs)
            ]
            shot = (
                sets.picture(knobs.images, knobs.number)
                if picture is None
                else LabelledPicture(picture)
            )
            found = [attacks.attack(subject, shot, knobs) for subject in subjects]
        except InputError as error:
            return [message(str(error)), gr.Plot(visible=False), *texts]
        drawn = similarity_figure(found)
        return [attack_html(found, knobs), gr.Plot(drawn, visible=drawn is not None), *texts]

    def received(path: str | None) -> tuple[Any, str, None]:
        if path is None:
            return None, UPLOADS, None
        try:
            picture = take_upload(path)
        except InputError as error:
            return None, message(str(error)), None
        size = f"{picture.width} x {picture.height}"
        return (
            picture,
            f"<p>Your picture ({size}) is attacked; move the slider above to leave it.</p>",
            None,
        )

    def go_back(progress: gr.Progress = gr.Progress(), *chosen: Any) -> list[Any]:  # noqa: B008
        """From an upload to the pictures of the lab."""
        return [None, UPLOADS, *go_on(progress, *chosen, None)]

    def slider(name: str, number: int) -> Any:
        last = sets.count(name) - 1
        return gr.Slider(maximum=last, value=min(number, last))

    def follow(model: str, images: str) -> list[Any]:
        """A model brings its own pictures."""
        own = shelf.own_pictures(model)
        return [gr.skip(), gr.skip()] if own == images else [own, slider(own, 0)]

    options: dict[str, Any] = {
        "api_visibility": "private",
        "show_progress_on": shown,  # one bar is enough
    }
    upload.upload(received, upload, [picture, said, upload], api_visibility="private").then(
        go_on, inputs, outputs, concurrency_limit=2, **options
    )
    number.input(
        go_back,
        inputs[:-1],
        [picture, said, *outputs],
        trigger_mode="always_last",
        concurrency_limit=2,
        **options,
    )
    texts = [address, command, python]
    one.input(follow, [one, images], [images, number], **QUIET).then(
        texts_of, inputs, texts, **QUIET
    )
    two.input(texts_of, inputs, texts, **QUIET)
    images.input(
        lambda name: [slider(name, 0), None, UPLOADS], images, [number, picture, said], **QUIET
    ).then(texts_of, inputs, texts, **QUIET)
    button.click(go_on, inputs, outputs, concurrency_limit=2, **options)
    for component in (kind, strength):  # by hand only: a shared address starts no training
        component.input(
            go_on, inputs, outputs, trigger_mode="always_last", concurrency_limit=2, **options
        )

    def arrive(query: str) -> list[Any]:
        knobs = from_query(AttackKnobs, query)
        named = knobs.images if knobs.images in sets.names else at_first
        values = [
            knobs.first if knobs.first in names else first,
            knobs.second if knobs.second in (NOBODY, *names) else second,
            named,
            min(knobs.number, sets.count(named) - 1),
            knobs.attack,
            knobs.strength,
        ]
        moved = slider(named, knobs.number)
        return [*values[:3], moved, *values[4:], *texts_of(*values, None)]

    shared.on_arrival(arrive, [*inputs[:-1], *texts])
    return address


def _defaults(shelf: Shelf) -> tuple[str, str]:
    """Two models to begin with: the first, and one with another controller if there is one."""
    own = [name for name in shelf.classifiers if name not in DEMO] or list(DEMO)
    return own[0], shelf.twin(own[0], own) or NOBODY


def _invitation(first: str) -> str:
    training = " The digits demo is trained first, once: half a minute." if first in DEMO else ""
    return f"<p>Choose, then press Attack.{training}</p>"


def attack_html(found: Sequence[Attacked], knobs: AttackKnobs) -> str:
    """Pictures, probabilities and a verdict for each model, one below the other."""
    factor = attacks.amplification(found)
    colors = run_colors([each.is_controlled for each in found])
    parts = []
    for each, color in zip(found, colors, strict=True):
        is_held = _top(each.after) == each.truth
        pictures = (
            (each.image, f"original, {each.before[each.truth]:.0%} {each.classes[each.truth]}"),
            (0.5 + factor * each.change, f"perturbation, {factor:g} times"),
            (each.attacked, f"result, {max(each.after):.0%} {each.classes[_top(each.after)]}"),
        )
        strip = "".join(
            f'<figure><img alt="{html.escape(text)}" src="{data_uri(pixels)}">'
            f"<figcaption>{html.escape(text)}</figcaption></figure>"
            for pixels, text in pictures
        )
        parts.append(
            f'<section class="attacked"><div class="verdict {"good" if is_held else "bad"}" '
            f'role="status"><p>{html.escape(each.verdict)}</p></div>'
            f'<div class="strip">{strip}<div class="chances">{bars(each, color)}</div></div>'
            "</section>"
        )
    return "".join(parts)


def bars(each: Attacked, color: str, most: int = 5) -> str:
    """Probabilities of the likeliest classes, before (pale) and after."""
    order = sorted(range(len(each.after)), key=lambda k: -max(each.after[k], each.before[k]))
    shown = sorted(order[:most])
    rows = []
    for k in shown:
        name = html.escape(each.classes[k]) + (each.mark if k == each.truth else "")
        for number, shade, text in ((each.before[k], "66", name), (each.after[k], "", "")):
            rows.append(
                f'<span class="name">{text}</span>'
                f'<span class="bar" style="width:{100 * number:.2f}%;background:{color}{shade}">'
                f"</span><span>{number:.1%}</span>"
            )
    return f'<div class="bars">{"".join(rows)}</div><small>pale: before, full: after</small>'


def similarity_figure(found: Sequence[Attacked]) -> go.Figure | None:
    """Token similarity by layer, before (dotted) and after.

    Of plain dictionaries: plotly's own classes check every property, which takes longer than the
    rest; a test checks them instead.
    """
    if not any(each.similarity_before for each in found):
        return None
    traces: list[dict[str, Any]] = []
    colors = run_colors([each.is_controlled for each in found])
    for each, color in zip(found, colors, strict=True):
        shared = {"type": "scatter", "x": list(range(1, len(each.similarity_before) + 1))}
        line = {"color": color, "width": 3}
        traces.append(shared | {"y": each.similarity_after, "name": each.label, "line": line})
        dotted = {"color": color, "width": 1.8, "dash": "dot"}
        traces.append(shared | {"y": each.similarity_before, "showlegend": False, "line": dotted})
    return go.Figure({"data": traces, "layout": _LAYOUT}, _validate=False)


_AXIS = {"gridcolor": "rgba(128,136,146,0.22)", "zeroline": False, "fixedrange": True}
_LAYOUT: dict[str, Any] = {
    "title": {
        "text": "How alike tokens are by layer<br>(dotted: before the attack; 1: all alike)",
        "font": {"size": 14},
        "x": 0.01,
        "xanchor": "left",
        "y": 0.97,
    },
    "template": {},
    "height": 350,
    "margin": {"l": 52, "r": 14, "t": 84, "b": 44},
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"family": "system-ui, sans-serif", "size": 12, "color": "#76808b"},
    "hovermode": "closest",
    "dragmode": False,
    "xaxis": {"title": {"text": "layer"}, "dtick": 1} | _AXIS,
    "yaxis": {"title": {"text": "mean cosine"}} | _AXIS,
    "showlegend": True,
    "legend": {"orientation": "h", "x": 1, "xanchor": "right", "y": 1.0, "yanchor": "bottom"},
}


def data_uri(image: Tensor) -> str:
    """(C, H, W) in [0, 1] as a PNG inside the page: no file is written."""
    array = (image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()
    picture = Image.fromarray(np.squeeze(array, -1) if array.shape[-1] == 1 else array)
    kept = io.BytesIO()
    picture.save(kept, "PNG")
    return "data:image/png;base64," + base64.b64encode(kept.getvalue()).decode()


def _top(probabilities: Sequence[float]) -> int:
    return max(range(len(probabilities)), key=lambda k: probabilities[k])
