"""What was registered of a study of segmentation or language: primary comparisons, hypotheses."""

from collections.abc import Mapping
from dataclasses import replace

from pidformer.report.metrics import Metric
from study.comparisons import compare_all, family_text, judge_primary, with_registered
from study.hypotheses import hypotheses_section
from study.records import Study, load_registered
from study.section import Section
from study.tables import judged_table

_WORDS = "Registered before the first run ([study.md](study.md)). "


def registered_sections(study: Study, metrics: Mapping[str, Metric]) -> list[Section]:
    """None of a study that was not registered, or whose file asks nothing."""
    if not study.is_registered:
        return []
    plan, study = load_registered(study.name), study.reported
    compared = with_registered(compare_all(study, [*metrics.values()]), study, plan)
    judged = judge_primary(compared, plan)
    found = []
    if judged:
        body = [_WORDS + family_text(judged, plan), judged_table(judged)]
        found.append(Section(title="Primary comparisons", body=body, front=len(body)))
    asked = hypotheses_section(study, plan, compared, judged, lambda _: metrics)
    return found + ([replace(one, front=len(one.body)) for one in asked] if not found else asked)
