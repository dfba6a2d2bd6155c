"""Does the discrete stability margin predict accuracy? One point for each set of gains."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from scipy import stats

from pidformer.control import PIDGains, spectral_radius
from pidformer.models.gains import as_gains
from pidformer.report.published.numbers import Compared
from pidformer.report.published.studies import Study, Variant
from pidformer.report.published.tables import table

FEWEST = 4
"""Rows below which a correlation says nothing."""


def stability_words(study: Study, compared: Sequence[Compared]) -> str:
    """The largest radius of the idealised recursion beside the difference in clean accuracy."""
    clean = {one.variant: one for one in compared if one.metric.title == "Clean"}
    found = [
        (variant.name, worst_radius(gains), clean[variant.name])
        for variant in study.variants
        if variant.name in clean and (gains := _gains(variant)) is not None
    ]
    if len(found) < FEWEST:
        return ""
    found.sort(key=lambda point: point[1])
    rank = stats.spearmanr([p[1] for p in found], [p[2].found.mean for p in found])
    rows = [[name, f"{radius:.3f}", one.text] for name, radius, one in found]
    heads = ["", "largest radius, kappa in [0, 1]", "Clean, less its twin"]
    words = (
        f"The stability margin against accuracy, over the {len(found)} rows with one set of gains: "
        f"rank correlation of the largest radius and the difference in Clean {rank.statistic:+.2f} "
        f"(p {rank.pvalue:.2g}; rows share their twins, so take it as a description)."
    )
    return f"{words}\n\n{table(heads, rows)}"


def worst_radius(gains: PIDGains) -> float:
    """Largest |pole| over eigenvalues of attention from 0 to 1; below 1 every mode decays."""
    kappas = torch.linspace(0, 1, 201, dtype=torch.float64)
    return float(spectral_radius(kappas, gains).max())


def _gains(variant: Variant) -> PIDGains | None:
    """The gains of a variant that has the same in every layer, fixed, and nothing else."""
    model = variant.header.settings["recipe"].get("model", {})
    options = model.get("options", {})
    is_other = any(options.get(name) for name in ("integral_leak", "integral_limit"))
    given = model.get("gains")
    if given is None or isinstance(given, list) or model.get("learn_gains") or is_other:
        return None
    return as_gains(given)
