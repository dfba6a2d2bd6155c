"""Each section with tiny sizes on the CPU, and the command."""

import json
from dataclasses import replace

import pytest
import torch

from pidformer import results
from pidformer.bench import attack, bench, generate, model, operator, train
from pidformer.bench.timing import GAINS, BenchSetting, Timing
from pidformer.control import PIDGains
from pidformer.ops import pid_attention

pytestmark = pytest.mark.slow

CPU = BenchSetting(device=torch.device("cpu"), rounds=2)
TINY = operator.OperatorSize(1, 2, 9, 8, 3)
DEIT = model.ModelSize("tiny", 1, image=32, patch=16)


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
    size = attack.AttackSize(2, image=16, patch=8, steps=2)
    rows = check_rows(list(attack.attack(CPU, size)), "attack")
    assert all(row.unit == "images/s" for row in rows)
    assert [row.label for row in rows[:2]] == [attack.PLAIN, attack.OURS]
    assert rows[0].note.endswith("of 2 right")


def test_a_library_that_lacks_what_it_needs_is_left_out(tmp_path, monkeypatch):
    (tmp_path / "half_there.py").write_text("import no_such_module")
    monkeypatch.syspath_prepend(tmp_path)
    assert attack._installed("half_there") is attack._installed("not_there") is None
    assert attack._installed("json") is json


def test_the_minimal_loop_is_our_pgd():
    kind = model.ModelSize("tiny", 2, image=16, patch=8)
    network = model.deit(kind, CPU, is_timm=True).eval()
    images = model.pixels(2, 16, CPU)
    labels = attack.predictions(network, images)
    size = attack.AttackSize(2, steps=3)
    minimal = attack.minimal(network, size.step, 3, attack.EPS)(images, labels)
    threat = attack.PGD(eps=attack.EPS, step_size=size.step, steps=3, random_start=False)
    torch.testing.assert_close(minimal, threat(network, images, labels))


def test_generate_rows():
    pytest.importorskip("transformers")
    sizes = [generate.DecodingSize(2, 3, prompt=4, words=50, layers=2)]
    rows = check_rows(list(generate.generate(CPU, sizes)), "generate")
    assert [row.label for row in rows] == [generate.TWIN, generate.PID]


def test_train_rows_are_the_trainers_own(monkeypatch):
    seen = {}
    real = train.run_training

    def spy(recipe, run, device, **options):
        assert device == "cpu:0"  # the one that is measured, not any of its kind
        real(recipe, run, device="cpu", **options)
        logged = [r for r in results.read(run) if r.kind == "train"]
        seen[run.name] = [r.metrics["images_per_second"] for r in logged]

    monkeypatch.setattr(train, "run_training", spy)
    size = train.SMALL._replace(batch=4, windows=4, skipped=1, depth=2, image=16, jpegs=2)
    loop, *reading = list(train.train(replace(CPU, device=torch.device("cpu:0")), size))
    assert [row.label for row in loop] == [model.TWIN, model.PID] == list(seen)
    for row in loop:
        assert row.rounds == 3 and row.value == pytest.approx(sorted(seen[row.label][1:])[1])
    assert loop[0].ratio == pytest.approx(1.0)
    assert len(reading) == 2
    check_rows(reading, "train")


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


def test_an_interrupt_keeps_what_was_measured(run, tmp_path, monkeypatch):
    def section(setting):
        yield from operator.operator(setting, [TINY])
        raise KeyboardInterrupt

    monkeypatch.setattr("pidformer.bench.run.SECTIONS", {"operator": section})
    code, out, _ = run("bench", "operator", "--device", "cpu", "--out", tmp_path)
    assert code == 130 and "PID attention" in out
    assert len(results.read(tmp_path)) == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("modell",), "did you mean 'model'? known: all, attack, generate, model"),
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


def test_the_gpu_that_is_asked_for_is_the_one_that_graphs_record(monkeypatch):
    """Recorded on another, a graph is empty, and replays take no time."""
    chosen = []
    monkeypatch.setattr("pidformer.bench.run.as_device", torch.device)
    monkeypatch.setattr("pidformer.bench.run.header", lambda setting: {})
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    bench("none", sections={"none": lambda setting: iter(())}, device="cuda:1")
    assert chosen == [torch.device("cuda:1")]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_one_line(run):
    code, _, err = run("bench", "operator", "--device", "cuda")
    assert code == 2 and "needs a GPU" in err and err.count("\n") == 1


def test_the_greedy_loop_decodes_as_generate_does(monkeypatch):
    pytest.importorskip("transformers", reason="needs the extra lm")
    size = generate.DecodingSize(2, 6, prompt=1, words=300, layers=2)
    setting = BenchSetting(device=torch.device("cpu"), rounds=1)
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

    row = Timing(
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
    body = out.split("─")[-1]
    assert "…" not in body and "1,234 tokens/s" in body and "softmax twin" in body
    assert _range("1.2 ms", "1.3 ms") == "1.2 to 1.3"
    assert _range("990.0 us", "1.3 ms") == "990.0 us to 1.3 ms"
