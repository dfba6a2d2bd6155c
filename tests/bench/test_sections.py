"""Each section with tiny sizes on the CPU, and the command."""

import json

import pytest
import torch

from pidformer import results
from pidformer.bench import attack, generate, growth, model, operator, train
from pidformer.bench.figure import growth_figure
from pidformer.bench.goals import goals
from pidformer.bench.setting import GAINS, Setting
from pidformer.bench.timing import Group, Row, rows_of
from pidformer.control import PIDGains
from pidformer.control.pid import PIDState
from pidformer.ops import pid_attention

CPU = Setting(device=torch.device("cpu"), rounds=2)
TINY = operator.Size(1, 2, 9, 8, 3)
DEIT = model.Size("tiny", 1, image=32, patch=16)


@pytest.fixture(autouse=True)
def _one_call_a_sample(monkeypatch):
    monkeypatch.setattr("pidformer.bench.timing.SHORTEST", 0.0)


def check_rows(groups, section):
    rows = [row for group in groups for row in group]
    for group in groups:
        assert group[0].ratio == 1.0  # the baseline comes first
    for row in rows:
        assert row.section == section and row.sizes and not row.note.startswith("left out")
        assert row.value > 0 and row.low <= row.value <= row.high and row.ratio > 0
    return rows


def test_operator_rows():
    rows = check_rows(list(operator.operator(CPU, [TINY])), "operator")
    assert [row.what for row in rows] == [operator.FORWARD] * 2 + [operator.BOTH] * 2
    assert [row.label for row in rows[:2]] == [operator.ATTENTION, operator.PID]


def test_the_timed_operator_is_the_operator():
    """What runs under the clock gives the gradients of a loop over pid_attention."""
    case = operator.contenders(TINY, CPU, is_training=True)[1]
    found = case.make()()
    generator = torch.Generator().manual_seed(0)
    draws = [torch.randn(1, 9, 2, 8, generator=generator).transpose(1, 2) for _ in range(10)]
    leaves = [draw.requires_grad_() for draw in draws[:9]]
    state, loss = None, 0.0
    for layer in range(3):
        q, k, v = leaves[3 * layer : 3 * layer + 3]
        out, state = pid_attention(q, k, v, state, PIDGains.parse(GAINS))
        loss = loss + (out * draws[9]).sum()
    for one, other in zip(found, torch.autograd.grad(loss, leaves), strict=True):
        torch.testing.assert_close(one, other)


def test_model_rows_and_that_the_contenders_are_what_they_are_called():
    rows = check_rows(list(model.model(CPU, [DEIT])), "model")
    assert [row.label for row in rows] == 2 * [model.TWIN, model.PID, model.TIMM]
    assert {row.what for row in rows} == {"DeiT-tiny, training step", "DeiT-tiny, inference"}
    twin, pid = model.deit(DEIT, CPU), model.deit(DEIT, CPU, GAINS)
    theirs = model.deit(DEIT, CPU, is_timm=True).eval()
    theirs.load_state_dict(twin.state_dict())
    images = model.pixels(1, 32, CPU)
    torch.testing.assert_close(twin.eval()(images), theirs(images))
    assert twin.gains is None and pid.gains == PIDGains.parse(GAINS)


def test_a_training_step_leaves_no_gradients():
    network = model.deit(DEIT, CPU)
    model.training_step(network, model.pixels(1, 32, CPU), CPU)()
    assert all(p.grad is None for p in network.parameters())


def test_attack_rows():
    size = attack.Size(2, image=16, patch=8, steps=2)
    rows = check_rows(list(attack.attack(CPU, size)), "attack")
    assert all(row.unit == "images/s" for row in rows)
    assert [row.label for row in rows[:2]] == [attack.PLAIN, attack.OURS]
    assert rows[0].note.endswith("of 2 right")


def test_the_minimal_loop_is_our_pgd():
    kind = model.Size("tiny", 2, image=16, patch=8)
    network = model.deit(kind, CPU, is_timm=True).eval()
    images = model.pixels(2, 16, CPU)
    labels = attack.predictions(network, images)
    size = attack.Size(2, steps=3)
    minimal = attack.minimal(network, size.step, 3, attack.EPS)(images, labels)
    threat = attack.PGD(eps=attack.EPS, step_size=size.step, steps=3, random_start=False)
    torch.testing.assert_close(minimal, threat(network, images, labels))


def test_generate_rows():
    pytest.importorskip("transformers")
    sizes = [generate.Size(2, 3, prompt=4, words=50, layers=2)]
    rows = check_rows(list(generate.generate(CPU, sizes)), "generate")
    assert [row.label for row in rows] == [generate.TWIN, generate.PID]


def test_train_rows_are_the_trainers_own(monkeypatch):
    seen = {}
    real = train.run_training

    def spy(recipe, run, **options):
        real(recipe, run, **options)
        logged = [r for r in results.read(run) if r.kind == "train"]
        seen[run.name] = [r.metrics["images_per_second"] for r in logged]

    monkeypatch.setattr(train, "run_training", spy)
    size = train.SMALL._replace(batch=4, windows=4, skipped=1, depth=2, image=16, jpegs=2)
    loop, reading = list(train.train(CPU, size))
    assert [row.label for row in loop] == [model.TWIN, model.PID] == list(seen)
    for row in loop:
        assert row.rounds == 3 and row.value == pytest.approx(sorted(seen[row.label][1:])[1])
    assert loop[0].ratio == pytest.approx(1.0)
    check_rows([reading], "train")


def test_growth_rows_and_figure(tmp_path):
    size = growth.SMALL._replace(shape=TINY, tokens=(4, 8), depths=(2, 4), batches=(1,), image=16)
    found = list(growth.growth(CPU, size))
    rows = check_rows(found, "growth")
    assert [r.sizes["tokens"] for r in found[0][::2]] == [4, 8]
    states = [r for r in rows if r.what == growth.STATE]
    # v_0, the sum and v_{l-1}: three float32 tensors of 1 image, 5 tokens, width 64, at any depth
    assert [r.value for r in states] == [3 * 5 * 64 * 4] * 2
    assert [r.ratio for r in states] == [1.0, 1.0]
    assert growth_figure(rows, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
    assert not growth_figure([], tmp_path / "none.png")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_growth_is_of_kernels_and_memory_grows_with_what_is_kept():
    setting = Setting(device=torch.device("cuda"), rounds=2)
    size = growth.SMALL._replace(tokens=(64, 256), depths=(2, 4), batches=(1,))
    rows = check_rows(list(growth.growth(setting, size)), "growth")
    assert {row.mode for row in rows if row.what != growth.STATE} == {"recorded"}
    for label in (model.TWIN, model.PID):
        shallow, deep = (r for r in rows if r.what == growth.OVER_DEPTH and r.label == label)
        assert 1.5 < deep.peak_bytes / shallow.peak_bytes < 2.5


def test_a_tensor_that_is_twice_in_a_state_counts_once():
    value = torch.zeros(2, 3)
    assert growth.state_bytes(PIDState(value, torch.zeros(2, 3), value)) == 2 * 6 * 4


def test_goals_read_the_rows_they_name():
    def rows(what, values, mode="compiled", unit="s", **sizes):
        group = Group(section="x", what=what, sizes=sizes, mode=mode, unit=unit)
        return rows_of(group, {label: [value] for label, value in values.items()})

    deit = {"image": 224, "patch": 16}
    found: list[Row] = [
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
    ]
    by_text = {goal.text: goal for goal in goals(found)}
    assert len(by_text) == 16
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
    small = by_text["DeiT-small/16-224 training step, PID / softmax twin, compiled"]
    assert small.measured is None and small.is_reached is None


def test_goals_name_rows_that_the_large_sizes_make():
    """Every goal finds its row among rows of the sizes that a GPU gets."""
    deits = {s.name: s for s in model.LARGE if s.mode == "compiled"}
    assert {"tiny", "small", "base"} == set(deits)
    graphs = [s for s in model.LARGE if s.mode == "graphs"]
    assert [s.name for s in graphs] == ["tiny"] and model.INFERENCE in graphs[0].steps
    assert all((s.image, s.patch) == (224, 16) for s in deits.values())
    assert any(s.tokens == 4096 and s.head_dim == 64 for s in operator.LARGE)
    assert {s.batch for s in generate.LARGE} == {1, 64}
    assert (train.LARGE.image, train.LARGE.patch, train.LARGE.depth) == (64, 8, 12)


@pytest.fixture
def only_tiny(monkeypatch):
    """The command, with a section that takes no time."""
    sections = {"operator": lambda setting: operator.operator(setting, [TINY])}
    monkeypatch.setattr("pidformer.bench.run.SECTIONS", sections)


def test_the_command_prints_tables_and_keeps_records(only_tiny, run, tmp_path):
    code, out, err = run("bench", "operator", "--device", "cpu", "--out", tmp_path / "new")
    assert code == 0, err
    assert "PID attention" in out and "float32" in out and torch.__version__ in out
    records = results.read(tmp_path / "new")
    assert len(records) == 4 and {r.kind for r in records} == {"bench"}
    assert records[0].settings["versions"]["torch"] == torch.__version__


def test_the_command_prints_one_json_document(only_tiny, run):
    code, out, err = run("bench", "--device", "cpu", "--rounds", 1, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["header"]["device"] == "CPU" and found["header"]["rounds"] == 1
    assert len(found["rows"]) == 4 and found["rows"][1]["ratio"] > 0
    assert found["goals"] == []  # of a GPU's sizes


def test_an_interrupt_keeps_what_was_measured(run, tmp_path, monkeypatch):
    def section(setting):
        yield from operator.operator(setting, [TINY])
        raise KeyboardInterrupt

    monkeypatch.setattr("pidformer.bench.run.SECTIONS", {"operator": section})
    code, out, _ = run("bench", "operator", "--device", "cpu", "--out", tmp_path)
    assert code == 130 and "PID attention" in out
    assert len(results.read(tmp_path)) == 4


def test_floor_is_printed_and_is_json(run):
    code, out, _ = run("bench", "floor")
    assert code == 0 and "19.4 MB" in out and "leaner algebra" in out
    code, out, _ = run("bench", "floor", "--json")
    assert code == 0 and json.loads(out)["layer"]["tensor_bytes"] == 19_365_888


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("modell",), "did you mean 'model'? known: all, attack, floor, generate, growth, model"),
        (("operator", "--device", "tpux"), "device must be auto, cpu or cuda"),
        (("operator", "--rounds", "0"), "rounds must be at least 1, got 0"),
        (("operator", "--out", "{file}"), "is a file; --out names a folder"),
    ],
)
def test_bad_input_is_one_line(run, tmp_path, arguments, said):
    file = tmp_path / "file"
    file.touch()
    code, out, err = run("bench", *(a.format(file=file) for a in arguments))
    assert code == 2 and said in err and err.count("\n") == 1 and not out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_one_line(run):
    code, _, err = run("bench", "operator", "--device", "cuda")
    assert code == 2 and "needs a GPU" in err and err.count("\n") == 1


def test_the_greedy_loop_decodes_as_generate_does(monkeypatch):
    pytest.importorskip("transformers", reason="needs the extra lm")
    size = generate.Size(2, 6, prompt=1, words=300, layers=2)
    setting = Setting(device=torch.device("cpu"), rounds=1)
    network = generate._network(size, setting, "lm")
    loop = generate.GreedyLoop(network, size.batch, size.steps)
    seen = []
    monkeypatch.setattr(loop, "faster", lambda token: seen.append(loop.step(token)) or seen[-1])
    loop.token.fill_(7)
    loop.compiled()
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = network.generate(torch.full((2, 1), 7), **options)[:, 1:]
    assert torch.equal(torch.cat(seen, 1), expected)
    loop.token.fill_(7)  # from an empty cache again
    loop.compiled()
    assert torch.equal(torch.cat(seen[6:], 1), expected)


@pytest.mark.parametrize("peak", [None, 12_345_678])
def test_no_number_of_a_table_is_cut_off_at_80_columns(capsys, peak):
    from rich.console import Console

    from pidformer.cli.bench import _range, _table

    row = Row(
        section="generate",
        what="language model, decoding",
        label="softmax twin",
        sizes={"batch": 1},
        dtype="float32",
        mode="eager",
        unit="tokens/s",
        value=1234.5,
        low=1200.0,
        high=1300.0,
        ratio=1.0,
        ratio_low=0.9,
        ratio_high=1.1,
        peak_bytes=peak,
        peak_ratio=None if peak is None else 1.0,
    )
    Console(width=80).print(_table([row]))
    out = capsys.readouterr().out
    body = out.split("┡")[1]
    assert "…" not in body and "1,234 tokens/s" in body and "softmax twin" in body
    assert _range("1.2 ms", "1.3 ms") == "1.2 to 1.3"
    assert _range("990.0 us", "1.3 ms") == "990.0 us to 1.3 ms"
