"""What holds for every attack."""

import dataclasses
import random
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch

import pidformer as pf
from pidformer.robustness import (
    APGD,
    FAB,
    FGSM,
    PGD,
    SLD,
    SPSA,
    AutoAttack,
    Noise,
    Normalized,
    Square,
    accuracy_under,
)
from pidformer.robustness.corruptions import Corruption


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Quick(AutoAttack):
    """AutoAttack with few steps, targets and queries."""

    @property
    def stages(self):
        first, second, third, fourth = super().stages
        return (
            dataclasses.replace(first, steps=4),
            dataclasses.replace(second, steps=3, targets=2),
            dataclasses.replace(third, steps=3, targets=2),
            dataclasses.replace(fourth, queries=10),
        )


ATTACKS = [
    FGSM(eps=0.1),
    PGD(eps=0.1, steps=5, step_size=0.04),
    PGD(eps=0.1, steps=5, step_size=0.04, early_stop=True, restarts=2),
    Noise(eps=0.1),
    Noise(eps=0.1, kind="gaussian"),
    SLD(eps=2.0, steps=10, step_size=0.5, sparsity=0.9),
    SPSA(eps=0.1, steps=4, samples=8, lr=0.05, chunk=30),
    SPSA(eps=0.1, steps=4, samples=8, lr=0.05, chunk=30, early_stop=True),
    SPSA(eps=0.1, steps=2, samples=4, compat="cleverhans"),
    APGD(eps=0.1, steps=10),
    APGD(eps=0.1, steps=5, loss="dlr", restarts=2),
    APGD(eps=0.1, steps=5, loss="dlr", targets=3),
    APGD(eps=0.5, norm="L2", steps=10),
    FAB(eps=0.1, steps=5, targets=3),
    FAB(eps=0.5, norm="L2", steps=5, targets=3),
    Square(eps=0.1, queries=30),
    Square(eps=0.7, norm="L2", queries=15),
    Quick(eps=0.1),
    Quick(eps=0.5, norm="L2"),
]
THREATS = [*ATTACKS, Normalized(ATTACKS[1], [0.3], [0.4]), Normalized(FAB(eps=0.3), [0.3], [0.4])]
THREATS += [Corruption(name="shot_noise", severity=2), Corruption(name="elastic_transform")]
each = pytest.mark.parametrize("threat", THREATS, ids=repr)
each_attack = pytest.mark.parametrize("threat", ATTACKS, ids=repr)


@each_attack
def test_results_stay_in_the_ball_and_are_pixels(model, batch, threat):
    attacked = threat(model, *batch)
    assert attacked.min() >= 0 and attacked.max() <= 1
    assert attacked.shape == batch[0].shape and attacked.dtype == batch[0].dtype
    assert not torch.equal(attacked, batch[0]) and not attacked.requires_grad
    change = (attacked - batch[0]).flatten(1)
    if getattr(threat, "kind", "uniform") == "uniform":
        order = 1 if isinstance(threat, SLD) else 2 if "L2" in repr(threat) else float("inf")
        assert change.norm(order, dim=1).max() <= threat.eps * (1 + 1e-6)


@each_attack
def test_zero_budget_leaves_the_images_alone(model, batch, threat):
    nothing = dataclasses.replace(threat, eps=0.0)
    for attack in (nothing, Normalized(nothing, [0.3], [0.4])):
        attacked = attack(model, *batch)
        assert torch.equal(attacked, batch[0]) and attacked is not batch[0]


@pytest.mark.slow
@each
def test_the_size_of_the_batches_changes_nothing(model, data, threat):
    images, labels = data[0][1000:1070], data[1][1000:1070]
    whole = threat(model, images, labels, seed=5, offset=3)
    for size in (1, 7, 64):
        parts = [
            threat(model, part, labels[i : i + size], seed=5, offset=3 + i)
            for i, part in zip(range(0, len(images), size), images.split(size), strict=True)
        ]
        torch.testing.assert_close(torch.cat(parts), whole)


@pytest.mark.slow
@each
def test_the_same_seed_gives_the_same_images(model, batch, threat):
    torch.manual_seed(0)
    first = threat(model, *batch, seed=2)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    assert torch.equal(threat(model, *batch, seed=2), first)
    assert torch.equal(torch.get_rng_state(), state)  # the global generator is nobody's to draw
    inner = threat.threat if isinstance(threat, Normalized) else threat
    if not isinstance(inner, FGSM | SLD | FAB):
        assert not torch.equal(threat(model, *batch, seed=3), first)


@pytest.mark.slow
@each
def test_the_model_and_the_images_are_left_as_they_were(model, batch, threat):
    model.train()
    model[2].eval()
    modes = [module.training for module in model.modules()]
    frozen, graded, *others = model.parameters()
    frozen.requires_grad_(False)
    graded.grad = torch.ones_like(graded)
    images = batch[0].clone()
    generators = [torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())]
    try:
        with torch.inference_mode():
            inside = threat(model, images.clone(), batch[1].clone())
        assert torch.equal(inside, threat(model, images, batch[1]))
        assert torch.equal(images, batch[0])
        assert [module.training for module in model.modules()] == modes
        assert not frozen.requires_grad and all(p.requires_grad for p in (graded, *others))
        assert (graded.grad == 1).all() and all(p.grad is None for p in (frozen, *others))
        after = [torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())]
        assert after == generators
    finally:
        frozen.requires_grad_(True)
        graded.grad = None
        model.eval()


@each
def test_an_empty_batch_is_no_error(model, batch, threat):
    assert threat(model, batch[0][:0], batch[1][:0]).shape == (0, 1, 8, 8)


@each
def test_repr_makes_the_threat_again(threat):
    assert eval(repr(threat)) == threat


BY_BUDGET = [
    lambda e: FGSM(eps=min(e, 0.2)),  # one longer step may overshoot
    lambda e: PGD(eps=e, step_size=e / 8),
    lambda e: PGD(eps=e, step_size=e / 8, early_stop=True),
    lambda e: Noise(eps=e),
    lambda e: SLD(eps=60 * e, steps=30, step_size=4 * e, sparsity=0.6),
    lambda e: SPSA(eps=e, steps=15, samples=16, lr=max(e, 0.01) / 4, early_stop=True),
    lambda e: APGD(eps=e, steps=20),
    lambda e: APGD(eps=5 * e, norm="L2", steps=20),
    lambda e: APGD(eps=e, steps=10, loss="dlr", targets=9),
    lambda e: FAB(eps=e, steps=10),
    lambda e: FAB(eps=5 * e, steps=10, norm="L2"),
    lambda e: Square(eps=e, queries=200),
    lambda e: Square(eps=8 * e, norm="L2", queries=200),
    lambda e: Quick(eps=e),
    lambda e: Quick(eps=5 * e, norm="L2"),
]


@pytest.mark.slow
@pytest.mark.parametrize("make", BY_BUDGET)
def test_a_larger_budget_never_raises_accuracy(model, data, make):
    rest = [(data[0][1000:1200], data[1][1000:1200])]
    budgets = (0.0, 0.05, 0.1, 0.2, 0.5)
    right = [accuracy_under(model, rest, make(eps))[0] for eps in budgets]
    slack = 2 if isinstance(make(0), Noise) else 0  # noise does not search
    assert all(low <= high + slack for high, low in pairwise(right))
    assert right[0] == accuracy_under(model, rest)[0] > 180
    if not isinstance(make(0), Noise | FGSM):
        assert right[-1] <= 2


@pytest.mark.parametrize("early_stop", [False, True])
def test_pgd_with_a_large_budget_leaves_nothing(model, data, early_stop):
    rest = [(data[0][1000:], data[1][1000:])]
    threat = PGD(eps=0.4, steps=20, step_size=0.05, early_stop=early_stop)
    assert accuracy_under(model, rest)[0] > 700
    assert accuracy_under(model, rest, threat) == (0, 797)


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.06), ("L2", 0.35)])
def test_autoattack_breaks_what_its_stages_break(model, data, norm, eps):
    images, labels = data[0][1000:1030], data[1][1000:1030]
    threat = AutoAttack(eps=eps, norm=norm)
    assert {stage.norm for stage in threat.stages} == {norm}
    assert [type(stage) for stage in threat.stages] == [APGD, APGD, FAB, Square]
    assert eval(repr(threat)) == threat

    def broken(attack):
        return model(attack(model, images, labels)).argmax(-1) != labels

    attacked = threat(model, images, labels)
    whole = model(attacked).argmax(-1) != labels
    assert 0 < int(whole.sum()) < len(labels)
    for stage in threat.stages[:3]:
        assert not (broken(stage) & ~whole).any()
    assert torch.equal(attacked[~whole], images[~whole])
    order = 2 if norm == "L2" else float("inf")
    assert (attacked - images).flatten(1).norm(order, dim=1).max() <= eps * (1 + 1e-6)


@pytest.mark.parametrize("make", [PGD, SPSA])
def test_early_stop_breaks_what_is_broken_at_any_step(model, data, make):
    images, labels = data[0][1000:1100], data[1][1000:1100]
    fixed = {"eps": 0.05, "step_size": 0.05} if make is PGD else {"eps": 0.1, "samples": 4}
    steps = 8
    ever = torch.zeros(len(labels), dtype=torch.bool)
    for count in range(1, steps + 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            attacked = make(**fixed, steps=count)(model, images, labels, seed=1)
        ever |= model(attacked).argmax(-1) != labels
    stopped = make(**fixed, steps=steps, early_stop=True)(model, images, labels, seed=1)
    found = model(stopped).argmax(-1) != labels
    start = images + fixed["eps"] * _start(images, seed=1)
    at_start = model(start.clamp(0, 1)).argmax(-1) != labels
    assert torch.equal(found, ever | at_start)
    assert 0 < int(found.sum()) < len(labels)


def _start(images, seed):
    from pidformer.robustness.threat import Draws

    drawn = Draws.of_batch(images, seed, 0).at(0).uniform(*images.shape[1:])
    return (2 * drawn - 1).to(images.dtype)


def test_normalized_is_the_attack_on_the_input_of_the_network(data):
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)).double()
    images, labels = data[0][:20], data[1][:20]
    model = pf.PixelModel(network, [0.3], [0.4]).double()
    attacked = Normalized(FGSM(eps=0.5), [0.3], [0.4])(model, images, labels)
    z = ((images - 0.3) / 0.4).requires_grad_()
    torch.nn.functional.cross_entropy(network(z), labels).backward()
    expected = (z + 0.5 * z.grad.sign()).detach() * 0.4 + 0.3
    torch.testing.assert_close(attacked, expected, atol=1e-7, rtol=0)
    assert attacked.min() < 0 and attacked.max() > 1
    assert "Normalized" in repr(Normalized(FGSM(), [0.3], [0.4]))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Noise(kind="salt"), "gaussian"),
        (lambda: SLD(eps=-1.0), "length"),
        (lambda: SLD(sparsity=1.0), "sparsity"),
        (lambda: SPSA(chunk=1), "chunk"),
        (lambda: SPSA(delta=0.0), "delta"),
        (lambda: SPSA(compat="foolbox"), "compat"),
        (lambda: APGD(norm="L1"), "norm"),
        (lambda: APGD(targets=3), "dlr"),
        (lambda: APGD(rho=1.0), "rho"),
        (lambda: FAB(beta=1.0), "beta"),
        (lambda: FAB(targets=0), ">= 1, got 0"),
        (lambda: Square(p_init=0.0), "p_init"),
        (lambda: AutoAttack(norm="L1"), "norm"),
        (lambda: AutoAttack(version="rand"), "standard"),
        (lambda: Square(norm="L1"), "norm"),
        (lambda: Square(norm="L2", eps=-1), "length"),
        (lambda: PGD(precision="float16"), "float32, tf32, bfloat16"),
        (lambda: AutoAttack(eps=8), "did you mean 8/255"),
        (lambda: Normalized(FGSM(), [0.5], [0.0]), "std"),
        (lambda: Normalized(lambda *_: None, [0.5], [0.5]), "only an attack"),
    ],
)
def test_bad_settings_are_refused_in_one_line(make, words):
    with pytest.raises(pf.InputError, match=words) as error:
        make()
    assert "\n" not in str(error.value)


def test_too_few_classes_are_refused(batch):
    def two(x):
        return x.flatten(1)[:, :2]

    with pytest.raises(pf.InputError, match="classes"):
        APGD(loss="dlr")(two, batch[0], torch.zeros_like(batch[1]))
