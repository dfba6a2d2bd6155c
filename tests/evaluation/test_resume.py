"""A killed evaluation goes on at the next row, and ends with the records of an undisturbed one."""

import json
import shutil

import pytest

from pidformer import results
from pidformer.evaluation import analysis, language
from pidformer.evaluation.images import evaluate_models
from pidformer.evaluation.suite import load_suite
from pidformer.evaluation.tasks import evaluate_other
from pidformer.training.run import train
from pidformer.tune import Space, tune
from tests.data.pairs import write_parquet
from tests.report.runs import make_run
from tests.training.test_segmentation import recipe as tiny_segmenter
from tests.training.tiny_language import tiny_language

pytestmark = pytest.mark.slow

SUITE = """
rows:
  - clean
  - fgsm: {eps: 0.1}
  - noise: {eps: 0.2}
  - corruptions: {names: [fog, contrast], severities: [2]}
"""
OPTIONS = {"device": "cpu", "limit": None, "seed": 0, "gains": None, "ema": False}
OPTIONS |= {"command": "evaluate", "is_shown": False}


class Killed(BaseException):
    """No error that anything would catch."""


def records(run, kind):
    """Without what depends on the clock or the folder's place."""
    found = []
    for record in results.read(run):
        if record.kind == kind:
            fields = json.loads(record.to_json().replace(str(run.parent), "RUNS"))
            del fields["time"]
            fields["metrics"].pop("seconds", None)
            found.append(fields)
    return found


def check(kind, measure, run, tmp_path, monkeypatch, count, kept=2):
    """`measure(run)` killed when it has `kept` records, then again."""
    whole, killed = (shutil.copytree(run, tmp_path / name / "run") for name in ("whole", "killed"))
    measure(whole)
    written, append = [], results.append

    def dies(folder, record):
        if record.kind == kind and len(written) == kept:
            raise Killed
        append(folder, record)
        written.append(record)

    with monkeypatch.context() as patch:
        patch.setattr(results, "append", dies)
        with pytest.raises(Killed):
            measure(killed)
    assert len(records(killed, kind)) == kept
    measured = []

    def counted(folder, record):
        append(folder, record)
        measured.append(record)

    with monkeypatch.context() as patch:
        patch.setattr(results, "append", counted)
        measure(killed)
        assert len([r for r in measured if r.kind == kind]) == count - kept  # the others are there
        measured.clear()
        measure(killed)
        assert not measured
    want = json.loads(json.dumps(records(whole, kind)).replace("whole", "killed"))
    assert records(killed, kind) == want and len(want) == count


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("images") / "run", "0.4,0.1,0.05")


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory):
    root = tmp_path_factory.mktemp("segmentation")
    data = write_parquet(root / "data")
    run = root / "runs" / "run"
    train(tiny_segmenter("schedule.epochs=1"), run, data=data, device="cpu", is_shown=False)
    return run, data


def test_images(classifier, tmp_path, monkeypatch):
    (tmp_path / "suite.yaml").write_text(SUITE)
    suite = load_suite(tmp_path / "suite.yaml")

    def measure(run):
        evaluate_models([str(run)], suite, data="digits", limit=40, device="cpu", is_shown=False)

    check("robustness", measure, classifier, tmp_path, monkeypatch, 5)


def test_segmentation(segmenter, tmp_path, monkeypatch):
    run, data = segmenter
    rows = segmentation_rows()
    monkeypatch.setattr("pidformer.evaluation.tasks.segmentation_threats", lambda: rows)

    def measure(run):
        options = OPTIONS | {"views": "multi", "limit": 2}
        evaluate_other("segmentation", [str(run)], "robustness", data, **options)

    check("segmentation", measure, run, tmp_path, monkeypatch, 4)


def segmentation_rows():
    from pidformer.robustness import segmentation_threats

    rows = segmentation_threats()
    return {name: rows[name] for name in list(rows)[:4]}


def test_language(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setenv("PIDFORMER_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "data"
    data.mkdir()
    for split in ("train", "valid", "test"):
        (data / f"{split}.txt").write_text("the cat sat on the mat and the dog ran\n" * 60)
    run = tmp_path / "runs" / "run"
    recipe = tiny_language("schedule.epochs=1")
    train(recipe, run, data=data, device="cpu", is_shown=False)
    rows = list(language.robustness_rows(kinds=["drops"], strengths=[1, 4], windows=[32]))
    assert [row for row, _ in rows] == [
        "clean",
        "drops/1",
        "drops/4",
        "window/32",
        "window/32/sliding",
    ]
    monkeypatch.setattr(language, "robustness_rows", lambda **_: rows)

    def measure(run):
        options = OPTIONS | {"split": "valid,test", "precision": "fp32"}
        evaluate_other("language", [str(run)], "robustness", data, **options)

    check("language", measure, run, tmp_path, monkeypatch, 10)


@pytest.mark.parametrize("kept", [1, 2, 3, 4])
def test_analysis(classifier, tmp_path, monkeypatch, kept):
    def measure(run):
        analysis.analyze([run], limit=12, spectrum_limit=3, device="cpu", is_shown=False)

    check("analysis", measure, classifier, tmp_path, monkeypatch, 5, kept)


def test_the_search_for_gains(classifier, tmp_path, monkeypatch):
    def measure(run):
        space = Space(p=(0.2, 0.6), i=(0.0, 0.3), d=(0.0,))
        tune(run, metric="noise", space=space, limit=30, device="cpu")

    check("tune", measure, classifier, tmp_path, monkeypatch, 5)
