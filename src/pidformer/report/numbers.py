"""Numbers as text."""

NONE = "-"
"""A number that is not there."""


def minus(text: str) -> str:
    """With a proper minus sign."""
    return text.replace("-", "\u2212")
