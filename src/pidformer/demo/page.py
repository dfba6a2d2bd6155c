"""The report: one HTML file that needs nothing else, and the figures as PNG."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from pidformer.analysis import token_trajectory
from pidformer.demo import figures
from pidformer.demo.measure import ATTACKED_EVERY, BUDGETS, PGD_STEPS, validation_images
from pidformer.demo.summary import CHANCE, SHOWN_BUDGET, ModelSummary
from pidformer.demo.words import verdicts
from pidformer.files import atomic_path
from pidformer.report.panels import picture, save_panels
from pidformer.report.templates import page_template
from pidformer.results import Record
from pidformer.runs.model import load

SHOWN_IMAGE = 0
"""The validation image whose tokens are drawn."""


def write_report(
    out: Path, found: Mapping[str, ModelSummary], records: Sequence[Record], *, seconds: float
) -> Path:
    """Write OUT/figures/*.png and OUT/report.html; the path of the page."""
    first_runs = {
        r.settings["model"]: r.settings["run"]
        for r in records
        if r.kind == "clean" and r.settings["seed"] == 0
    }
    images, labels = validation_images()
    paths = {name: token_trajectory(load(first_runs[name]), images[SHOWN_IMAGE]) for name in found}
    panels = {
        "similarity": figures.similarity_panels(found),
        "attacks": figures.attack_panels(found),
        "tokens": figures.token_panels(paths),
    }
    for name, drawn in panels.items():
        save_panels(drawn, out / "figures" / f"{name}.png")
    alts = _alts(found)
    pictures = {
        name: [picture(panel, alt) for panel, alt in zip(drawn, alts[name], strict=True)]
        for name, drawn in panels.items()
    }
    clean = next(iter(found.values())).clean
    settings = records[0].settings
    page = page_template("demo", "report.html.j2").render(
        found=found,
        pictures=pictures,
        verdicts=verdicts(found),
        table=[model.to_dict() | {"label": model.label} for model in found.values()],
        seeds=len(clean),
        images=clean[0].images,
        attacked=-(-clean[0].images // ATTACKED_EVERY),
        budgets=BUDGETS,
        shown_budget=SHOWN_BUDGET,
        pgd_steps=PGD_STEPS,
        chance=CHANCE,
        digit=int(labels[SHOWN_IMAGE]),
        layers=len(next(iter(found.values())).similarity[0]),
        command=f"pidformer demo --out {shlex.quote(str(out))} --seeds {len(clean)}",
        overrides=settings["overrides"],
        out=out,
        machine=settings["machine"],
        seconds=seconds,
    )
    path = out / "report.html"
    with atomic_path(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return path


def _alts(found: Mapping[str, ModelSummary]) -> dict[str, list[str]]:
    """Each panel in words, with its numbers."""
    ends = {name: f"{model.last_similarity.mean:.3f}" for name, model in found.items()}

    def held(attack: str) -> str:
        parts = []
        for model in found.values():
            scores = model.attacks[attack, SHOWN_BUDGET]
            mean = sum(score.percent for score in scores) / len(scores)
            parts.append(f"{model.label} {mean:.1f} %")
        return f"Accuracy by budget under {attack}. At eps {SHOWN_BUDGET:g}: {'; '.join(parts)}."

    return {
        "similarity": [
            f"Token similarity by layer {which} the residual. In the last layer: softmax "
            f"{ends['softmax' + suffix]}, PID {ends['pid' + suffix]}."
            for which, suffix in (("with", ""), ("without", "_no_residual"))
        ],
        "attacks": [held("FGSM"), held("PGD")],
        "tokens": [
            f"The tokens of one image at several depths, {model.label}; similarity at the end "
            f"{ends[name]} over all images."
            for name, model in found.items()
        ],
    }
