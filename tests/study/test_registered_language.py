"""What was registered of language studies stands on their pages, with the learning curves."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from pidformer.report.collect import PublishedRun
from pidformer.results import Record
from pidformer.statistics import crossed_items
from study.comparisons import holm
from study.language import language_sections
from study.records import Study, load_registered
from study.retrofit_plan import NOISY, RETROFIT, SENTENCES
from tests.study.made import cells, page_of

DOCS = Path(__file__).parents[2] / "docs"
SEEDS = (10, 11, 12)
ROWS = ("strided/test", *(f"strided/test/characters/{s}" for s in (1, 3, 5)))


def run_of(study, variant, seed, records, ppl=()):
    about = {"study": study, "run": f"{variant}-seed{seed}", "variant": variant, "seed": seed}
    about |= {
        "task": "language",
        "twin": "t",
        "data": records[0].settings["data"],
        "command": "",
        "weights": "w",
    }
    about["gains"] = None if variant == "softmax" else "PIDGains(p=1)"
    recipe = {"task": "language", "model": {"name": "lm"}, "data": {"name": "d", "batch_size": 1}}
    recipe |= {"text": {"length": 8}, "optim": {"name": "sgd", "lr": 1}, "seed": seed}
    recipe |= {"train": {"precision": "fp32"}, "schedule": {"epochs": 3}}
    header = Record(kind="run", metrics={}, settings=about | {"recipe": recipe})
    header.details.update({"ppl": [*ppl]} if ppl else {})
    folder = Path(f"{about['run']}.jsonl")
    return PublishedRun(folder=folder, header=header, records=tuple(records), recipe=recipe)


def record_of(data, row, losses, **more):
    metrics = {"ppl": math.exp(np.mean(losses)), "unknown": 0.0, "seconds": 1.0}
    settings = {"data": data, "row": row, "command": "x", "machine": None} | more
    details = {"block_nll": [*map(float, losses)]}
    return Record(kind="language", metrics=metrics, settings=settings, details=details)


@pytest.fixture(scope="module")
def retrofit():
    """Losses (S, N) by variant and row, and their study."""
    rng, losses, runs = np.random.default_rng(0), {}, []
    blocks = rng.normal(3, 0.3, 60)
    shift = dict(zip([*ROWS, "away"], (0.006, -0.004, -0.02, -0.05, 0.02), strict=True))
    for variant in ("softmax", "pid"):
        for row in shift:
            own = blocks + rng.normal(0, 5e-4, (3, 1)) + rng.normal(0, 2e-3, (3, 60))
            losses[variant, row] = own + (variant == "pid") * shift[row]
        for place, seed in enumerate(SEEDS):
            more = {"limit": 200000, "stride": 128}
            own = [record_of("novels", r, losses[variant, r][place], **more) for r in ROWS]
            own.append(record_of("wikitext", ROWS[0], losses[variant, "away"][place], **more))
            runs.append(run_of("retrofit", variant, seed, own))
    return losses, Study(name="retrofit", title="T", about="", runs=tuple(runs))


def test_the_retrofit_is_decided_by_holm_over_four(retrofit):
    losses, study = retrofit
    found = [crossed_items(losses["pid", row] - losses["softmax", row]) for row in ROWS]
    found[0] = crossed_items(losses["pid", ROWS[0]] - losses["softmax", ROWS[0]] - 0.01)
    adjusted = holm([one.p for one in found])
    text = page_of(study).partition("### Primary comparisons")[2].partition("###")[0]
    assert "Holm's p is over these 4:" in text
    lines = [line.split(" | ") for line in text.splitlines() if line.startswith("| pid minus")]
    titles = ["novels, test, strided by 128, first 200000 tokens, minus 0.01", *NOISY]
    assert [line[1] for line in lines] == titles
    for line, one, p in zip(lines, found, adjusted, strict=True):
        assert line[2] == "better" and p < 0.05
        assert line[3].startswith(f"{one.mean:+.4f}".replace("-", "−"))  # noqa: RUF001
        assert line[5].strip(" |") == f"{p:.2g}"
    assert cells(page_of(study), "R1, primary")[-1] == "better"  # 0.006 worse, and 0.01 is allowed
    assert cells(page_of(study), "R2, primary")[-1] == "better"
    assert cells(page_of(study), "R3")[-1] == "worse"


def test_words_of_the_vocabulary_are_not_told_where_none_is_unknown(retrofit):
    text = page_of(retrofit[1])
    away = text.partition("### Another kind of text")[2].partition("###")[0]
    assert "known" not in away and "wikitext, test" in away
    assert "at three strengths (letters changed)" in text


def test_two_seeds_of_three_decide_nothing(retrofit):
    study = retrofit[1]
    early = study.only([run for run in study.runs if run.seed != 12])
    text = page_of(early).partition("### Primary comparisons")[2].partition("###")[0]
    verdicts = [line.split(" | ")[2] for line in text.splitlines() if line.startswith("| pid")]
    assert verdicts == ["not decided yet"] * 4 and "2 of 3" in text


@pytest.mark.parametrize(("part", "plan"), [(6, RETROFIT), (7, SENTENCES)])
def test_the_page_of_the_study_has_the_same_hypotheses(part, plan):
    page = (DOCS / "study.md").read_text().partition(f"# Part {part}")[2].partition("\n# ")[0]
    lines = [line.strip("|").split("|") for line in page.splitlines() if line[:3] in ("| R", "| M")]
    table = {name.strip(): [cell.strip() for cell in rest] for name, *rest in lines}
    assert [*table] == [one.name for one in plan.hypotheses]
    for one in plan.hypotheses:
        assert one.text == table[one.name][0]
        assert {*re.findall(r"`(\w+)`", table[one.name][1])} == {*one.pairs[0]}
    assert len(plan.primary) == 4 and "Holm's correction over four" in page
    assert f"`results/{plan.name}`" in page


def test_learning_curves_of_all_rows_are_drawn_over_seeds():
    """The gutenberg study: its curves, minus softmax's of the same seed, and G1 decided."""
    rng, runs, curves = np.random.default_rng(1), [], {}
    for variant, ahead in (("softmax", 0.0), ("p", 0.02), ("pid_paper", 0.03)):
        for seed in SEEDS:
            noise = rng.normal(0, 1e-3, 3)
            nats = np.array([6.0, 5.0, 4.5]) - ahead * np.array([3, 2, 1]) + noise
            curves[variant, seed] = nats
            ppl = [[float(x), float(y)] for x, y in zip((1, 2, 3), np.exp(nats), strict=True)]
            base = np.linspace(4, 5, 40) - ahead + rng.normal(0, 1e-3)
            rows = [record_of("gutenberg", f"sliding/{s}", base) for s in ("valid", "test")]
            runs.append(run_of("gutenberg", variant, seed, rows, ppl))
    study = Study(name="gutenberg", title="G", about="", runs=tuple(runs))
    (found,) = [one for one in language_sections(study) if one.title == "Learning curves"]
    (plain, _), (minus, _) = found.panels
    lines = plain.draw.keywords["series"]
    assert [*lines] == ["softmax", "p", "pid_paper"]
    assert [point.x for point in lines["p"]] == [1, 2, 3]
    points = minus.draw.keywords["series"]["pid_paper"]
    by_seed = np.stack([curves["pid_paper", s] - curves["softmax", s] for s in SEEDS])
    np.testing.assert_allclose([p.y for p in points], by_seed.mean(0), rtol=1e-9)
    half = 4.302653 * by_seed.std(0, ddof=1) / math.sqrt(3)  # Student's t, two degrees of freedom
    np.testing.assert_allclose([p.high - p.y for p in points], half, rtol=1e-5)
    assert cells(page_of(study), "G1, primary")[-1] == "better"
    assert cells(page_of(study), "G2")[-1] == "better"


def test_what_a_longer_window_loses_is_over_the_same_blocks():
    """Part 5: the loss at the longer window minus that at 8 tokens, minus softmax's."""
    rng, losses, runs = np.random.default_rng(2), {}, []
    for variant, more in (("softmax", 0.1), ("p", 0.3)):
        for seed in (50, 51, 52, 53, 54):
            near = rng.normal(4, 0.2, 30)
            far = near + more + rng.normal(0, 0.01, 30)
            losses.setdefault(variant, []).append(far - near)
            rows = {("strided/test", 4): near, ("strided/test", 2): near + 1}
            rows |= {(f"strided/test/window/{w}", w // 2): far for w in (512, 1024)}
            own = [record_of("novels", row, x, stride=s) for (row, s), x in rows.items()]
            runs.append(run_of("windows", variant, seed, own))
    study = Study(name="windows", title="W", about="", runs=tuple(runs))
    text = page_of(study)
    found = crossed_items(np.stack(losses["p"]) - np.stack(losses["softmax"]))
    shown = cells(text, "novels, test, window 512, what it loses")
    assert shown[1].startswith(f"{np.mean(losses['softmax']):.4f}")
    assert shown[3].strip("*").startswith(f"{found.mean:+.4f}")
    assert cells(text, "W2")[-1] == "worse"
    assert "worse: p on" in cells(text, "W1")[-1] and "no runs yet" in cells(text, "W1")[-1]


@pytest.mark.parametrize("name", ["camvid-seeds", "novels-seeds", "gutenberg", "windows"])
def test_hypotheses_of_the_files_are_those_of_the_page(name):
    page = (DOCS / "study.md").read_text()
    for one in load_registered(name).hypotheses:
        lines = [x for x in page.splitlines() if re.match(rf"\| (\w+, )?{one.name}(, \w+)? \|", x)]
        assert len(lines) == 1 and f"| {one.text} |" in lines[0], one.name


def test_a_learning_curve_is_the_mean_loss_and_not_the_loss_of_the_mean_perplexity():
    losses = {"softmax": ((4.0, 8.0), (3.0, 5.0)), "pid": ((4.5, 7.0), (2.5, 5.0))}  # epochs, seeds
    runs = [
        run_of("s", name, seed, [record_of("d", "segments/valid", [3.0, 4.0])], ppl)
        for name, own in losses.items()
        for seed in (0, 1)
        for ppl in [[(epoch, math.exp(by_seed[seed])) for epoch, by_seed in enumerate(own, 1)]]
    ]
    sections = language_sections(Study(name="s", title="T", about="", runs=tuple(runs)))
    curves, ahead = next(s for s in sections if s.title == "Learning curves").panels
    for name, own in losses.items():
        points = curves[0].draw.keywords["series"][name]
        assert [(p.x, p.y) for p in points] == [
            (epoch, pytest.approx(np.mean(by_seed))) for epoch, by_seed in enumerate(own, 1)
        ]
    first, last = ahead[0].draw.keywords["series"]["pid"]
    assert (first.y, last.y) == (pytest.approx(-0.25), pytest.approx(-0.25))


def test_the_picture_of_noise_is_of_one_text_however_many_were_measured():
    def records(seed):
        for limit, stride in ((200, 4), (None, 4), (200, 2)):
            more = {"limit": limit, "stride": stride}
            for strength in (3, 1):
                loss = seed + strength + (limit or 0) / 100 + stride / 10
                row = f"strided/test/drops/{strength}"
                yield record_of("d", row, [loss, loss], label="x", **more)

    runs = [
        run_of("s", name, seed, [*records(seed)]) for name in ("softmax", "pid") for seed in (0, 1)
    ]
    sections = language_sections(Study(name="s", title="T", about="", runs=tuple(runs)))
    ((panel, _),) = next(s for s in sections if s.title == "Under noise").panels
    for points in panel.draw.keywords["series"].values():
        assert [(p.x, p.y) for p in points] == [
            (x, pytest.approx(np.mean(np.exp([x + 2.4, x + 3.4])))) for x in (1, 3)
        ]
