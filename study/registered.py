"""What was registered of a study of segmentation or language: primary comparisons, hypotheses."""

from collections.abc import Mapping

from pidformer.report.metrics import Metric
from study.comparisons import compare_all, judge, with_registered
from study.hypotheses import hypotheses_section
from study.records import Study, load_registered
from study.section import Section
from study.tables import judged_table

_WORDS = "Registered before the first run ([study.md](study.md)). Holm's p is over these {}:"


def registered_sections(study: Study, metrics: Mapping[str, Metric]) -> list[Section]:
    """None of a study that was not registered, or whose file asks nothing."""
    if not study.is_registered:
        return []
    plan, study = load_registered(study.name), study.reported
    compared = with_registered(compare_all(study, [*metrics.values()]), study, plan)
    made = {(one.variant, one.metric.title): one for one in compared}
    judged = judge([made[key] for key in plan.primary if key in made])
    found = []
    if judged:
        body = [_WORDS.format(len(judged)), judged_table(judged)]
        found.append(Section(title="Primary comparisons", body=body))
    return found + hypotheses_section(study, plan, compared, judged, lambda _: metrics)
