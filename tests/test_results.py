import fcntl
import json
import threading

import pytest

from pidformer import results
from pidformer.errors import InputError
from pidformer.results import Record


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
     b'"settings": null}'],
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
