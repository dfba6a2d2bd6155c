"""Searches in less than float32, and models that are not plain float32 modules."""

import contextlib
import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import pidformer as pf
from pidformer.devices import tf32
from pidformer.robustness import (
    APGD,
    FAB,
    FGSM,
    PGD,
    SLD,
    SPSA,
    AutoAttack,
    Normalized,
    Square,
    accuracy_under,
    queries,
    recorded,
    recording,
)
from pidformer.robustness.queries import Searching, judge, searching

STOPPING = [
    PGD(eps=0.06, steps=8, step_size=0.02, early_stop=True),
    PGD(eps=0.06, steps=4, step_size=0.03, restarts=2),
    SPSA(eps=0.1, steps=4, samples=8, lr=0.05, early_stop=True),
    APGD(eps=0.06, steps=10),
    APGD(eps=0.4, norm="L2", steps=5, loss="dlr", targets=2),
    FAB(eps=0.06, steps=5, targets=3),
    Square(eps=0.1, queries=60),
    Square(eps=0.6, norm="L2", queries=60),
]
FIXED = [FGSM(eps=0.06), PGD(eps=0.06, steps=5, step_size=0.02), SLD(eps=2.0, step_size=0.5)]
ALL = [*FIXED, *STOPPING]
each = pytest.mark.parametrize("threat", ALL, ids=repr)


def lower(threat, name="bfloat16"):
    return type(threat)(**vars(threat) | {"precision": name})


@pytest.fixture(scope="module")
def network(model):
    return copy.deepcopy(model).float().eval()


@pytest.fixture(scope="module")
def many(data):
    return data[0][1000:1200].float(), data[1][1000:1200]


def right(network, images, labels):
    with torch.no_grad():
        return network(images).argmax(-1) == labels


def test_float32_is_the_model_itself(network):
    assert searching(network, "float32") is network is judge(network)
    assert judge(searching(network, "tf32")) is network


@each
def test_a_search_in_bfloat16_is_as_strong(network, many, threat):
    full = right(network, threat(network, *many), many[1])
    half = right(network, lower(threat)(network, *many), many[1])
    assert abs(int(full.sum()) - int(half.sum())) <= 4
    assert int(half.sum()) < int(right(network, *many).sum()) - 10


@each
def test_the_search_is_lowered_and_the_verdict_is_not(network, many, threat):
    images, labels = many[0][:20], many[1][:20]
    seen = []

    def spy(x):
        seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
        return network(x)

    found = lower(threat)(spy, images, labels)
    assert found.dtype == torch.float32 and found.min() >= 0 and found.max() <= 1
    assert all(is_lowered for has_gradient, is_lowered in seen if has_gradient)
    if threat in STOPPING:
        assert not all(is_lowered for _, is_lowered in seen)  # some were verdicts
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.slow
@pytest.mark.parametrize("threat", STOPPING, ids=repr)
def test_what_only_the_search_takes_for_broken_is_not(network, many, threat):
    """A model that in bfloat16 never gives the true class: no attack may stop because of it."""
    images, labels = many[0][:60], many[1][:60]

    def liar(x):
        logits = network(x)
        if not torch.is_autocast_enabled("cpu"):
            return logits
        nearest = torch.cdist(x.flatten(1), images.flatten(1)).argmin(1)
        return logits.float() - 100 * nn.functional.one_hot(labels[nearest], 10)

    honest = right(network, threat(network, images, labels), labels)
    found = lower(threat)(liar, images, labels)
    still = right(network, found, labels)
    if not isinstance(threat, PGD | SPSA):  # these give back unchanged what they do not break
        assert torch.equal(found[still], images[still])
    if not isinstance(threat, FAB) and not getattr(threat, "targets", 0):  # they aim by the lie
        assert abs(int(still.sum()) - int(honest.sum())) <= 5


def test_repr_names_what_is_not_float32():
    assert "precision" not in repr(PGD())
    for threat in (FGSM(precision="tf32"), AutoAttack(norm="L2", precision="bfloat16")):
        assert threat.precision in repr(threat) and eval(repr(threat)) == threat
    assert "bfloat16" in repr(Normalized(PGD(precision="bfloat16"), [0.5], [0.5]))


@pytest.mark.parametrize("before", ["none", "ieee", "tf32"])
def test_tf32_is_given_back(before):
    matmul = torch.backends.cuda.matmul
    default = matmul.fp32_precision
    matmul.fp32_precision = before
    try:
        with contextlib.suppress(ZeroDivisionError), tf32():
            assert matmul.fp32_precision == "tf32"
            raise ZeroDivisionError
        assert matmul.fp32_precision == before
    finally:
        matmul.fp32_precision = default
    assert torch.get_float32_matmul_precision() == "highest" and not matmul.allow_tf32


class Flag(torch.autograd.Function):
    """The identity, which notes whether TF32 is on."""

    seen: list[tuple[str, bool]]

    @staticmethod
    def forward(ctx, x):
        Flag.seen.append(("forward", torch.backends.cuda.matmul.fp32_precision == "tf32"))
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        Flag.seen.append(("backward", torch.backends.cuda.matmul.fp32_precision == "tf32"))
        return gradient


def test_tf32_is_on_in_forward_and_backward(network, many, monkeypatch):
    """On a machine without CUDA: as if the images were there."""
    there = queries.lowered
    monkeypatch.setattr(queries, "lowered", lambda model, _: there(model, "cuda"))
    Flag.seen = []
    expected = FGSM(eps=0.05)(network, *many)
    found = FGSM(eps=0.05, precision="tf32")(lambda x: network(Flag.apply(x)), *many)
    assert Flag.seen == [("forward", True), ("backward", True)]
    assert torch.equal(found, expected)  # the CPU does not round


def test_tf32_changes_nothing_on_a_cpu(network, many):
    assert torch.equal(PGD(precision="tf32")(network, *many), PGD()(network, *many))


@each
@pytest.mark.parametrize("where", ["inside", "outside"])
def test_callers_may_use_autocast(network, many, threat, where):
    def inside(x):
        with torch.autocast("cpu", torch.bfloat16):
            return network(x)

    images, labels = many[0][:100], many[1][:100]
    if where == "inside":
        found = threat(inside, images, labels)
    else:
        with torch.autocast("cpu", torch.bfloat16):
            found = threat(network, images, labels)
    assert found.dtype == torch.float32 and found.min() >= 0 and found.max() <= 1
    assert int(right(inside, found, labels).sum()) < 95


@pytest.mark.slow
@pytest.mark.parametrize("threat", [FGSM(eps=0.1), FIXED[1], STOPPING[0], STOPPING[3]], ids=repr)
def test_a_compiled_model_gives_the_same(network, many, threat):
    images, labels = many[0][:30], many[1][:30]
    torch.compiler.reset()
    compiled = torch.compile(copy.deepcopy(network), backend="eager")
    assert torch.equal(threat(compiled, images, labels), threat(network, images, labels))
    lowered = lower(threat)(compiled, images, labels)
    assert torch.equal(lowered, lower(threat)(network, images, labels))


@each
def test_weights_may_be_bfloat16(network, many, threat):
    half = pf.PixelModel(copy.deepcopy(network), mean=[0.3], std=[1.0]).bfloat16().eval()
    shifted = many[0][:100], many[1][:100]
    clean = accuracy_under(half, [shifted])[0]
    attacked = threat(half, *shifted)
    assert attacked.dtype == torch.float32 and attacked.min() >= 0 and attacked.max() <= 1
    assert int(right(half, attacked, shifted[1]).sum()) < clean


def test_weights_ask_for_nothing_during_an_attack(many):
    """So the forward keeps less: no layer's input is needed for its weight's gradient."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10))
    kept = []

    def note(x):
        kept.append(x.numel())
        return x

    def asked(x):
        assert not any(weight.requires_grad for weight in network.parameters())
        return network(x)

    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network

        def forward(self, x):
            with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
                return asked(x)

    model = Watched()
    FGSM()(model, *many)
    during, kept[:] = sum(kept), []
    assert all(weight.requires_grad for weight in network.parameters())
    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        network(many[0].clone().requires_grad_())
    assert during < sum(kept) - many[0].numel()
    with pytest.raises(RuntimeError):
        FGSM()(network, many[0].double(), many[1])
    assert all(weight.requires_grad for weight in network.parameters())


def test_searching_is_a_value():
    def plain(x):
        return x

    assert Searching(plain, "tf32") == Searching(plain, "tf32")


def test_a_recording_is_made_on_the_device_of_the_images(monkeypatch):
    """On another one nothing would be recorded, and a replay would do nothing."""
    entered = []
    monkeypatch.setattr(torch.cuda, "device", lambda device: entered.append(device) or recorded())
    monkeypatch.setattr(recording.Recorder, "run", lambda *given: tuple(entered))
    images = SimpleNamespace(is_cuda=True, device=torch.device("cuda:1"))
    with recorded():
        assert queries.ascent(nn.Linear(2, 2).eval(), images, torch.sum) == (images.device,)
