import base64
import io
import json
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

import pidformer as pf
from pidformer import results
from pidformer.evaluation.suite import load_suite
from pidformer.report.collect import collect
from pidformer.report.demo.models import ATTACKED, MODELS, read_models
from pidformer.report.demo.page import COUNT
from pidformer.report.panels import png_uri
from pidformer.report.write import write_report
from pidformer.reproduce import demo
from pidformer.reproduce.demo_plan import demo_plan
from pidformer.reproduce.job_kinds import attacked_digits
from pidformer.robustness.compare import hits
from pidformer.statistics import crossed_items
from tests.processes import warm

pytestmark = pytest.mark.slow

TINY = (
    "model.options={patch_size: 4, embed_dim: 16, depth: 3, num_heads: 2, mlp_ratio: 2}",
    "schedule.epochs=1",
    "schedule.warmup_epochs=0",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    (out / "mine.txt").write_text("keep me")
    return demo(out, seeds=1, jobs=1, overrides=TINY, is_shown=False)


def run_folders(made):
    return [made.out / "runs" / "digits" / f"{model}-seed0" for model in MODELS]


class Page(HTMLParser):
    """What the tests ask of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.images, self.references, self.title = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append(tag)
        if tag == "img":
            self.images.append(attributes)
        self.references += [v for k, v in attributes.items() if k in ("src", "href", "srcset")]

    def handle_data(self, data):
        if self.tags and self.tags[-1] == "title" and not self.title:
            self.title = data


def test_the_folder_holds_everything(made):
    names = {path.name for path in made.out.iterdir()}
    ours = {"report.html", "report.json", "figures", "runs", "jobs", "claims"}
    assert names == {"mine.txt"} | ours
    assert set((made.out / "runs" / "digits").iterdir()) == set(run_folders(made))
    figures = sorted((made.out / "figures").iterdir())
    assert [p.name for p in figures] == ["attacks.png", "similarity.png", "tokens.png"]
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in figures)


def test_the_page_stands_alone(made):
    text = made.report.read_text(encoding="utf-8")
    page = Page(text)
    assert page.title.startswith("pidformer demo")
    assert page.tags.count("h1") == 1 and page.tags.count("figure") == 3
    digits = [image for image in page.images if image["src"].startswith("data:image/png;base64,")]
    assert len(digits) == COUNT * (1 + len(MODELS)) and len(page.images) == len(digits) + 8
    assert all(len(image["alt"]) > 30 for image in page.images)
    assert all(r.startswith(("data:image/svg+xml", "data:image/png")) for r in page.references)
    assert "prefers-color-scheme: dark" in text and "<caption>" in text
    for tag in ("script", "link", "iframe"):
        assert tag not in page.tags
    for said in made.to_dict()["verdicts"].values():
        for words in said.values():
            assert words.replace(" %", "\u00a0%") in text


def test_the_shown_digits_are_as_the_records_say(made):
    from pidformer.data import open_images, sample_images

    images, labels = sample_images(open_images("digits", "val"), ATTACKED, image_size=8)
    models = {run.name.removesuffix("-seed0"): pf.load(run) for run in run_folders(made)}
    view = attacked_digits(models)
    uris = [png_uri(image) for image in images]
    places = [uris.index(head["uri"]) for head in view["heads"]]
    assert [head["label"] for head in view["heads"]] == labels[places].tolist()
    assert len(view["lines"]) == len(MODELS)
    for line, run in zip(view["lines"], run_folders(made), strict=True):
        (attack,) = [r for r in results.read(run) if r.settings.get("row") == "pgd@0.05"]
        assert [not cell["is_wrong"] for cell in line["cells"]] == hits(attack)[places].tolist()
        for cell, place in zip(line["cells"], places, strict=True):
            sent = base64.b64decode(cell["uri"].partition(",")[2])
            shown = np.asarray(Image.open(io.BytesIO(sent)), dtype=float) / 255
            assert 0 < np.abs(shown - images[place, 0].numpy()).max() <= 0.05 + 0.5 / 255 + 1e-6


def test_records_are_enough_to_measure_again(made):
    from pidformer.data import open_images, sample_images

    rows = len(load_suite("demo").rows)
    for run in run_folders(made):
        records = [r for r in results.read(run) if r.kind == "robustness"]
        assert len(records) == rows + 1
        for record in records:
            assert {"recipe", "train_seed", "model", "data", "machine"} <= set(record.settings)
    attack = next(r for r in records if r.settings["row"] == "pgd@0.05")
    assert attack.settings["command"].endswith(f"--suite demo --limit {ATTACKED}")
    batch = sample_images(open_images("digits", "val"), ATTACKED, image_size=8)
    threat = eval(attack.settings["threat"], vars(pf.robustness))
    again = pf.robustness.accuracy_under(
        pf.load(attack.settings["model"]), [batch], threat, seed=attack.settings["seed"]
    )
    assert again == (hits(attack).sum(), attack.metrics["images"])


@pytest.mark.usefixtures("undrawn")
def test_the_report_reads_the_same_runs_and_gives_the_same_interval(made, tmp_path):
    twins = [run for run in run_folders(made) if "no_residual" not in run.name]
    report = write_report(twins, tmp_path)
    (found,) = [t["lines"] for t in report.tables if t["lines"]]
    line = next(line for line in found if line["row"] == "Clean")
    (told,) = line["differences"].values()
    rows = [{r.settings.get("row"): r for r in results.read(run)} for run in twins]
    softmax, pid = (hits(row["clean"]).astype(float) for row in rows)
    expected = crossed_items(100 * (pid - softmax))
    assert (told["points"], told["low"], told["high"]) == expected[:3]
    interval = f"{expected.mean:+.1f} points [{expected.low:+.1f}, {expected.high:+.1f}]"
    said = made.found["verdicts"]["residual"]["headline"]
    assert interval.replace("-", "\u2212") in said
    assert {path.stem for path in report.figures} >= {"similarity", "attacks", "training"}


def test_evaluate_finds_what_the_demo_measured(made, run):
    before = [len(results.read(folder)) for folder in run_folders(made)]
    options = ("--suite", "demo", "--limit", ATTACKED, "--device", "cpu", "--json")
    code, out, _ = run("evaluate", *run_folders(made), *options)
    assert code == 0 and "pgd@0.05" in out
    assert [len(results.read(folder)) for folder in run_folders(made)] == before


def test_what_is_measured_later_does_not_change_the_page(made):
    folder = run_folders(made)[1]
    kept = results.read(folder)
    clean = next(r for r in kept if r.settings.get("row") == "clean")
    settings = {**clean.settings, "gains": "PIDGains(p=0.1, i=0.0, d=0.0, beta=1.0)"}
    other = replace(clean, metrics={**clean.metrics, "top1": 1.0}, settings=settings)
    results.append(folder, other)
    models = read_models(collect(run_folders(made)))
    results.rewrite(folder, kept)
    assert models["pid"].percent("clean").mean == clean.metrics["top1"] != 1.0


def test_a_second_run_goes_on_and_adds_nothing(made):
    before = {path: path.read_bytes() for path in made.out.rglob("*") if path.is_file()}
    again = demo(made.out, seeds=1, jobs=1, overrides=TINY, is_shown=False)
    assert again.found == made.found
    assert {path: path.read_bytes() for path in made.out.rglob("*") if path.is_file()} == before


def test_a_demo_that_lost_records_makes_these_alone(made):
    run = run_folders(made)[1]
    kept = results.read(run)
    results.rewrite(run, [r for r in kept if r.settings.get("row") != "pgd@0.05"])
    trained = (run / "model.safetensors").stat().st_mtime_ns
    again = demo(made.out, seeds=1, jobs=1, overrides=TINY, is_shown=False)
    assert again.found == made.found and len(results.read(run)) == len(kept)
    assert (run / "model.safetensors").stat().st_mtime_ns == trained


def test_processes_find_the_same(made, tmp_path, monkeypatch):
    warm(monkeypatch)
    found = demo(tmp_path, seeds=1, jobs=2, overrides=TINY, is_shown=False)
    assert found.found == made.found and list((tmp_path / "claims").iterdir()) == []


def test_another_recipe_in_the_folder_is_refused(made):
    with pytest.raises(pf.InputError, match="another recipe"):
        demo(made.out, seeds=1, jobs=1, is_shown=False)


def test_each_run_has_its_own_folder(tmp_path):
    plan = demo_plan(tmp_path, seeds=3)
    assert len({job.arguments["run"] for job in plan.jobs if job.kind == "train"}) == 12


@pytest.fixture
def at_hand(made, monkeypatch):
    """The command, without the training."""
    opened = []
    monkeypatch.setattr("pidformer.reproduce.demo", lambda *_, **__: made)
    monkeypatch.setattr("webbrowser.open", opened.append)
    return opened


def test_the_command_prints_a_table_and_the_path(run, made, at_hand):
    code, out, _ = run("demo")
    assert code == 0 and str(made.report) in out.replace("\n", "")
    assert all(label in out for label in MODELS.values()) and "PGD 0.05" in out
    assert at_hand == []  # nobody at a terminal: nothing opens


def test_the_command_as_json(run, made, at_hand):
    code, out, _ = run("demo", "--json")
    found = json.loads(out)
    assert code == 0 and [m["model"] for m in found["models"]] == list(MODELS)
    assert found["report"] == str(made.report) and set(found["verdicts"])
    assert found["models"][0]["clean"]["low"] <= found["models"][0]["clean"]["high"]


def test_the_report_opens_when_asked(run, made, at_hand):
    run("demo", "--open")
    assert at_hand == [made.report.resolve().as_uri()]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seeds", "0"], "seeds"),
        (["--jobs", "0"], "jobs must be at least 1"),
        (["--device", "tpu"], "device"),
        (["--out", "pyproject.toml"], "is a file"),
        (["--out", "/proc/nowhere"], "choose another --out"),
    ],
)
def test_bad_input_gets_one_line(run, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("")
    code, out, err = run("demo", *arguments)
    assert code == 2 and out == "" and words in err and err.count("\n") == 1
