"""Recorded gradient steps: the same numbers as without, and what is not recorded."""

import warnings
import weakref
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import timm
import torch
from torch import nn

import pidformer.models  # noqa: F401  (registers them)
from pidformer.robustness import APGD, FAB, FGSM, PGD, SLD, accuracy_under, queries
from pidformer.robustness import recording as recordings
from pidformer.robustness.recording import capacity, is_recordable, recorded

EPS = 3 / 255
PLAIN = PGD(eps=EPS, steps=6, step_size=EPS / 6)


def test_a_recording_is_at_least_half_full():
    for most in (1, 2, 7, 64, 100):
        for rows in range(1, most + 1):
            size = capacity(rows, most)
            assert rows <= size <= max(2 * rows - 1, 1) or size == most == rows


def test_what_may_be_recorded():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).eval()
    assert is_recordable(model)
    assert not is_recordable(lambda x: model(x))
    assert not is_recordable(torch.compile(model))
    handle = model[1].register_forward_hook(lambda *_: None)
    assert not is_recordable(model)
    handle.remove()
    assert is_recordable(model) and not is_recordable(model.train())


def test_an_inner_scope_is_part_of_the_outer():
    assert recordings.current.get() is None
    with recorded():
        outer = recordings.current.get()
        with recorded():
            assert recordings.current.get() is outer
        assert recordings.current.get() is outer
    assert recordings.current.get() is None


class Fake:
    """A recording of sizes on a CPU, whose replay adds `offset` to what the work gives."""

    offset = 0.0

    def __init__(self, work, rows, log):
        self.work, self.rows, self.log, self.graph = work, rows, log, self

    def replay(self, inputs):
        self.log.append((len(inputs[0]), self.rows))
        return tuple(x + self.offset for x in self.work(*inputs))

    def pool(self):
        return None

    def reset(self):
        self.log.append("reset")


@pytest.fixture
def steps(monkeypatch):
    """`run(rows)` of a recorder without a device; what it replayed is in `run.log`."""
    log, share, model = [], [1.0], nn.Linear(2, 2).eval()
    monkeypatch.setattr(
        recordings.Recorder, "_record", lambda self, work, x, rows: (Fake(work, rows, log), None)
    )
    monkeypatch.setattr(recordings, "_watched", lambda work, x: (work(*x), share[0], None))
    monkeypatch.setattr(recordings, "_said", set())
    monkeypatch.setattr(Fake, "offset", 0.0)

    class Steps:
        recorder = recordings.Recorder()

        def __call__(self, rows):
            x = torch.ones(rows, 2)
            found = self.recorder.run(model, "float32", "loss", lambda x: (2 * x,), x)
            assert torch.equal(found[0], 2 * x)

    run = Steps()
    run.log, run.share = log, share
    return run


def test_the_second_step_is_recorded_and_the_third_replayed(steps):
    for rows in (8, 8, 8, 5, 8):
        steps(rows)
    assert steps.log == [(8, 8)] * 2 + [(5, 8), (8, 8)]  # compared, replayed, with rows to spare
    steps.recorder.close()
    assert steps.log[-1] == "reset" and not steps.recorder._found


def test_fewer_rows_take_a_smaller_recording(steps):
    for rows in (8, 8, 4, 3, 4, 1):
        steps(rows)
    assert steps.log == [(8, 8), (3, 4), (4, 4)]


def test_what_the_device_takes_all_the_time_for_is_not_recorded(steps):
    steps.share[0] = recordings.HOST_BOUND / 2
    for _ in range(4):
        steps(8)
    assert not steps.log


def test_a_model_is_judged_once(steps, monkeypatch):
    for _ in range(3):
        steps(8)
    monkeypatch.setattr(recordings, "_watched", None)
    steps.recorder = recordings.Recorder()  # the next call of an attack
    steps.log.clear()
    for _ in range(3):
        steps(8)
    assert steps.log == [(8, 8)] * 2


def test_a_replay_with_other_numbers_is_never_used(steps, monkeypatch):
    monkeypatch.setattr(Fake, "offset", 0.1)
    steps(8)
    with pytest.warns(UserWarning, match="other numbers"):
        steps(8)
    for _ in range(2):
        steps(8)
    assert steps.log == [(8, 8)]


class Refused:
    """A graph whose recording is broken off, as by a wait for the device."""

    def __init__(self, log, breaks):
        self.log, self.breaks = log, breaks

    def capture_begin(self, **given):
        self.log.append(("begin", given["pool"]))
        if self.breaks == "begin":  # the allocator has been told by then
            raise RuntimeError("begin")

    def capture_end(self):
        raise RuntimeError("end\nmore")

    def reset(self):
        self.log.append("reset")


@pytest.mark.parametrize("breaks", ["begin", "end"])
def test_a_recording_that_fails_gives_its_pool_back(breaks, monkeypatch):
    log, stream, state = [], SimpleNamespace(wait_stream=lambda _: None), SimpleNamespace()
    state.clone_state, state.graphsafe_set_state = (lambda: None), (lambda _: None)
    fakes = {
        "CUDAGraph": lambda: Refused(log, breaks),
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": lambda _: nullcontext(),
        "graph_pool_handle": lambda: (0, 7),
        "current_device": lambda: 0,
        "default_generators": [state],
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    for name in ("endAllocateToPool", "releasePool"):
        note = partial(lambda name, *given: log.append((name, *given)), name)
        monkeypatch.setattr(torch._C, f"_cuda_{name}", note, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None, raising=False)
    monkeypatch.setattr(recordings, "_failed", [])
    found = recordings._record(lambda x: (x,), (torch.ones(2, 2),), 2, None)
    assert found == (None, breaks)
    given_back = [("endAllocateToPool", 0, (0, 7)), ("releasePool", 0, (0, 7))]
    assert log == [("begin", (0, 7)), "reset", *given_back] and len(recordings._failed) == 1


def test_tensors_go_before_the_memory_that_they_hold_is_given_back(monkeypatch):
    seen, recorder, output = [], recordings.Recorder(), torch.ones(2)
    left = weakref.ref(output)
    graph = SimpleNamespace(reset=lambda: seen.append("reset"))
    recorder._found["key"] = recordings._Recording(graph, (), (output,))
    del output
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: seen.append(left()))
    recorder.close()
    assert seen == ["reset", None]


def test_no_pool_is_shared_once_a_recording_has_failed(monkeypatch):
    pools, recorder = [], recordings.Recorder()
    graph = SimpleNamespace(reset=lambda: None, pool=lambda: (0, 7))
    recorder._found["key"] = recordings._Recording(graph, (), ())
    monkeypatch.setattr(recordings, "_record", lambda *given: pools.append(given[-1]))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1, 2))
    for failed in ([], [graph]):
        monkeypatch.setattr(recordings, "_failed", failed)
        recorder._record(None, (), 2)
    assert pools == [(0, 7), None]


def gpu(test):
    return pytest.mark.gpu(
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")(test)
    )


def network(name="pid_deit_tiny_patch16_224", **options):
    torch.manual_seed(0)
    sizes = {"img_size": 64, "patch_size": 8, "depth": 4, "num_classes": 10}
    return timm.create_model(name, **sizes | options).cuda().eval()


def batch(count, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    images = torch.rand(count, 3, 64, 64, generator=generator, device="cuda")
    return images, torch.arange(count, device="cuda") % 10


def unrecorded(threat, model, *given, **options):
    """The same outside of every scope."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recordings.Recorder, "takes", lambda *_: False)
        return threat(model, *given, **options)


@pytest.fixture
def always(monkeypatch):
    """Steps are recorded however busy the device is, and the shares of time with it."""
    monkeypatch.setattr(recordings, "HOST_BOUND", 0.0)


@pytest.fixture
def replays(always, monkeypatch):
    """The rows of each replay, in a scope that records."""
    rows, replay = [], recordings._Recording.replay

    def noted(self, inputs):
        rows.append((len(inputs[0]), len(self.inputs[0])))
        return replay(self, inputs)

    monkeypatch.setattr(recordings._Recording, "replay", noted)
    with recorded():
        yield rows


@pytest.fixture
def deterministic():
    """SDPA's backward in float32 adds parts of dq in whatever order they are done."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


MODELS = {
    "timm": lambda: network("deit_tiny_patch16_224"),
    "PID": lambda: network(gains="0.4,0.1,0.05"),
    "P": lambda: network(gains="0.4,0,0"),
}
THREATS = [PLAIN, PGD(eps=EPS, steps=4, restarts=2), SLD(steps=4), PGD(eps=EPS, precision="tf32")]


@gpu
@pytest.mark.usefixtures("deterministic")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("threat", THREATS, ids=repr)
@pytest.mark.parametrize("name", MODELS)
def test_a_replay_is_the_step_bit_for_bit(name, threat, replays):
    model, given = MODELS[name](), batch(16)
    found = threat(model, *given)
    assert replays and torch.equal(found, unrecorded(threat, model, *given))


@gpu
@pytest.mark.usefixtures("deterministic")
@pytest.mark.filterwarnings("ignore")
def test_fgsm_is_recorded_over_batches(replays):
    model = network(gains="0.4,0.1,0.05")
    given = [batch(16, seed) for seed in range(4)] + [batch(11, 5), batch(3, 6)]
    found = [FGSM(eps=EPS)(model, *each) for each in given]
    assert replays == [(16, 16), (16, 16), (16, 16), (11, 16)]  # recorded, replayed, ragged
    for each, images in zip(given, found, strict=True):
        expected = unrecorded(FGSM(eps=EPS), model, *each)
        # another row count may take other kernels, and where a gradient is 0 the sign follows
        assert (images != expected).float().mean() < (1e-3 if len(images) < 16 else 1e-9)


@gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "threat",
    [PGD(eps=EPS, early_stop=True), APGD(eps=EPS, steps=10), FAB(eps=EPS, steps=5, targets=2)],
    ids=repr,
)
def test_attacks_that_stop_early_are_as_strong(threat, precision, replays):
    model, (images, _) = network(gains="0.4,0.1,0.05"), batch(32)
    labels = model(images).argmax(-1)
    threat = type(threat)(**vars(threat) | {"precision": precision})
    found = accuracy_under(model, [(images, labels)], threat)
    plain = unrecorded(accuracy_under, model, [(images, labels)], threat)
    assert replays and abs(found[0] - plain[0]) <= 2


class Waits(nn.Module):
    def __init__(self, inner, wait):
        super().__init__()
        self.inner, self.wait = inner, wait

    def forward(self, x):
        self.wait(x)
        return self.inner(x)


@gpu
@pytest.mark.parametrize(
    "wait",
    [lambda x: x.sum().item(), lambda x: x[x > 0.5].sum(), lambda x: torch.cuda.synchronize()],
    ids=["item", "boolean index", "synchronize"],
)
def test_a_model_that_waits_for_the_device_is_not_recorded(wait, replays, monkeypatch):
    monkeypatch.setattr(recordings, "_said", set())
    inner, given = network(), batch(8)
    with pytest.warns(UserWarning, match="cannot be recorded") as said:
        found = PLAIN(Waits(inner, wait).eval(), *given)
    assert len(said) == 1 and not replays
    assert torch.equal(found, unrecorded(PLAIN, inner, *given))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        PLAIN(Waits(inner, wait).eval(), *given)
    # generator, allocator and device are as before
    PLAIN(inner, *given)
    assert replays
    nn.functional.dropout(given[0], 0.5).sum().item()
    with torch.random.fork_rng():
        torch.cuda.manual_seed(0)
        torch.rand(3, device="cuda")


@gpu
def test_a_model_that_draws_is_not_recorded(monkeypatch, replays):
    monkeypatch.setattr(recordings, "_said", set())
    noisy = Waits(network(), lambda x: None).eval()
    noisy.forward = lambda x: noisy.inner(x + 0.1 * torch.randn_like(x))
    with pytest.warns(UserWarning, match="other numbers"):
        PLAIN(noisy, *batch(8))
    assert len(replays) == 1  # the one that was compared


@gpu
@pytest.mark.usefixtures("always")
def test_memory_is_returned():
    model, given = network(gains="0.4,0.1,0.05"), batch(64)
    unrecorded(PLAIN, model, *given)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for _ in range(2):
        with recorded():
            PLAIN(model, *given)
    torch.cuda.synchronize()
    after = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    assert after[0] <= before[0]
    assert after[1] <= before[1] + 2**21


@gpu
@pytest.mark.usefixtures("always", "deterministic")
@pytest.mark.filterwarnings("ignore")
def test_weights_may_change_in_place_within_a_scope():
    model, given = network(gains="0.4,0.1,0.05"), batch(8)
    with recorded():
        for _ in range(2):
            PLAIN(model, *given)
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(0.9)
        found = PLAIN(model, *given)
    assert torch.equal(found, unrecorded(PLAIN, model, *given))


def test_without_a_gpu_nothing_is_recorded(monkeypatch):
    monkeypatch.setattr(recordings.Recorder, "run", None)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).eval()
    images, labels = torch.rand(2, 3, 2, 2), torch.tensor([0, 1])
    with recorded():
        assert PLAIN(model, images, labels).shape == images.shape
    assert queries.current.get() is None


def test_nothing_is_recorded_that_was_not_asked_for():
    seen = []

    class Model(nn.Module):
        def forward(self, x):
            seen.append(queries.current.get())
            return x.flatten(1)[:, :3]

    PLAIN(Model().eval(), torch.rand(2, 3, 2, 2), torch.tensor([0, 1]))
    assert seen and set(seen) == {None}
