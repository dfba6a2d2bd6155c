"""Markdown tables of variants and metrics."""

import math
from collections.abc import Collection, Mapping, Sequence

from pidformer.control import PIDGains
from pidformer.models.gains import as_gains
from pidformer.report.metrics import Metric
from pidformer.report.table_view import NONE, short_gains
from pidformer.report.templates import cell
from study.comparisons import Compared, Judged, mean_text
from study.records import Study, Variant


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Markdown; the first `left` columns hold words, the others numbers."""
    rule = ["---"] * left + ["---:"] * (len(heads) - left)
    return "\n".join(f"| {' | '.join(map(cell, row))} |" for row in (heads, rule, *rows))


def gains_text(variant: Variant) -> str:
    """What acts in a variant."""
    header = variant.header
    gains, model = header.settings["gains"], header.settings["recipe"].get("model", {})
    by_layer = model.get("gains") if isinstance(model.get("gains"), list) else []
    words = [_layers_text([as_gains(layer) for layer in by_layer])] if by_layer else []
    words += [short_gains(str(gains))] if gains and not by_layer else []
    words += ["learned"] if model.get("learn_gains") else []
    mixed = model.get("options", {}).get("value_residual")
    words += [f"value residual {mixed}"] if mixed else []
    for name in ("integral_leak", "integral_limit"):
        value = model.get("options", {}).get(name)
        words += [f"{name.replace('_', ' ')} {value}"] if value is not None else []
    return ", ".join(words) or "none"


def _layers_text(gains: Sequence[PIDGains]) -> str:
    """The gains that act, and where, if they are the same wherever they act."""
    acting = {layer: own for layer, own in enumerate(gains) if own.kind != "softmax"}
    if len({*acting.values()}) != 1:
        return "gains by layer"
    first, last = min(acting), max(acting)
    is_row = last - first + 1 == len(acting) > 1
    where = f"{first} to {last}" if is_row else ", ".join(map(str, acting))
    said = short_gains(str(acting[first]))
    return f"{said} in {len(acting)} of {len(gains)} layers ({where})"


def by_variant(
    study: Study, metrics: Sequence[Metric], registered: Mapping[str, Collection[int]] | None = None
) -> str:
    """A line for each variant that was measured, with its seeds; a column for each metric.

    `registered`: the seeds that were asked for.
    """
    heads = ["", "control", "seeds", *(metric.title for metric in metrics)]
    rows = []
    for v in study.variants:
        wanted = len((registered or {}).get(v.name, ()))
        measured = [run for run in v.runs if any(m.find(run) is not None for m in metrics)]
        if not measured:
            continue
        seeds = ", ".join(str(run.seed) for run in measured)
        seeds += f" ({len(v.seeds)} of {wanted})" if len(v.seeds) < wanted else ""
        rows.append(
            [v.name, gains_text(v), seeds, *(mean_text(m.mean(v), m.digits) for m in metrics)]
        )
    return table(heads, rows)


def differences_by_variant(compared: Sequence[Compared], metrics: Sequence[Metric]) -> str:
    """Variant minus twin, a line for each variant; metrics of no difference are left out."""
    known = {one.metric.title for one in compared}
    titles = [metric.title for metric in metrics if metric.title in known]
    rows = []
    for name, twin in dict.fromkeys((one.variant, one.twin) for one in compared):
        own = [one for one in compared if (one.variant, one.twin) == (name, twin)]
        cells = {one.metric.title: bold(one) for one in own}
        rows.append([f"{name} minus {twin}", *(cells.get(title, NONE) for title in titles)])
    return table(["", *titles], rows)


def accuracy_tables(
    study: Study,
    metrics: Sequence[Metric],
    compared: Sequence[Compared],
    registered: Mapping[str, Collection[int]] | None = None,
) -> list[str]:
    """Means and paired differences; another domain and samples of images in tables of their own."""
    body = []
    for name, own in _by_table(metrics).items():
        body += [f"In the {name}:" if "domain" in name else f"On a {name}:"] if name else []
        body.append(by_variant(study, own, None if name else registered))
        differences = [one for one in compared if one.metric.table == name]
        if differences:
            body += ["Paired differences:", differences_by_variant(differences, own)]
    return body


def difference_tables(compared: Sequence[Compared], metrics: Sequence[Metric]) -> list[str]:
    """Differences alone, in as many tables."""
    parts = [
        ([one for one in compared if one.metric.table == name], own)
        for name, own in _by_table(metrics).items()
    ]
    return [differences_by_variant(differences, own) for differences, own in parts if differences]


def _by_table(metrics: Sequence[Metric]) -> dict[str, list[Metric]]:
    found: dict[str, list[Metric]] = {}
    for metric in metrics:
        found.setdefault(metric.table, []).append(metric)
    return found


def judged_table(judged: Sequence[Judged], images: Mapping[str, str] | None = None) -> str:
    """A line for each comparison of those that were corrected together, on each row's `images`."""
    rows = []
    for each in judged:
        one = each.one
        about = [f"{one.variant} minus {one.twin}", one.metric.title, each.word]
        about += [] if images is None else [images.get(one.variant, NONE)]
        p = NONE if math.isnan(each.p) else f"{each.p:.2g}"
        rows.append([*about, one.text, one.seeds_text, p])
    where = [] if images is None else ["images"]
    heads = ["", "metric", "verdict", *where, "difference", "seeds", "Holm's p"]
    return table(heads, rows, left=3 + len(where))


def by_metric(
    study: Study,
    metrics: Sequence[Metric],
    compared: Sequence[Compared],
    only_plain: bool = False,
) -> str:
    """A line for each metric, a column for each variant and for each difference."""
    others = list(dict.fromkeys((one.variant, one.twin) for one in compared))
    shown = [v for v in study.variants if v.is_plain or not only_plain]
    heads = ["", *(v.name for v in shown), *(f"{a} minus {b}" for a, b in others)]
    rows = []
    for metric in metrics:
        cells = [mean_text(metric.mean(v), metric.digits) for v in shown]
        for name, _ in others:
            own = [c for c in compared if c.variant == name and c.metric is metric]
            cells.append(bold(own[0]) if own else NONE)
        rows.append([metric.title, *cells])
    return table(heads, rows)


def by_seed(study: Study, metrics: Sequence[Metric]) -> str:
    """A line for each run."""
    rows = []
    for run in study.runs:
        found = [metric.find(run) for metric in metrics]
        cells = [
            NONE if record is None else f"{metric.read(record):.{metric.digits}f}"
            for metric, record in zip(metrics, found, strict=True)
        ]
        rows.append([run.label, *cells])
    return table(["", *(metric.title for metric in metrics)], rows)


def bold(one: Compared) -> str:
    """A difference, marked where its interval leaves out zero."""
    return f"**{one.text}**" if one.is_resolved else one.text
