"""Which row a study's rule takes for one more candidate, and by how much."""

from collections.abc import Sequence

from pidformer.report.table_view import minus
from pidformer.reproduce.study import StudyPlan
from study.comparisons import Compared
from study.section import Section
from study.tables import table


def choice_section(plan: StudyPlan, compared: Sequence[Compared]) -> list[Section]:
    """The rows to choose from, those that the rule prefers first.

    Nothing is chosen before every row has all its seeds.
    """
    if plan.choice is None:
        return []
    metrics = plan.choice.metrics
    by_name = {(one.variant, one.metric.title): one for one in compared}
    wanted = {row.name: len(row.seeds) for row in plan.rows if row.name in plan.choice.rows}
    found = {name: [by_name.get((name, metric)) for metric in metrics] for name in wanted}
    known = {name: [one for one in own if one] for name, own in found.items() if all(own)}
    if not known:
        return []
    sums = {name: sum(one.found.mean for one in own) for name, own in known.items()}
    behind = {
        name
        for name, own in known.items()
        if plan.choice.ahead and any(one.found.mean <= 0 for one in own)
    }
    order = sorted(known, key=lambda name: (name in behind, -sums[name], name))
    seeds = {name: min(one.found.seeds for one in own) for name, own in known.items()}
    lacking = [name for name in wanted if seeds.get(name, 0) < wanted[name]]
    rows = [
        [
            name,
            f"{seeds[name]} of {wanted[name]}",
            *(one.text for one in known[name]),
            minus(f"{sums[name]:+.2f}"),
        ]
        for name in order
    ]
    heads = ["", "seeds", *(f"{metric} minus softmax" for metric in metrics), "sum of means"]
    *others, last = metrics
    among = ", among those that are ahead on each if any is" if plan.choice.ahead else ""
    rule = (
        f"By the rule of study.md the row whose mean differences in {', '.join(others)} and {last} "
        f"have the largest sum{among}, once all of these rows have their seeds, becomes one more "
        "candidate, on seeds of its own. "
    )
    rule += "No row is ahead on each. " if len(behind) == len(order) else ""
    taken = f"That is **{order[0]}**." if not lacking else _waiting(lacking, len(wanted))
    return [Section(title="One more candidate", body=[rule + taken, table(heads, rows)])]


def _waiting(lacking: Sequence[str], count: int) -> str:
    return f"Rows that lack seeds: {len(lacking)} of {count}, so none is chosen yet."
