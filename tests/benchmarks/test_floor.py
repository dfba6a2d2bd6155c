"""The floor on paper, against numbers worked out by hand and against the operator itself."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.floor import (
    FUSED,
    LEAN,
    SEPARATE,
    Layer,
    Machine,
    Step,
    attention_floor,
    estimate,
    estimates,
    floor,
    main,
    stream_bytes,
)
from pidformer.control import PIDGains
from pidformer.control.pid import pid_step
from tests.processes import Process, ends_well

TENSOR = 256 * 197 * 192 * 2


def test_a_tensor_of_deit_tiny():
    assert Layer().tensor_bytes == TENSOR == 19_365_888


@pytest.mark.parametrize(
    ("plan", "sums", "forward", "backward", "inference"),
    [  # in tensors of the values' type: a float32 one counts twice
        (SEPARATE, "float32", 9, 13, 9),
        (SEPARATE, "bfloat16", 7, 9, 7),
        (FUSED, "float32", 7, 10, 6),
        (FUSED, "bfloat16", 5, 6, 4),
        (LEAN, "float32", 7, 9, 6),
        (LEAN, "bfloat16", 5, 5, 4),
    ],
)
def test_streams_bytes_and_seconds(plan, sums, forward, backward, inference):
    found = estimate(plan, sums)
    assert found.forward_bytes == forward * TENSOR
    assert found.backward_bytes == backward * TENSOR
    assert found.forward_us == pytest.approx(forward * TENSOR / 4.8e12 * 1e6)
    training = 11 * (forward + backward) * TENSOR / 4.8e12
    assert found.training_ms == pytest.approx(1e3 * training)
    assert found.training_ratio == pytest.approx(1 + training / 17.2e-3)
    assert found.inference_ratio == pytest.approx(1 + 11 * inference * TENSOR / 4.8e12 / 4.86e-3)


def test_another_machine_and_step_scale_as_they_should():
    slow = estimate(FUSED, machine=Machine(bytes_per_second=2.4e12), step=Step(34.4, 9.72))
    fast = estimate(FUSED)
    assert slow.training_ms == pytest.approx(2 * fast.training_ms)
    assert slow.training_ratio == pytest.approx(fast.training_ratio)


def test_wide_streams_are_those_that_run_over_depth():
    layer = Layer(batch=1, heads=1, tokens=5, head_dim=4)
    assert stream_bytes(["v", "-> u"], layer, 4) == 2 * 20 * 2
    assert stream_bytes(["S", "-> S"], layer, 4) == 2 * 20 * 4


def test_plain_attention():
    forward, backward = attention_floor()
    rows = 256 * 3 * 197
    assert forward.bytes == 4 * TENSOR + 4 * rows
    assert backward.bytes == 8 * TENSOR + 3 * 4 * rows
    assert forward.flops == 2 * 2 * rows * 197 * 64
    assert backward.flops == 2.5 * forward.flops
    assert forward.bytes_us == pytest.approx(16.26, abs=0.01)


def test_every_plan_comes_in_both_precisions():
    assert len(estimates()) == 6


def lean_control(values, gains):
    """The leaner algebra, layer by layer: c_{l-1} - (p + i + d) v_l."""
    p, i, d, beta = gains.p, gains.i, gains.d, gains.beta
    total, before = (p + i) * beta * values[0], values[0]
    controls = []
    for value in values[1:]:
        controls.append(total + d * before - (p + i + d) * value)
        total, before = total + i * beta * values[0] - i * value, value
    return controls


def test_the_leaner_algebra_is_the_same_control_and_gradient():
    gains = PIDGains(p=0.8, i=0.5, d=0.05, beta=0.3)
    torch.manual_seed(0)
    values = [torch.randn(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(6)]
    upstream = [torch.randn(3, 4, dtype=torch.float64) for _ in range(5)]
    state, expected = None, []
    for value in values:
        control, state = pid_step(value, state, gains)
        expected.append(control)
    for found, control in zip(lean_control(values, gains), expected[1:], strict=True):
        torch.testing.assert_close(found, control)
    wanted = torch.autograd.grad(expected[1:], values, upstream)
    # Backward of the docstring: K_l = g_{l+1} + K_{l+1}, from gradients alone.
    p, i, d, beta = gains.p, gains.i, gains.d, gains.beta
    summed, later = torch.zeros(3, 4, dtype=torch.float64), torch.zeros(3, 4, dtype=torch.float64)
    initial = torch.zeros(3, 4, dtype=torch.float64)
    for depth in range(5, 0, -1):  # summed is K_depth, later is g_{depth + 1}
        here = upstream[depth - 1]
        torch.testing.assert_close(-(p + i + d) * here + d * later - i * summed, wanted[depth])
        initial = initial + i * beta * summed
        summed, later = summed + here, here
    # v_0 is also the first layer's own value, whose difference enters the second layer.
    torch.testing.assert_close(initial + (p + i) * beta * summed + d * later, wanted[0])


def test_the_document_has_the_numbers_of_the_command():
    page = (Path(__file__).parents[2] / "docs" / "performance-log.md").read_text()
    for one in estimates():
        cells = (
            one.plan,
            one.sums,
            f"{one.forward_bytes / 1e6:.1f}",
            f"{one.forward_us:.1f}",
            f"{one.backward_bytes / 1e6:.1f}",
            f"{one.backward_us:.1f}",
            f"{one.training_ms:.3f}",
            f"{one.training_ratio:.3f}",
            f"{one.inference_ms:.3f}",
            f"{one.inference_ratio:.3f}",
        )
        assert f"| {' | '.join(cells)} |" in page
    for part in attention_floor():
        numbers = (part.bytes / 1e6, part.bytes_us, part.flops / 1e9, part.flops_us)
        assert f"| {part.direction} | {' | '.join(f'{n:.1f}' for n in numbers)} |" in page
    assert f"{floor()['kept_bytes'] / 1e6:.0f} MB over 11 layers" in page


def command(*arguments):
    """`python -m benchmarks ...`"""
    return Process("import runpy; runpy.run_module('benchmarks', run_name='__main__')", *arguments)


@pytest.mark.slow
def test_floor_is_printed_and_is_json(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["floor.py"])
    main()
    out = capsys.readouterr().out
    assert "19.4 MB" in out and "leaner algebra" in out
    assert json.loads(ends_well(command("floor", "--json")))["layer"]["tensor_bytes"] == 19_365_888


@pytest.mark.slow
def test_a_benchmark_that_is_not_there_is_one_line():
    done = command("flor")
    assert done.wait() == 2 and "did you mean 'floor'" in done.stderr
    assert done.stderr.count("\n") == 1 and not done.stdout
