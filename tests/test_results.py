import fcntl
import json
import threading
from pathlib import Path

import pytest

from pidformer import results
from pidformer.errors import InputError
from pidformer.report.collect import MEASURED
from pidformer.results import Measurement, Record, check_pair

ROWS = ("clean", "fgsm", "pgd", "spsa", "sld", "noise")
PUBLISHED = sorted((Path(__file__).parents[1] / "results").glob("*/*.jsonl"))


def kinds(folder):
    return [record.kind for record in results.read(folder)]


def test_half_a_line_of_a_killed_writer_is_dropped(tmp_path):
    results.append(tmp_path, Record(kind="first", metrics={}))
    with open(tmp_path / "results.jsonl", "a") as file:
        file.write('{"kind": "ha')
    assert kinds(tmp_path) == ["first"]
    results.append(tmp_path, Record(kind="second", metrics={}))
    assert kinds(tmp_path) == ["first", "second"]


def test_a_line_that_is_being_written_is_not_dropped(tmp_path):
    """A long line grows on disk while it is written: it looks like half a line for a moment."""
    line = Record(kind="long", metrics={}).to_json()
    other = threading.Thread(
        target=results.append, args=(tmp_path, Record(kind="other", metrics={}))
    )
    with open(tmp_path / "results.jsonl", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(line[:20])
        file.flush()
        other.start()
        other.join(0.2)
        file.write(line[20:] + "\n")
    other.join()
    assert kinds(tmp_path) == ["long", "other"]


def test_a_line_for_a_file_that_is_replaced_meanwhile_goes_to_the_new_one(tmp_path):
    results.append(tmp_path, Record(kind="old", metrics={}))
    other = threading.Thread(target=results.append, args=(tmp_path, Record(kind="b", metrics={})))
    with open(tmp_path / "results.jsonl", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        other.start()
        other.join(0.2)
        results.rewrite(tmp_path, [Record(kind="a", metrics={})])
    other.join()
    assert kinds(tmp_path) == ["a", "b"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_lines_are_json_also_where_a_number_is_missing(tmp_path, value):
    results.append(tmp_path, Record(kind="x", metrics={"loss": value}))
    (line,) = (tmp_path / "results.jsonl").read_text().splitlines()
    assert json.loads(line, parse_constant=lambda name: 1 / 0)["metrics"] == {"loss": None}


@pytest.mark.parametrize(
    "line",
    [b"[1]", b"3", b'{"kind": "a", "metrics": null}', b"\xff\xfe", b'{"kind": "a", "metrics": {}, '
     b'"settings": null}', b'{"kind": "a", "metrics": {}, "time": 1e300}'],
)  # fmt: skip
def test_lines_that_are_no_records_are_named_as_damage(tmp_path, line):
    (tmp_path / "results.jsonl").write_bytes(line + b"\n")
    with pytest.raises(InputError, match=r"results\.jsonl is damaged"):
        results.read(tmp_path)


def test_keeping_some_records_loses_none_that_others_add_meanwhile(tmp_path, monkeypatch):
    for step in (1, 2, 3):
        results.append(tmp_path, Record(kind="train", metrics={}, step=step))
    late = Record(kind="late", metrics={})
    other = threading.Thread(target=results.append, args=(tmp_path, late))

    def wanted(record):
        if not other.ident:
            other.start()
            other.join(0.2)
        return record.step != 3

    results.keep(tmp_path, wanted)
    other.join()
    assert kinds(tmp_path) == ["train", "train", "late"]
    before = (tmp_path / "results.jsonl").stat().st_ino
    results.keep(tmp_path, lambda record: True)
    assert (tmp_path / "results.jsonl").stat().st_ino == before


@pytest.mark.slow
@pytest.mark.parametrize("study", sorted({path.parent for path in PUBLISHED}), ids=lambda p: p.name)
def test_every_published_record_is_read_as_it_was_written(study):
    for path in (path for path in PUBLISHED if path.parent == study):
        lines = path.read_text().splitlines()
        records = [Record.from_json(line) for line in lines]
        assert [json.loads(r.to_json()) for r in records] == [json.loads(line) for line in lines]
        measured = [r.measurement for r in records if r.kind in (*MEASURED, "sentences")]
        assert len(set(measured)) == len(measured) > 0  # each measurement once
        assert all((m.threat is None) == (m.row == "clean") for m in measured if m.row in ROWS)


def test_a_measurement_is_what_was_measured_not_where_or_when():
    about = {"row": "clean", "weights": "w", "data_hash": "h", "limit": 5, "seed": 0}
    now = Record(kind="robustness", metrics={}, settings=about | {"threat": None, "machine": "a"})
    then = Record(
        kind="robustness",
        metrics={"top1": 1.0},
        settings=about | {"threat": "None", "domain": "pixel", "command": "x", "batch_size": 3},
        time=1.0,
    )
    assert now.measurement == then.measurement
    for name in ("row", "weights", "data_hash", "limit", "seed", "threat", "domain", "gains"):
        other = Measurement.of("robustness", now.settings | {name: 7})
        assert other != now.measurement
        assert (other.question == now.measurement.question) == (name in ("weights", "gains"))
    assert Measurement.of("segmentation", now.settings) != now.measurement


def test_a_pair_must_be_the_same_measurement_of_two_models():
    a, b, c = (
        Record(kind="language", metrics={}, settings={"row": "r", "label": label} | more)
        for label, more in (("a", {"weights": "a"}), ("b", {"weights": "b"}), ("c", {"stride": 2}))
    )
    check_pair(a, b)
    with pytest.raises(InputError, match="row 'r' cannot be paired: stride is None for a and 2"):
        check_pair(a, c)
