"""A part of the page: words and tables, and the comparisons behind them."""

from __future__ import annotations

from dataclasses import dataclass, field

from pidformer.report.panels import Panel
from study.comparisons import Compared


@dataclass(frozen=True, kw_only=True)
class Section:
    title: str
    """Empty for the study's own text."""
    body: list[str]
    findings: list[str] = field(default_factory=list)
    compared: list[Compared] = field(default_factory=list)
    panels: list[tuple[Panel, str]] = field(default_factory=list)
    """Further pictures, with their words."""
    front: int = 0
    """How many parts of the body stand on results.md too; 0: the section does not."""
