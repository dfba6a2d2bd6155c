"""Pages from templates: one look for all of them."""

from __future__ import annotations

import jinja2


def page_template(package: str, name: str) -> jinja2.Template:
    """A template of `pidformer.<package>`; the parts that pages share are in `pidformer.report`."""
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader("pidformer", place) for place in (package, "report")]
        ),
        autoescape=jinja2.select_autoescape(["html.j2"], default=True),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["unbroken"] = lambda text: str(text).replace(" %", "\u00a0%")
    return environment.get_template(name)
