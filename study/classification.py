"""The page's parts on classifiers: all rows of a study, or a registered one, group by group."""

from collections.abc import Mapping, Sequence

from pidformer.report.collect import PublishedRun
from pidformer.report.panels import Panel
from pidformer.report.table1 import TITLES
from pidformer.reproduce.study import StudyPlan
from study.choice import choice_section
from study.comparisons import (
    Compared,
    Judged,
    compare_all,
    compare_pairs,
    family_text,
    findings,
    judge_primary,
    wins_text,
    with_registered,
)
from study.control_size import control_section
from study.hypotheses import hypotheses_section
from study.image_metrics import classification_metrics, threats_text
from study.image_sections import (
    corruptions_section,
    curves_section,
    similarity_section,
    table1_section,
    top5_section,
)
from study.network_metrics import spectra_section
from study.pictures import Point, differences_panel, points_panel
from study.predictors import prediction_section
from study.records import CONFIRMING, Study, load_registered
from study.section import Section
from study.tables import (
    accuracy_tables,
    by_seed,
    difference_tables,
    differences_by_variant,
    judged_table,
)
from study.training_length import length_section

_SIDE_BY_SIDE = 6
"""Rows from which on a picture sets two metrics against each other."""
_HALVES: dict[int | None, str] = {1: "odd", 0: "even", None: "all"}
_PARTS = {
    1: "Every second image (1, 3, 5, ...) of the validation set.",
    0: "Every second image (0, 2, 4, ...) of the validation set.",
    None: "All images of the validation set.",
}
_REPORTED = (
    f"Seeds from {CONFIRMING} on, on the images that each row was registered with (odd: places 1, "
    "3, 5, ... of the validation set; even: 0, 2, 4, ...): no row was chosen by the seeds and "
    "images that report it. The halves differ in difficulty, so rows on different halves must not "
    "be compared with each other."
)
_REPORTED_ALL = (
    f"Seeds from {CONFIRMING} on and all images of the validation set: no row was chosen by these "
    "seeds."
)
_SEARCHED = f"Seeds below {CONFIRMING}: what rows were chosen by; they report nothing."
_POST_HOC = (
    "The same rows on all images, whatever half they are registered with. **Post hoc**: looked at "
    "after the registered halves had been reported, so nothing is decided here and no p-value is "
    "corrected. {halves} Rows are compared with their softmax twin, which saw the same images."
)
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
    if not study.is_registered:
        more = [*top5_section(study), *corruptions_section(study), *curves_section(study)]
        return [_section(study, "", None), *more, *control_section(study)]
    looked = [run for run in study.runs if run.seed < CONFIRMING]
    plan = load_registered(study.name)
    found = _confirmed(study.reported, plan)
    if looked:
        searched = _section(study.only(looked), "Searched", _searched_part(looked[0], plan))
        found += [searched, *choice_section(plan, searched.compared)]
    return found + control_section(study, _by_group(study))


def _searched_part(run: PublishedRun, plan: StudyPlan) -> int | None:
    """The images of a search: its group's own, or those that do not report the group."""
    row = next((row for row in plan.rows if row.name == run.variant), None)
    half = plan.halves.get(row.group if row else None, 1)
    is_registered = row is not None and run.seed in row.seeds
    return half if half is None or is_registered else 1 - half


def _section(study: Study, name: str, part: int | None) -> Section:
    metrics = classification_metrics(study.runs, part)
    compared = compare_all(study, metrics)
    about = f"{_SEARCHED} {_PARTS[part]}" if name else _PARTS[part]
    body = [about, *accuracy_tables(study, metrics, compared)]
    body += ["By seed:", by_seed(study, metrics), _COLUMNS] if not name else []
    return Section(
        title=name,
        body=body + threats_text(study.runs),
        findings=findings(compared),
        compared=compared,
    )


def _confirmed(study: Study, plan: StudyPlan) -> list[Section]:
    """The primary comparisons, the groups in the order of the plan, and what explains them."""
    named = _by_group(study)
    compared: list[Compared] = []
    for group, names in named.items():
        compared += _compare(study, plan, names, plan.halves.get(group, 1))
    judged = judge_primary(compared, plan)
    images = {row.name: _HALVES[plan.halves.get(row.group, 1)] for row in plan.rows}
    is_all = {images.get(name, "odd") for names in named.values() for name in names} == {"all"}
    body = [_REPORTED_ALL if is_all else _REPORTED]
    if judged:
        body += [family_text(judged, plan), judged_table(judged, None if is_all else images)]
    title = "Primary comparisons" if judged else "Reported"
    says = [wins_text(judged, plan)] if judged else []
    panels = _primary_panels(judged, {} if is_all else images)
    front = len(body) if is_all else 0
    found = [Section(title=title, body=body, findings=says, panels=panels, front=front)]
    claims = _claims(study, plan, named)
    if is_all:
        found += [*_against(judged), *table1_section(claims)]
    else:
        found += _post_hoc(study, plan, [each.one for each in judged])
    found += hypotheses_section(
        study,
        plan,
        compared,
        judged,
        lambda half: {m.title: m for m in classification_metrics(study.runs, half)},
    )
    found.append(Section(title="What the columns mean", body=[_COLUMNS, *threats_text(study.runs)]))
    found += [_group(study, plan, group, names, compared) for group, names in named.items()]
    looked = {row for one in plan.hypotheses if "similarity" in one.expects for row, _ in one.pairs}
    looked |= {variant.name for variant in claims.variants}
    by_layer = {group: names for group, names in named.items() if looked & {*names}}
    return [
        *found,
        *top5_section(study),
        *corruptions_section(claims),
        *curves_section(claims),
        *similarity_section(study, by_layer),
        *choice_section(plan, compared),
        *length_section(study),
        *prediction_section(study, compared),
        *spectra_section(study),
    ]


def _claims(study: Study, plan: StudyPlan, named: Mapping[str | None, Sequence[str]]) -> Study:
    """The groups with primary rows; all where there are none."""
    primary = {row for row, _ in plan.primary}
    names = [name for own in named.values() if primary & {*own} for name in own]
    runs = [run for run in study.runs if run.variant in names]
    return study.only(runs or study.runs)


def _post_hoc(study: Study, plan: StudyPlan, first: Sequence[Compared]) -> list[Section]:
    """The primary rows on all images, beside what was registered on halves."""
    names = list(dict.fromkeys(one.variant for one in first))
    compared = [
        one
        for one in _compare(study, plan, names, None)
        if one.variant in names and one.metric.title in TITLES.values()
    ]
    if not compared:
        return []
    twin = next(v for v in study.variants if v.name == compared[0].twin)
    even, odd = (classification_metrics(twin.runs, half)[0].mean(twin) for half in (0, 1))
    words = ""
    if even is not None and odd is not None:
        words = (
            f"The halves differ in difficulty: {twin.name} is right on {even.mean:.1f} % of the "
            f"even images and on {odd.mean:.1f} % of the odd ones."
        )
    metrics = list({one.metric.title: one.metric for one in compared}.values())
    body = [_POST_HOC.format(halves=words), differences_by_variant(compared, metrics)]
    panels: list[tuple[Panel, str]] = []
    wanted = {title for _, title in plan.primary}
    for title in (metric.title for metric in metrics if metric.title in wanted):
        own = [one for one in compared if one.metric.title == title]
        names = [one.variant for one in own]
        panel = differences_panel(own, title, names)
        begin = "" if panels else "All images, post hoc, with 95 % intervals, not corrected: "
        panels.append((panel, begin + title))
    return [Section(title="All images (post hoc)", body=body, panels=panels)]


def _primary_panels(judged: Sequence[Judged], images: Mapping[str, str]) -> list[tuple[Panel, str]]:
    """A panel for each metric; coloured is what stands after the correction."""
    found: list[tuple[Panel, str]] = []
    for title in dict.fromkeys(each.one.metric.title for each in judged):
        own = [each for each in judged if each.one.metric.title == title]
        names = [each.one.variant for each in own]
        panel = differences_panel(
            [each.one for each in own],
            title,
            [f"{name} ({images[name]})" if name in images else name for name in names],
            [each.word for each in own],
        )
        begin = "" if found else "Primary comparisons with 95 % intervals, coloured after Holm: "
        found.append((panel, begin + title))
    return found


def _against(judged: Sequence[Judged]) -> list[Section]:
    """PGD against Clean, where that sets many methods side by side."""
    made = {(each.one.variant, each.one.metric.title): each.one.found for each in judged}
    rows = [name for name, title in made if title == "Clean" and (name, "PGD") in made]
    if len(rows) < _SIDE_BY_SIDE:
        return []
    series = {}
    for name in rows:
        x, y = made[name, "Clean"], made[name, "PGD"]
        series[name] = [Point(x.mean, y.mean, y.low, y.high, x.seeds < 2, x.low, x.high)]
    names = ("Clean, points minus softmax", "PGD, points minus softmax")
    panel = points_panel(series, "PGD against Clean", *names, is_plain=[False] * len(series))
    words = "Accuracy under PGD against clean accuracy, both minus softmax's, with 95 % intervals."
    return [Section(title="Side by side", body=[words], panels=[(panel, words[:-1])], front=1)]


def _by_group(study: Study) -> dict[str | None, list[str]]:
    """The variants of each group that has any, in the order of the plan; None: of no group."""
    return {name: [v.name for v in own.variants] for name, own in study.groups.items()}


def _compare(
    study: Study, plan: StudyPlan, names: Sequence[str], half: int | None
) -> list[Compared]:
    """The rows of a group with their twins, on the group's half of the images."""
    own = study.only([run for run in study.runs if run.variant in names or run.is_plain])
    return with_registered(compare_all(own, classification_metrics(own.runs, half)), own, plan)


def _group(
    study: Study, plan: StudyPlan, group: str | None, names: Sequence[str], all_: Sequence[Compared]
) -> Section:
    """Rows of a group with their twins, which may be another group's."""
    compared = [one for one in all_ if one.variant in names]
    half = plan.halves.get(group, 1)
    shown = {*names, *(one.twin for one in compared)}
    own = study.only([run for run in study.runs if run.variant in shown])
    metrics = classification_metrics(own.runs, half)
    body = [_PARTS[half], *accuracy_tables(own, metrics, compared, plan.seeds)]
    asked = [pair for pair in plan.contrasts if pair[0] in names]
    contrasts = with_registered(compare_pairs(study, asked, metrics), study, plan)
    if contrasts:
        body += ["Other differences that were asked for:"]
        body += difference_tables(contrasts, metrics)
    title = f"`{group}`: {plan.about[group]}" if group else "Rows that are not registered"
    title += _progress(study, plan, group)
    return Section(title=title, body=body, findings=findings(compared), compared=compared)


def _progress(study: Study, plan: StudyPlan, group: str | None) -> str:
    """How many seeds the rows of a group have, while some are still to come."""
    there = {variant.name: len(variant.seeds) for variant in study.variants}
    rows = [row for row in plan.rows if row.group == group]
    counts = sorted({there.get(row.name, 0) for row in rows})
    most = max((len(row.seeds) for row in rows), default=0)
    if not rows or counts[0] >= most:
        return ""
    return f" ({' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} of {most} seeds)"
