"""The goals on an H200."""

import json

import pytest
import torch

from benchmarks import goals as benchmark
from benchmarks.goals import goals
from pidformer import results
from pidformer.bench import attack, generate, model, operator, train
from pidformer.bench.timing import Timing, Workload, rows_of
from tests.bench.test_sections import TINY


def test_goals_read_the_rows_they_name():
    def rows(what, values, mode="compiled", unit="s", **sizes):
        group = Workload(section="x", what=what, sizes=sizes, mode=mode, unit=unit)
        return rows_of(group, {label: [value] for label, value in values.items()})

    deit = {"image": 224, "patch": 16}
    found: list[Timing] = [
        *rows(
            "DeiT-tiny, training step",
            {model.TWIN: 10, model.PID: 99, model.TIMM: 99},
            "eager",
            **deit,
        ),
        *rows(
            "DeiT-tiny, training step",
            {model.TWIN: 10, model.PID: 10.4, model.SDPA_TWIN: 10.5, model.TIMM: 12},
            "graphs",
            **deit,
        ),
        *rows("DeiT-tiny, training step", {model.TWIN: 15, model.TIMM: 15.6}, **deit),
        *rows("DeiT-base, training step", {model.TWIN: 10, model.PID: 10.5}, **deit),
        *rows(
            "DeiT-tiny, training loop",
            {model.TWIN: 90_000, model.PID: 85_000},
            unit="images/s",
            image=64,
            patch=8,
            depth=12,
        ),
        *rows(
            operator.BOTH,
            {operator.ATTENTION: 20, operator.PID: 21},
            "recorded",
            **operator.FEW._asdict(),
        ),
        *rows(
            "DeiT-tiny, PGD-10",
            {
                attack.PLAIN: 400,
                attack.OURS + attack.IN_A_ROW: 390,
                attack.OURS + ", early stop" + attack.IN_A_ROW: 800,
                attack.OURS + ", bfloat16" + attack.IN_A_ROW: 1000,
            },
            "eager",
            "images/s",
            batch=64,
            image=224,
        ),
        *(
            row
            for way, speed in (("", 300), (attack.IN_A_ROW, 390))
            for row in rows(
                f"DeiT-tiny, PGD-10 of the twins{way}",
                {model.TWIN: 400, model.PID: speed},
                "eager",
                "images/s",
                batch=64,
                image=224,
            )
        ),
        *rows(
            "DeiT-tiny, FGSM",
            {attack.PLAIN: 4000, attack.OURS + attack.IN_A_ROW: 3600},
            "eager",
            "images/s",
            batch=64,
            image=224,
        ),
    ]
    by_text = {goal.text: goal for goal in goals(found)}
    assert len(by_text) == 28
    tiny = by_text["DeiT-tiny/16-224 training step, PID / softmax twin, graphs"]
    assert tiny.measured == pytest.approx(1.04) and tiny.is_reached is True
    other = by_text["DeiT-tiny/16-224 training step, PID / softmax twin, PyTorch's kernels, graphs"]
    assert other.measured == pytest.approx(10.4 / 10.5) and other.is_reached is True
    base = by_text["DeiT-base/16-224 training step, PID / softmax twin, compiled"]
    assert base.measured == pytest.approx(1.05) and base.is_reached is False
    throughput = "DeiT-tiny/16-224 training throughput, PID with CUDA graphs / timm's"
    timm = by_text[f"{throughput}, compiled"], by_text[f"{throughput}, graphs"]
    assert [goal.measured for goal in timm] == pytest.approx([15.6 / 10.4, 12 / 10.4])
    assert [goal.is_reached for goal in timm] == [True, False]
    loop = by_text["64 pixels, patch 8: training loop with PID, images/s"]
    assert loop.measured == 85_000 and loop.is_reached is True
    fgsm = by_text["FGSM, recorded: images/s, ours / a minimal loop in float32"]
    assert fgsm.measured == pytest.approx(0.9) and fgsm.is_reached is False
    searched = [goal for text, goal in by_text.items() if text.startswith("PGD-10")]
    assert [goal.measured for goal in searched] == pytest.approx([0.975, 2.0, 2.5, 0.75, 0.975])
    (few,) = (goal for text, goal in by_text.items() if "16 heads of 256 tokens" in text)
    assert few.measured == pytest.approx(1.05) and few.is_reached is True
    small = by_text["DeiT-small/16-224 training step, PID / softmax twin, compiled"]
    assert small.measured is None and small.is_reached is None


def test_goals_name_rows_that_the_large_sizes_make():
    """Every goal finds its row among rows of the sizes that a GPU gets."""
    deits = {s.name: s for s in model.LARGE if s.mode == "compiled"}
    assert {"tiny", "small", "base"} == set(deits)
    graphs = [s for s in model.LARGE if s.mode == "graphs"]
    assert [s.name for s in graphs] == ["tiny"] and model.INFERENCE in graphs[0].steps
    assert all((s.image, s.patch) == (224, 16) for s in deits.values())
    assert any((s.batch, s.heads, s.tokens) == (256, 3, 197) for s in operator.LARGE)
    assert (attack.LARGE.batch, attack.LARGE.image, attack.LARGE.steps) == (64, 224, 10)
    assert any(s.tokens == 4096 and s.head_dim == 64 for s in operator.LARGE)
    assert {s.batch for s in generate.LARGE} == {1, 64}
    assert (train.LARGE.image, train.LARGE.patch, train.LARGE.depth) == (64, 8, 12)


def test_goals_are_measured_by_the_sections_of_the_command(monkeypatch, capsys, tmp_path):
    sections = {"operator": lambda setting: operator.operator(setting, [TINY])}
    monkeypatch.setattr(benchmark, "SECTIONS", sections)
    arguments = ["--device", "cpu", "--rounds", "1", "--json", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["goals.py", *arguments])
    benchmark.main()
    found = json.loads(capsys.readouterr().out)
    assert len(found["rows"]) == 4 and found["header"]["versions"]["torch"] == torch.__version__
    # A CPU measures other sizes than those that the goals are about.
    assert {goal["is_reached"] for goal in found["goals"]} == {None} and len(found["goals"]) == 28
    command = results.read(tmp_path)[0].settings["command"]
    assert command == " ".join(["python -m benchmarks goals", *arguments])
