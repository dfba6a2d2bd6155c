"""Values that no task or machine could take are refused, also where they would not be read."""

import mmap

import numpy as np
import pytest
import torch


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--views", "tri"), "unknown views 'tri'"),
        (("--protocol", "slidng"), "unknown protocol 'slidng'; did you mean 'sliding'?"),
        (("--split", "valid,tset"), "unknown split 'tset'; did you mean 'test'?"),
    ],
)
def test_evaluate_refuses_values_that_a_classifier_does_not_read(run, option, said):
    code, _, err = run("evaluate", "somewhere:model", *option)
    assert code == 2 and said in err and err.count("\n") == 1


@pytest.mark.parametrize("port", ["99999", "-1"])
def test_the_lab_refuses_a_port_that_cannot_be(run, port):
    pytest.importorskip("gradio")
    code, _, err = run("lab", "--port", port)
    assert code == 2 and "a port must be 0 (any free one) to 65535" in err


@pytest.mark.parametrize(
    "ask",
    [
        lambda: torch.empty(2**50),
        lambda: np.zeros(2**50),
        lambda: mmap.mmap(-1, 2**46),
        lambda: bytearray(2**50),
    ],
    ids=["torch", "numpy", "map", "python"],
)
def test_memory_that_runs_out_is_one_line(run, monkeypatch, ask):
    """More than any machine has, asked of NumPy, PyTorch and the system."""
    monkeypatch.setattr("pidformer.training.converted.convert_run", lambda *_, **__: ask())
    code, _, err = run("convert", "x", "--gains", "lm", "--out", "y")
    assert code == 2 and err.startswith("pidformer: out of memory (") and err.count("\n") == 1
    assert len(err) <= 300


def test_other_errors_keep_their_traceback(monkeypatch):
    from pidformer.cli import main

    def fail(*_, **__):
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr("pidformer.training.converted.convert_run", fail)
    with pytest.raises(RuntimeError, match="shapes"):
        main(["convert", "x", "--gains", "lm", "--out", "y"])
