import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest

from pidformer import results
from pidformer.errors import InputError
from pidformer.report.collect import collect, inputs_hash, read_folder, read_run
from pidformer.report.metrics import block_losses
from pidformer.report.publish import newest, publish, run_name, shrink
from pidformer.report.write import write_report
from pidformer.results import Record
from pidformer.robustness.compare import hits, outcomes
from tests.report.fresh import classifiers, fresh_run
from tests.training.tiny import tiny_recipe

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return classifiers(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def published(runs, tmp_path_factory):
    return publish(runs, tmp_path_factory.mktemp("results") / "digits")


def test_a_run_becomes_one_small_file_without_its_paths(runs, published):
    names = sorted(path.name for path in published)
    assert names == [f"{v}-seed{s}.jsonl" for v in ("pid", "softmax") for s in (0, 1)]
    for path in published:
        text = path.read_text()
        assert str(runs[0].parent) not in text and len(text) < 20_000
        assert all(json.loads(line) for line in text.splitlines())


def test_what_was_measured_can_be_read_back(runs, published):
    for run, path in zip(sorted(runs), sorted(published), strict=True):
        found, own = read_run(path), results.read(run)
        measured = {r.settings["row"]: r for r in own if r.kind == "robustness"}
        for row in ("clean", "fgsm"):
            record = found.one("robustness", row=row)
            assert np.array_equal(hits(record), hits(measured[row]))
            for key in ("weights", "gains", "machine", "data_hash", "threat", "limit"):
                assert record.settings.get(key) == measured[row].settings.get(key)
        assert found.header.settings["weights"] == measured["clean"].settings["weights"]
        assert found.seed == measured["clean"].settings["train_seed"]
        assert found.header.metrics["train_seconds"] == pytest.approx(10 * 128 / 100)
        assert found.header.details["loss"] == [[5, 2.0], [10, 2.0]]


def test_the_machine_of_a_run_is_the_one_that_made_most_of_its_measurements(runs, tmp_path):
    run = tmp_path / "pid-seed0"
    shutil.copytree(next(run for run in runs if run.name.endswith("pid-seed0")), run)
    last = [r for r in results.read(run) if r.kind == "robustness"][-1]
    elsewhere = {"cpu": "another", "cores": 1}
    results.append(run, replace(last, settings=last.settings | {"machine": elsewhere, "limit": 3}))
    (path,) = publish([run], tmp_path / "results" / "digits")
    found = read_run(path)
    assert found.header.settings["machine"] == last.settings["machine"] != elsewhere
    assert elsewhere in [record.settings["machine"] for record in found.records]


def test_a_trial_of_other_gains_is_not_published_as_the_run_however_often_it_was_measured(
    runs, published, tmp_path
):
    for run in runs:
        copy = tmp_path / run.name
        shutil.copytree(run, copy)
        measured = [r for r in results.read(run) if r.kind == "robustness"]
        trial = {"gains": "PIDGains(p=0.6, i=0.0, d=0.0, beta=1.0)"}
        for limit in (40, 39):
            for r in measured:
                about = r.settings | trial | {"limit": limit}
                results.append(copy, replace(r, metrics=r.metrics | {"top1": 0.0}, settings=about))
    again = publish([tmp_path / run.name for run in runs], tmp_path / "results" / "digits")
    for one, other in zip(sorted(published), sorted(again), strict=True):
        assert one.read_text() == other.read_text()
    results.keep(copy, lambda r: r.kind != "robustness" or r.settings["gains"] == trial["gains"])
    with pytest.raises(InputError, match="was not measured with its own gains; use pidformer ev"):
        publish([copy], tmp_path / "results" / "digits")


def test_what_a_killed_process_leaves_beside_a_file_is_no_run(published, tmp_path):
    folder = tmp_path / "digits"
    folder.mkdir()
    for path in published:
        shutil.copy(path, folder)
    whole = read_folder(folder)
    shutil.copy(published[0], folder / f".{published[0].stem}.4711.jsonl")
    (folder / ".softmax-seed9.4712.jsonl").write_text('{"kind": "ru')
    assert read_folder(folder) == whole


def test_the_size_of_the_control_is_a_curve_from_before_the_first_step(runs, tmp_path):
    shutil.copytree(runs[-1], tmp_path / "pid-seed1")
    for step in range(31):
        size = {"epoch": step / 2, "ratio": math.nan if step == 2 else 2 - step / 100}
        record = Record(kind="control", metrics=size, details={"ratio": [0.0, 1.0]}, step=step)
        results.append(tmp_path / "pid-seed1", record)
    (path,) = publish([tmp_path / "pid-seed1"], tmp_path / "digits")
    curve = read_run(path).header.details["control"]
    assert curve[0] == [0, 2] and curve[-1] == [15, 1.7] and 10 <= len(curve) <= 13
    assert all(ratio == pytest.approx(2 - epoch / 50) for epoch, ratio in curve)
    (old,) = publish([runs[-1]], tmp_path / "old")
    assert "control" not in read_run(old).header.details


def test_corruptions_become_one_record_with_what_every_image_survived(runs, published):
    run, path = sorted(runs)[0], sorted(published)[0]
    rows = [r for r in results.read(run) if r.settings.get("row", "").startswith("corruption/")]
    record = read_run(path).one("robustness", row="corruption")
    shares = outcomes(record)
    assert len(rows) == 4 and np.allclose(shares, np.mean([hits(r) for r in rows], axis=0))
    assert record.metrics["top1"] == pytest.approx(100 * shares.mean())
    assert record.metrics["top1/fog/3"] == rows[1].metrics["top1"]


def test_the_newest_of_a_measurement_counts():
    def record(value, **settings):
        return Record(kind="robustness", metrics={"top1": value}, settings=settings)

    found = newest([record(1, row="a", limit=5), record(2, row="a"), record(3, row="a", limit=5)])
    assert sorted(r.metrics["top1"] for r in found) == [2, 3]


def test_losses_of_blocks_are_kept_to_half_a_thousandth():
    losses = np.random.default_rng(0).uniform(2, 9, 50)
    record = Record(kind="language", metrics={}, details={"block": 8, "block_nll": losses.tolist()})
    (small,) = shrink([record])
    assert np.abs(block_losses(small) - losses).max() <= 0.0005 + 1e-12
    assert np.array_equal(block_losses(record), losses)


@pytest.mark.parametrize("loss", [math.inf, math.nan])
def test_a_loss_that_is_no_number_is_not_published_as_one(loss):
    about = {"label": "xsa-seed0", "row": "sliding/test"}
    record = Record(kind="language", metrics={}, settings=about, details={"block_nll": [4.0, loss]})
    with pytest.raises(InputError, match="xsa-seed0, sliding/test: a loss is no number"):
        shrink([record])


def test_names_of_runs(runs, tmp_path):
    (run,) = collect([runs[0]])
    assert run_name(run, "camvid") == "softmax-seed0"
    (moved,) = collect([fresh_run(tmp_path / "camvid-pid", tiny_recipe("seed=4"))])
    assert run_name(moved, "camvid") == "pid-seed4"
    (wrong,) = collect([fresh_run(tmp_path / "pid-seed1", tiny_recipe("seed=4"))])
    with pytest.raises(InputError, match="rename it to end in -seed4"):
        run_name(wrong, "camvid")


def test_what_cannot_be_published_gets_one_clear_line(runs, tmp_path, monkeypatch):
    bare = fresh_run(tmp_path / "my bare-seed0", tiny_recipe())
    with pytest.raises(
        InputError, match=r"was not measured; use pidformer evaluate '.*my bare-seed0'"
    ):
        publish([bare], tmp_path / "study")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file; --publish names the folder"):
        publish(runs, tmp_path / "file")
    monkeypatch.setattr("pidformer.report.publish.FILE_BYTES", 1000)
    with pytest.raises(InputError, match="1,000 at most"):
        publish(runs, tmp_path / "study")
    monkeypatch.undo()
    monkeypatch.setattr("pidformer.report.publish.ALL_BYTES", 9000)
    with pytest.raises(InputError, match="publish fewer runs or rows"):
        publish(runs, tmp_path / "study")
    assert not (tmp_path / "study").exists()


def test_a_path_of_the_machine_is_refused(tmp_path):
    run = fresh_run(tmp_path / "pid-seed0", tiny_recipe())
    about = {"row": "clean", "threat": "/home/someone/threat.py", "data": str(tmp_path / "set")}
    metrics = {"top1": 1.0, "images": 8.0}
    results.append(run, Record(kind="robustness", metrics=metrics, settings=about))
    with pytest.raises(InputError, match="holds a path in threat"):
        publish([run], tmp_path / "study")


def test_damaged_and_foreign_files_get_one_clear_line(tmp_path):
    path = tmp_path / "pid-seed0.jsonl"
    path.write_text("{")
    with pytest.raises(InputError, match="is damaged"):
        read_run(path)
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(InputError, match="is damaged"):
        read_run(path)
    path.write_text(Record(kind="robustness", metrics={}).to_json() + "\n")
    with pytest.raises(InputError, match="does not begin with a record of its run"):
        read_run(path)
    path.write_text(Record(kind="run", metrics={}, settings={"recipe": "words"}).to_json() + "\n")
    with pytest.raises(InputError):
        read_run(path)


@pytest.mark.usefixtures("undrawn")
def test_published_records_are_reported_like_run_folders(runs, published, tmp_path):
    made = [write_report(f, tmp_path / "out") for f in (runs, [published[0].parent])]
    first, second = (report.tables[0]["lines"] for report in made)
    assert [line["row"] for line in first] == [line["row"] for line in second]
    for a, b in zip(first, second, strict=True):
        assert a["differences"] == b["differences"] and a["models"].keys() == b["models"].keys()
    assert {path.stem for path in made[1].figures} >= {"training"}
    assert "pidformer evaluate RUN --data DATA" in made[1].markdown.read_text()


def test_below_a_folder_with_both_the_run_folders_are_taken(runs, tmp_path):
    shutil.copytree(runs[0], tmp_path / "runs" / runs[0].name)
    publish([runs[0]], tmp_path / "results" / "digits")
    (run,) = collect([tmp_path])
    assert run.folder == tmp_path / "runs" / runs[0].name
    (read,) = collect([tmp_path / "results"])
    assert read.label == run.label and read.gains == run.gains
    before = inputs_hash([tmp_path / "results"])
    (path,) = (tmp_path / "results" / "digits").glob("*.jsonl")
    path.write_text(path.read_text() + "\n")
    assert inputs_hash([tmp_path / "results"]) != before
    with pytest.raises(InputError, match="is published already; give run folders"):
        publish([tmp_path / "results"], tmp_path / "twice")
