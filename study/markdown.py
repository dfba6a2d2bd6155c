"""Tables in Markdown."""

from collections.abc import Sequence

from pidformer.report.templates import cell


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Markdown; the first `left` columns hold words, the others numbers."""
    rule = ["---"] * left + ["---:"] * (len(heads) - left)
    return "\n".join(f"| {' | '.join(map(cell, row))} |" for row in (heads, rule, *rows))
