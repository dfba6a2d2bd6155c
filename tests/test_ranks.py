"""Several processes share an evaluation, an analysis, a search; the records are those of one."""

import json
import shutil

import pytest

from pidformer import results
from pidformer.training.run import train
from tests.data.pairs import write_parquet
from tests.evaluation.test_resume import records
from tests.processes import ends_well, several
from tests.report.runs import make_run
from tests.training.test_segmentation import recipe as tiny_segmenter
from tests.training.tiny_language import tiny_language

pytestmark = pytest.mark.slow

CODE = "import runpy; runpy.run_module('tests.evaluation.shared_work', run_name='__main__')"
SUITE = """
rows:
  - clean
  - fgsm: {eps: 0.1}
  - pgd: {eps: 0.1, steps: 2, step_size: 0.05}
  - spsa: {eps: 0.1, steps: 2, samples: 4}
  - sld: {eps: 10, steps: 2, step_size: 1, sparsity: 0.9}
  - noise: {eps: 0.3}
  - apgd: {eps: 0.1, steps: 2}
  - fab: {eps: 0.1, steps: 2}
  - square: {eps: 0.1, queries: 5}
  - corruptions: {names: [fog, impulse_noise], severities: [2]}
  - ood
"""
KINDS = {"image": ("robustness", "analysis", "tune"), "scenes": ("segmentation",)}
KINDS |= {"text": ("language",)}


@pytest.fixture(scope="module")
def made(tmp_path_factory, texts):
    """A run of each task, and a suite of all threats."""
    root = tmp_path_factory.mktemp("ranks")
    write_parquet(root / "camvid", val=9, sizes=((24, 32), (24, 32), (32, 24)))
    runs = root / "runs"
    make_run(runs / "image", "0.4,0.1,0.05,1")
    train(tiny_segmenter("schedule.epochs=1"), runs / "scenes", data=root / "camvid",
          device="cpu", is_shown=False)  # fmt: skip
    train(tiny_language("schedule.epochs=1"), runs / "text", data=texts,
          device="cpu", is_shown=False)  # fmt: skip
    (root / "suite.yaml").write_text(SUITE)
    return root


def test_records_of_one_two_and_three_processes_are_the_same(made, texts, monkeypatch):
    monkeypatch.setenv("TEXTS", str(texts))
    found = {}
    for count in (1, 2, 3):
        root = made / f"by-{count}"
        shutil.copytree(made / "runs", root)
        ends_well(*several(count, CODE, "measure", root, made / "suite.yaml"))
        found[count] = {
            (run, kind): records(root / run, kind) for run, kinds in KINDS.items() for kind in kinds
        } | {name: json.loads((root / f"{name}.json").read_text()) for name in ("whole", "broken")}
        assert len(found[count]["image", "robustness"]) == 11  # ood: digits have no such split
        assert len(found[count]["image", "analysis"]) == 5
        assert len(found[count]["image", "tune"]) == 2
        assert len(found[count]["scenes", "segmentation"]) == 17
        assert len(found[count]["text", "language"]) == 2
        assert len(found[count]["whole"]) == 23 and len(found[count]["broken"]) == 20
    assert found[1] == found[2] == found[3]
    assert found[1]["whole"][:2] + found[1]["whole"][3:9] != found[1]["broken"][:8]


def test_a_process_that_dies_ends_the_run_with_one_line_and_rows_stay(made):
    root = made / "dies"
    shutil.copytree(made / "runs", root)
    first, second, third = several(3, CODE, "dies", root, made / "suite.yaml")
    assert second.wait() == -9
    assert first.wait() == 2 and third.wait() == 2
    said = first.stderr + third.stderr
    assert said.count("pidformer: another process of this run has ended") == 1
    assert "Traceback" not in said
    kept = [r.settings["row"] for r in results.read(root / "image") if r.kind == "robustness"]
    assert kept == ["clean"]
