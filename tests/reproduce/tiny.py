"""A plan that takes seconds: tiny twins, a tiny suite."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from pidformer import results
from pidformer.reproduce import Job, Plan
from pidformer.reproduce.plan import _report_of_recipes
from tests.training.tiny import tiny_recipe

SUITE = {"rows": ["clean", {"fgsm": {"eps": 0.05}}, {"noise": {"eps": 0.3}}]}
TIMES = ("seconds", "images_per_second")


def write_inputs(root: Path) -> tuple[dict[str, Path], Path]:
    """Recipe files by model, and a suite."""
    root.mkdir(parents=True, exist_ok=True)
    recipes = {}
    for model, gains in (("softmax", None), ("pid", "0.4,0.1,0.05,1")):
        fields = tiny_recipe().to_dict()
        fields["model"]["gains"] = gains
        recipes[model] = root / f"{model}.yaml"
        recipes[model].write_text(yaml.safe_dump(fields))
    suite = root / "tiny.yaml"
    suite.write_text(yaml.safe_dump(SUITE))
    return recipes, suite


def tiny_plan(inputs: Path, out: Path, *, analyze: bool = True) -> Plan:
    """Train, evaluate, analyse two twins, and report."""
    recipes, suite = write_inputs(inputs)
    jobs: list[Job] = []
    for model, recipe in recipes.items():
        about = {"run": out / "runs" / f"{model}-seed0", "data": None, "task": "classification"}
        kinds = {
            "train": {"recipe": str(recipe), "seed": 0},
            "evaluate": {"suite": str(suite), "curve": None, "eps": None, "domain": "pixel"},
        }
        if analyze:
            kinds["analyze"] = {"limit": 16, "out": out / "analysis" / model}
        before: tuple[str, ...] = ()
        for kind, more in kinds.items():
            job = Job(
                id=f"{kind}.{model}",
                kind=kind,
                title=f"{kind} {model}",
                arguments=about | more,
                needs=before,
                seconds=1.0,
            )
            jobs.append(job)
            before = (job.id,)
    return Plan(out=out, jobs=(*jobs, _report_of_recipes(out, jobs)), timed_on="this machine")


def records_of(out: Path) -> dict[str, list[dict]]:
    """All records by run, without what depends on the clock or the folder's place."""
    found = {}
    for run in sorted((out / "runs").iterdir()):
        lines = []
        for record in results.read(run):
            fields = json.loads(record.to_json().replace(str(out), "OUT"))
            del fields["time"]
            fields["metrics"] = {k: v for k, v in fields["metrics"].items() if k not in TIMES}
            lines.append(fields)
        found[run.name] = lines
    return found
