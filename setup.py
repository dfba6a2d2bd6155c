"""The description for a package index: README.md without what needs the repository beside it.

An index shows the text alone, where a relative link leads nowhere and a picture is missing. So
pictures are left out with their captions, and relative links become their text. All else is in
pyproject.toml.
"""

import re
from pathlib import Path

from setuptools import setup

PICTURES = re.compile(
    r"<picture>.*?</picture>\n(<sub>.*?</sub>)?\n*|!\[[^\]]*\]\((?!https?:)[^)]*\)\n*", re.DOTALL
)
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)[^)]*\)")


def description(readme: str) -> str:
    """The text of README.md as it stands alone."""
    return LINK.sub(r"\1", PICTURES.sub("", readme))


setup(
    long_description=description(Path(__file__).with_name("README.md").read_text("utf-8")),
    long_description_content_type="text/markdown",
)
