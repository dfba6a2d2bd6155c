"""Values that no task or machine could take are refused, also where they would not be read."""

import pytest


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
