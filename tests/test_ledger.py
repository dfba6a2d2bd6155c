import time
from functools import partial

import pytest
import torch

from pidformer import results
from pidformer.ledger import Ledger
from pidformer.results import Record


def test_a_ledger_measures_once_what_old_records_do_not_hold(tmp_path):
    settings = {"row": "clean", "weights": "w", "threat": "None"}  # as it was once written
    results.append(tmp_path, Record(kind="x", metrics={"a": 1.0}, settings=settings))
    ledger = Ledger("x", tmp_path, {"weights": "w"})
    clean = ledger.measure({"row": "clean", "threat": None}, lambda: 1 / 0)
    assert clean.metrics == {"a": 1.0}
    begun = time.perf_counter()
    other = ledger.measure(
        {"row": "fgsm", "threat": "FGSM()"}, lambda: time.sleep(0.05) or ({"a": 2.0}, {})
    )
    assert 0.05 <= other.metrics["seconds"] <= time.perf_counter() - begun
    assert other.settings["machine"]["torch"]
    assert Ledger("x", tmp_path, {"weights": "w"}).finished(other.settings).metrics == other.metrics
    assert Ledger("y", tmp_path, {"weights": "w"}).finished(other.settings) is None
    assert Ledger("x", tmp_path, {"weights": "v"}).finished({"row": "clean"}) is None


def test_a_ledger_without_a_folder_measures_and_writes_nothing():
    ledger = Ledger("x", None, {"weights": "w"})
    first = ledger.measure({"row": "clean"}, lambda: ({"a": 1.0}, {"hits": [1]}))
    assert ledger.measure({"row": "clean"}, lambda: 1 / 0) is first
    assert first.details == {"hits": [1]}


def test_a_ledger_tells_when_it_takes_a_record_of_another_place(tmp_path, recwarn):
    """A set is known by labels and names: a foggy copy of one has the same."""
    for name in ("clear", "foggy"):
        (tmp_path / name).mkdir()
    opened = partial(Ledger, "x", tmp_path, reads_images=True)
    here, there = ({"data": str(tmp_path / name)} for name in ("clear", "foggy"))
    first = opened(settings=here).measure({}, lambda: ({"a": 1.0}, {}))
    assert opened(settings=here).finished({}).metrics == first.metrics
    assert opened(settings={"data": "moved"}).finished({}).metrics == first.metrics
    assert Ledger("x", tmp_path, there).finished({}) is not None  # its hash is of the whole data
    assert not recwarn.list
    with pytest.warns(UserWarning, match=r"measured on .*clear, and counts for .*foggy too"):
        assert opened(settings=there).finished({}).metrics == first.metrics


@pytest.mark.parametrize("given", [{"precision": "tf32"}, {"threat": "FGSM(precision='tf32')"}])
def test_attention_in_tf32_is_a_measurement_of_its_own(tmp_path, monkeypatch, given):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    exact = {"precision": "fp32", "threat": "FGSM()"}
    for variable in ("0", "1"):
        monkeypatch.setenv("PIDFORMER_TF32", variable)
        for about in (given, exact):
            Ledger("x", tmp_path, {"weights": "w"}).measure(about, lambda: ({"a": 1.0}, {}))
    records = results.read(tmp_path)
    assert [r.measurement.attention for r in records] == [None, None, "tf32"]
    assert records[2].settings | {"attention": None} == records[0].settings | {"attention": None}
