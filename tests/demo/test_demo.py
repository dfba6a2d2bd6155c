import json
from html.parser import HTMLParser

import pytest

import pidformer as pf
from pidformer import results
from pidformer.demo import demo
from pidformer.demo.measure import BUDGETS, Job
from pidformer.demo.run import _jobs
from pidformer.demo.summary import MODELS, summarise

TINY = (
    "model.options={patch_size: 4, embed_dim: 16, depth: 3, num_heads: 2, mlp_ratio: 2}",
    "schedule.epochs=1",
    "schedule.warmup_epochs=0",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    (out / "mine.txt").write_text("keep me")
    results.append(out, results.Record(kind="other", metrics={"a": 1.0}))
    return demo(out, seeds=1, workers=1, overrides=TINY, is_shown=False)


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
    assert names == {"mine.txt", "results.jsonl", "report.html", "figures", "runs"}
    assert {p.name for p in (made.out / "runs").iterdir()} == {f"{m}-seed0" for m in MODELS}
    figures = sorted((made.out / "figures").iterdir())
    assert [p.name for p in figures] == ["attacks.png", "similarity.png", "tokens.png"]
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in figures)


def test_the_page_stands_alone(made):
    text = made.report.read_text(encoding="utf-8")
    page = Page(text)
    assert page.title.startswith("pidformer demo")
    assert page.tags.count("h1") == 1 and page.tags.count("figure") == 3
    assert len(page.images) == 8 and all(len(image["alt"]) > 30 for image in page.images)
    assert page.references and all(r.startswith("data:image/svg+xml") for r in page.references)
    assert "prefers-color-scheme: dark" in text and "<caption>" in text
    for tag in ("script", "link", "iframe"):
        assert tag not in page.tags
    for said in made.to_dict()["verdicts"].values():
        for words in said.values():
            assert words.replace(" %", "\u00a0%") in text


def test_records_are_enough_to_measure_again(made):
    records = results.read(made.out)
    assert records[0].kind == "other"  # not ours, kept
    ours = records[1:]
    assert len(ours) == len(MODELS) * (3 + 2 * len(BUDGETS))
    assert summarise(ours) == made.models
    for record in ours:
        assert {"recipe", "overrides", "seed", "run", "data", "machine"} <= set(record.settings)
    attack = next(r for r in ours if r.settings.get("attack") == "PGD")
    from pidformer.demo.measure import validation_images

    images, labels = validation_images()
    every = attack.settings["every_image"]
    threat = eval(attack.settings["threat"], vars(pf.robustness))
    again = pf.robustness.accuracy_under(
        pf.load(attack.settings["run"]),
        [(images[::every], labels[::every])],
        threat,
        seed=attack.settings["seed"],
    )
    assert again == (attack.metrics["correct"], attack.metrics["images"])


def test_a_second_run_goes_on_and_adds_nothing(made):
    before = results.read(made.out)
    again = demo(made.out, seeds=1, workers=1, overrides=TINY, is_shown=False)
    assert again.models == made.models
    assert len(results.read(made.out)) == len(before)
    assert (made.out / "mine.txt").read_text() == "keep me"


@pytest.mark.slow
def test_processes_find_the_same(made, tmp_path):
    found = demo(tmp_path, seeds=1, workers=2, overrides=TINY, is_shown=False)
    assert found.models == made.models


def test_another_recipe_in_the_folder_is_refused(made):
    with pytest.raises(pf.InputError, match="another recipe"):
        demo(made.out, seeds=1, workers=1, is_shown=False)


def test_each_run_has_its_own_folder(tmp_path):
    jobs = _jobs(tmp_path, 3, "cpu", ())
    assert len({job.run for job in jobs}) == 12 and isinstance(jobs[0], Job)


@pytest.fixture
def at_hand(made, monkeypatch):
    """The command, without the training."""
    opened = []
    monkeypatch.setattr("pidformer.demo.demo", lambda *_, **__: made)
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
