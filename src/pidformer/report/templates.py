"""Pages from templates, with one look for all of them; what reports say."""

from pathlib import Path

import jinja2

from pidformer.fields import read_yaml

TEXTS = read_yaml(Path(__file__).with_name("texts.yaml"), "texts")
"""Captions, titles, and the paper's own numbers."""


def page_template(package: str, name: str) -> jinja2.Template:
    """A template of `pidformer.<package>`; the parts that pages share are in `pidformer.report`."""
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader("pidformer", place) for place in (package, "report")]
        ),
        autoescape=jinja2.select_autoescape(["html.j2"], ["md.j2"], default=True),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=name.endswith(".md.j2"),
    )
    environment.filters["unbroken"] = lambda text: str(text).replace(" %", "\u00a0%")
    environment.filters["cell"] = cell
    return environment.get_template(name)


def cell(text: object) -> str:
    """Text inside a table of Markdown."""
    return str(text).replace("|", r"\|")
