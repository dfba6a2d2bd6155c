"""A part of the page: words and tables, and the comparisons behind them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pidformer.report.metrics import Metric
from pidformer.report.panels import Panel
from study.comparisons import Compared, compare_all, findings, with_registered
from study.records import Study, load_registered
from study.tables import by_metric


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


def metrics_section(
    study: Study,
    title: str,
    words: str,
    metrics: Sequence[Metric],
    *,
    more: Sequence[str] = (),
    only_plain: bool = False,
) -> Section:
    """Words, a line for each metric, what the differences to softmax say, and `more`."""
    compared = compare_all(study, metrics)
    if study.is_registered:
        compared = with_registered(compared, study, load_registered(study.name))
    return Section(
        title=title,
        body=[words, by_metric(study, metrics, compared, only_plain=only_plain), *more],
        findings=findings(compared),
        compared=compared,
    )
