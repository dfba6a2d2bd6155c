"""The page's parts on classifiers: all rows of a study, or a registered one, group by group."""

from __future__ import annotations

from collections.abc import Sequence

from pidformer.report.panels import Panel
from pidformer.report.published.choice import choice_section
from pidformer.report.published.course import control_section
from pidformer.report.published.draw import differences_panel
from pidformer.report.published.hypotheses import hypotheses_section
from pidformer.report.published.images import classification_metrics, threats_text
from pidformer.report.published.inside import spectra_section
from pidformer.report.published.length import length_section
from pidformer.report.published.numbers import (
    Compared,
    Judged,
    compare_all,
    compare_pairs,
    findings,
    judge,
    wins_text,
)
from pidformer.report.published.predict import prediction_section
from pidformer.report.published.section import Section
from pidformer.report.published.studies import PublishedRun, Study
from pidformer.report.published.tables import (
    by_seed,
    by_variant,
    differences_by_variant,
    judged_table,
)
from pidformer.studies import StudyPlan, load_study, shipped_studies

CONFIRMING = 10
"""Seeds from here on were not used to find anything."""
_PARTS = {
    1: "Seeds from 10 on, and every second image (1, 3, 5, ...) of the validation set unless a "
    "group says otherwise: no row was chosen by the seeds and images that report it.",
    0: "Seeds below 10, and the other half of the images (0, 2, 4, ...): what rows were chosen by.",
    None: "All images of the validation set.",
}
_ONLY = {0: "On the other half of the images (0, 2, 4, ...).", None: "On all images."}
_COLUMNS = (
    "Accuracy in per cent, of corruptions the mean over their rows; AUPR: how well low confidence "
    "tells images of no class, over all images; similarity: mean cosine between the tokens of an "
    "image after the last layer; effective rank: of these tokens as one matrix, 1 where all lie on "
    "one line, whatever their signs; control's size: its root mean square over that of the "
    "attention's output, mean over the layers in which it acts, trained and (at first) before the "
    "first step. "
    "Rows on a sample of images take all of it."
)


def classification_sections(study: Study) -> list[Section]:
    """One table, or of a registered study a table for each group, and what explains them."""
    kept = [run for run in study.runs if run.seed >= CONFIRMING]
    if not kept or study.name not in shipped_studies():
        return [_section(study, "", None), *control_section(study)]
    looked = [run for run in study.runs if run.seed < CONFIRMING]
    plan = load_study(study.name)
    found = _confirmed(study.only(kept), plan)
    if looked:
        found.append(_section(study.only(looked), "Searched", 0))
    return found + control_section(study, _by_group(study, plan))


def _section(study: Study, name: str, part: int | None) -> Section:
    metrics = classification_metrics(study.runs, part)
    compared = compare_all(study, metrics)
    body = [f"{_PARTS[part]} {_COLUMNS}", by_variant(study, metrics)]
    if compared:
        body += ["Paired differences:", differences_by_variant(compared, metrics)]
    body += ["By seed:", by_seed(study, metrics)] if part is None else []
    return Section(
        title=name,
        body=body + _threats(study.runs),
        findings=findings(compared),
        compared=compared,
    )


def _confirmed(study: Study, plan: StudyPlan) -> list[Section]:
    """The primary comparisons, the groups in the order of the plan, and what explains them."""
    named = _by_group(study, plan)
    compared: list[Compared] = []
    for group, names in named.items():
        compared += _compare(study, names, plan.halves.get(group, 1))
    first = [one for one in compared if (one.variant, one.metric.title) in plan.primary]
    judged = judge(first) if len(first) > 1 else []
    body = [f"{_PARTS[1]} {_COLUMNS}", *_threats(study.runs)]
    if judged:
        body += [f"Holm's p is over these {len(judged)}:", judged_table(judged)]
    title = "Primary comparisons" if judged else "Reported"
    says = [wins_text(judged)] if judged else []
    found = [Section(title=title, body=body, findings=says, panels=_primary_panels(judged))]
    found += hypotheses_section(study, plan, compared, judged)
    found += [_group(study, plan, group, names, compared) for group, names in named.items()]
    return [
        *found,
        *choice_section(plan, compared),
        *length_section(study, compared),
        *prediction_section(study, compared),
        *spectra_section(study),
    ]


def _primary_panels(judged: Sequence[Judged]) -> list[tuple[Panel, str]]:
    """A panel for each metric; coloured is what stands after the correction."""
    found: list[tuple[Panel, str]] = []
    for title in dict.fromkeys(each.one.metric.title for each in judged):
        own = [each for each in judged if each.one.metric.title == title]
        panel = differences_panel(
            [each.one for each in own],
            f"{title}, points less softmax",
            [each.one.variant for each in own],
            [each.word for each in own],
        )
        begin = "" if found else "Primary comparisons with 95 % intervals, coloured after Holm: "
        found.append((panel, begin + title))
    return found


def _by_group(study: Study, plan: StudyPlan) -> dict[str | None, list[str]]:
    """The variants of each group that has any, in the order of the plan; None: of no group."""
    groups = {row.name: row.group for row in plan.rows}
    found = {
        group: [v.name for v in study.variants if groups.get(v.name) == group]
        for group in (*plan.groups, None)
    }
    return {group: names for group, names in found.items() if names}


def _compare(study: Study, names: Sequence[str], half: int | None) -> list[Compared]:
    """The rows of a group with their twins, on the group's half of the images."""
    own = study.only([run for run in study.runs if run.variant in names or run.is_plain])
    return compare_all(own, classification_metrics(own.runs, half))


def _group(
    study: Study, plan: StudyPlan, group: str | None, names: Sequence[str], all_: Sequence[Compared]
) -> Section:
    """Rows of a group with their twins, which may be another group's."""
    compared = [one for one in all_ if one.variant in names]
    half = plan.halves.get(group, 1)
    shown = {*names, *(one.twin for one in compared)}
    own = study.only([run for run in study.runs if run.variant in shown])
    metrics = classification_metrics(own.runs, half)
    body = [*([_ONLY[half]] if half in _ONLY else []), by_variant(own, metrics)]
    if compared:
        body += ["Paired differences:", differences_by_variant(compared, metrics)]
    asked = [pair for pair in plan.contrasts if pair[0] in names]
    contrasts = compare_pairs(study, asked, metrics)
    if contrasts:
        body += ["Other differences that were asked for:"]
        body.append(differences_by_variant(contrasts, metrics))
    title = f"`{group}`: {plan.about[group]}" if group else "Rows that are not registered"
    return Section(title=title, body=body, findings=findings(compared), compared=compared)


def _threats(runs: Sequence[PublishedRun]) -> list[str]:
    text = threats_text(runs)
    return [text] if text else []
