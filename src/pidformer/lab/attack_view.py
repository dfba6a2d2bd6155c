"""The Attack view: an image, an attack, and what two models make of it."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import gradio as gr

from pidformer.errors import InputError
from pidformer.lab import attack as attacks
from pidformer.lab.address import from_query, from_values, to_query
from pidformer.lab.attack import ATTACKS, Attacked, AttackKnobs
from pidformer.lab.knobs import VIEWS
from pidformer.lab.pictures import DIGITS, ENDINGS, HANDFUL, LabelledPicture, take_upload
from pidformer.lab.runs import Catalogue
from pidformer.lab.sharing import (
    QUIET,
    Shared,
    always_last,
    charts_html,
    explanation,
    message,
    model_boxes,
    sharing_box,
    slider,
)
from pidformer.report.figures import Curves, by_layer, similarity_panel
from pidformer.report.panels import run_colors
from pidformer.report.templates import page_template

UPLOADS = str(VIEWS["attack"]["uploads"])
_BUSY = threading.Lock()
"""One attack at a time: looking into a model, for its tokens, takes no second visitor."""
TRIED = 8
"""Pictures among which the one to open on is looked for."""


def attack_view(shared: Shared, catalogue: Catalogue) -> gr.Textbox:
    places = catalogue.classifiers
    names = list(places)
    pair = catalogue.pair(names)
    sets = catalogue.pictures
    at_first = catalogue.first_pictures(pair[0])
    with gr.Row(elem_classes="board"):
        with gr.Column(scale=1, min_width=300):
            one, two = model_boxes("attack", names, pair)
            images = gr.Dropdown(
                sets.names,
                value=at_first,
                label="pictures of",
                visible=len(sets.names) > 1,
                elem_id="attack-images",
            )
            number = gr.Radio(
                [str(k) for k in range(HANDFUL)],
                value="0",
                label="picture",
                info="of the validation set; click to attack it",
                elem_id="attack-number",
            )
            faces = gr.HTML(padding=False, elem_id="attack-faces")
            kind = gr.Radio(list(ATTACKS), value="pgd", label="attack", elem_id="attack-kind")
            strength = slider("attack", AttackKnobs, "strength")
            button = gr.Button("Attack", variant="primary", elem_id="attack-go")
            with gr.Accordion("or a picture of your own", open=False, elem_id="attack-own"):
                upload = gr.File(
                    show_label=False, file_types=ENDINGS, height=140, elem_id="attack-upload"
                )
                said = gr.HTML(UPLOADS, elem_id="attack-said", padding=False)
        with gr.Column(scale=3, min_width=320):
            shown = gr.HTML("<p>Choose, then press Attack.</p>", elem_id="attack-shown")
            explanation("attack")
            address, command, python = sharing_box("attack")
    picture = gr.State(None, time_to_live=3600)
    inputs = [one, two, images, number, kind, strength, picture]
    texts = [address, command, python]

    def knobs_of(chosen: Sequence[Any]) -> AttackKnobs:
        """Beside an upload, no number is chosen."""
        return from_values(AttackKnobs, [*chosen[:3], chosen[3] or 0, *chosen[4:]])

    def texts_of(*values: Any) -> list[str]:
        """Address, command and Python of what is chosen, attacked already or not."""
        *chosen, picture = values
        knobs = knobs_of(chosen)
        folder = sets.folders.get(knobs.images, Path(DIGITS))
        return [
            to_query("attack", knobs),
            knobs.command([places[name] for name in knobs.models], folder),
            knobs.python(places[knobs.first], folder if picture is None else None),
        ]

    def result_of(knobs: AttackKnobs, shot: LabelledPicture) -> str:
        subjects = [catalogue.subject(name) for name in knobs.models]
        return attack_html([attacks.attack(subject, shot, knobs) for subject in subjects])

    @lru_cache(maxsize=64)
    def result(knobs: AttackKnobs) -> str:
        return result_of(knobs, sets.picture(knobs.images, knobs.number))

    @lru_cache(maxsize=64)
    def opening(knobs: AttackKnobs) -> AttackKnobs:
        subjects = [catalogue.subject(name) for name in knobs.models]
        count = min(TRIED, sets.count(knobs.images))
        shots = (sets.picture(knobs.images, k) for k in range(count))
        return attacks.opening(subjects, shots, knobs)

    def go_on(*values: Any) -> str:
        *chosen, picture = values
        knobs = knobs_of(chosen)
        try:
            with _BUSY:
                if picture is None:
                    return result(knobs)
                return result_of(knobs, LabelledPicture(picture))
        except InputError as error:
            return message(str(error))

    def first_look(query: str, *values: Any) -> list[Any]:
        """What the address asks for, or else a picture and a strength that change an answer."""
        knobs, given = knobs_of(values[:-1]), parse_qs(query.lstrip("?"))
        is_asked = given.get("view") == ["attack"] and {*given} - {"view", "images"}
        if not is_asked:
            with suppress(InputError), _BUSY:  # an error is said below
                knobs = opening(knobs)
        return [str(knobs.number), knobs.strength]

    def received(path: str | None) -> tuple[Any, str, None, Any]:
        if path is None:
            return None, UPLOADS, None, gr.skip()
        try:
            picture = take_upload(path)
        except InputError as error:
            return None, message(str(error)), None, gr.skip()
        size = f"{picture.width} x {picture.height}"
        words = f"<p>Your picture ({size}) is attacked; click one above to leave it.</p>"
        return picture, words, None, gr.Radio(value=None)

    def offered(name: str, number: int) -> list[Any]:
        """The pictures of a set to click."""
        try:
            found = sets.thumbnails(name)
        except InputError as error:
            return [gr.Radio(choices=["0"], value="0"), message(str(error))]
        choices = [(f"{k + 1}, {words}", str(k)) for k, (words, _) in enumerate(found)]
        return [gr.Radio(choices=choices, value=str(number % len(found))), _faces(found)]

    def follow(model: str, images: str) -> list[Any]:
        """A model brings its own pictures."""
        own = catalogue.own_pictures(model)
        return [gr.skip()] * 3 if own == images else [own, *offered(own, 0)]

    go: dict[str, Any] = {"js": "() => window.labGo('attack')", **QUIET}
    upload.upload(received, upload, [picture, said, upload, number], api_visibility="private").then(
        None, None, None, **go
    )
    number.input(lambda: [None, UPLOADS], None, [picture, said], **QUIET).then(
        None, None, None, **go
    )
    one.input(follow, [one, images], [images, number, faces], **QUIET).then(
        texts_of, inputs, texts, **QUIET
    )
    images.input(
        lambda name: [*offered(name, 0), None, UPLOADS],
        images,
        [number, faces, picture, said],
        **QUIET,
    ).then(texts_of, inputs, texts, **QUIET)
    options: dict[str, Any] = {"api_visibility": "private", "show_progress_on": shown}
    attacked = [button.click, kind.input, strength.input]
    always_last(attacked, go_on, inputs, [shown], concurrency_limit=2, **options)
    always_last([*attacked, two.input], texts_of, inputs, texts, **QUIET)

    def arrive(query: str) -> list[Any]:
        knobs = from_query(AttackKnobs, query, "attack")
        named = knobs.images if knobs.images in sets.names else at_first
        models = knobs.present(names, pair)
        radio, faces = offered(named, knobs.number)
        last = [knobs.attack, knobs.strength]
        texts = texts_of(*models, named, str(knobs.number), *last, None)
        return [*models, named, radio, *last, faces, *texts]

    seen = shared.on_sight(first_look, inputs, [number, strength], **options)
    shared.on_arrival(arrive, [*inputs[:-1], faces, *texts], seen)
    return address


def _faces(found: Sequence[tuple[str, str]]) -> str:
    """A style sheet that shows the choices as pictures."""
    rules = (
        f"#attack-number label:nth-child({k}) {{ background-image: url({uri}); }}"
        for k, (_, uri) in enumerate(found, start=1)
        if uri
    )
    return f"<style>{''.join(rules)}</style>"


def attack_html(found: Sequence[Attacked]) -> str:
    """Pictures, probabilities and a verdict for each model; below, what becomes of the tokens."""
    colors = run_colors([each.is_controlled for each in found])
    shown = page_template("lab", "attacked.html.j2").render(
        found=[*zip(found, colors, strict=True)], factor=attacks.amplification(found)
    )
    curves = similarity_curves(found)
    if not curves:
        return shown
    charts = charts_html([similarity_panel(curves)])
    return f"{shown}<p>{VIEWS['attack']['similarity']}</p>{charts}"


def similarity_curves(found: Sequence[Attacked]) -> list[Curves]:
    """Token similarity by layer, before (dashed) and after; none of models without tokens."""
    curves = []
    for each in found:
        for when, answer in (("after", each.after), ("before", each.before)):
            if answer.similarity:
                name, runs = f"{each.label}, {when}", [by_layer(answer.similarity)]
                curves.append(Curves(name, each.is_controlled, runs, is_dashed=when == "before"))
    return curves
