"""Published records of language models, and their page."""

import math

import numpy as np
import pytest

from pidformer import results
from pidformer.evaluation.language import evaluate_language, evaluate_language_robustness
from pidformer.report.publish import publish
from pidformer.statistics import crossed_items
from study.pages import results_pages
from study.records import read_studies
from tests.report.fresh import GAINS, fresh_run
from tests.study.made import cells
from tests.training.tiny_language import tiny_language

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(texts, tmp_path_factory):
    root = tmp_path_factory.mktemp("published")
    away = root / "wikitext"
    away.mkdir()
    (away / "test.txt").write_text("w1 w2 w3 nobody knows w4 w5 w6 w7\n" * 40)
    home = root / "novels"
    home.symlink_to(texts)
    runs = []
    for name, gains in GAINS.items():
        for seed in (0, 1):
            recipe = tiny_language(f"model.gains={gains}", f"seed={seed}")
            run = fresh_run(root / "runs" / f"novels-{name}-seed{seed}", recipe, home)
            shared = {"device": "cpu"}
            evaluate_language(run, data=home, split="valid", **shared)
            evaluate_language(run, data=away, split="test", **shared)
            evaluate_language_robustness(
                run, data=home, kinds=["drops"], strengths=[1, 3], windows=[32], **shared
            )
            runs.append(run)
    publish(runs, root / "results" / "novels")
    made = results_pages(read_studies([root / "results"]))
    return runs, (made.texts["results/novels.md"], made.pictures)


def of(run, row, data="novels"):
    return next(
        r
        for r in results.read(run)
        if r.settings.get("row") == row and r.settings["data"].endswith(data)
    )


def test_language_is_reported_by_protocol_noise_window_and_text(made):
    runs, (text, pictures) = made
    ppl = [of(run, "sliding/valid").metrics["ppl"] for run in runs if "softmax" in run.name]
    assert cells(text, "novels, valid, sliding")[1].startswith(f"{np.mean(ppl):.2f} [")
    assert cells(text, "novels, valid, drops 3") and cells(text, "novels, valid, window 32")
    known = [of(r, "sliding/test", "wikitext") for r in runs if "softmax" in r.name]
    mean = np.mean([r.metrics["ppl_known"] for r in known])
    assert cells(text, "wikitext, test, sliding")[1].startswith(f"{mean:.2f} [")
    assert f"{known[0].metrics['unknown']:.1f} %" in text
    whole = text.partition("All tokens, the unknown ones among them")[2]
    mean = np.mean([r.metrics["ppl"] for r in known])
    assert cells(whole, "wikitext, test, sliding")[1].startswith(f"{mean:.2f} [")
    assert "- All tokens: **pid** minus softmax (2 seeds)." in text
    assert (
        "pidformer evaluate RUN --data DATA --split valid --protocol sliding` (DATA: novels)"
        in text
    )
    assert len(pictures) == 4


def test_differences_are_in_nats_over_seeds_and_blocks(made):
    runs, (text, _) = made
    losses = {
        name: np.stack(
            [of(r, "sliding/valid").details["block_nll"] for r in runs if f"-{name}-" in r.name]
        )
        for name in GAINS
    }
    found = crossed_items(np.round(losses["pid"], 3) - np.round(losses["softmax"], 3))
    shown = cells(text, "novels, valid, sliding")[3].strip("*").split()[0]
    assert float(shown.replace("−", "-")) == pytest.approx(found.mean, abs=2e-4)  # noqa: RUF001
    logs = [math.log(of(r, "sliding/test", "wikitext").metrics["ppl_known"]) for r in sorted(runs)]
    shown = cells(text, "wikitext, test, sliding")[3].strip("*").split()[0]
    assert float(shown.replace("−", "-")) == pytest.approx(  # noqa: RUF001
        (logs[0] + logs[1] - logs[2] - logs[3]) / 2, abs=1e-4
    )
