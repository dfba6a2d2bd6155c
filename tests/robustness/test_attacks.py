import warnings

import numpy as np
import pytest
import torch
from torch import nn

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
    Square,
    accuracy_under,
)
from pidformer.robustness.threat import Draws

SMALL = PGD(eps=0.1, steps=5, step_size=0.04)


def _uniform_start(images, seed, offset, restart):
    drawn = Draws.of_batch(images, seed, offset).at(restart).uniform(*images.shape[1:])
    return (2 * drawn - 1).to(images.dtype)


def by_hand(model, images, labels, start, eps, step_size, steps):
    """One image at a time, clamped entry by entry, gradient by backward()."""
    found = []
    for x, y, x0 in zip(images, labels, start, strict=True):
        now = torch.minimum(torch.maximum(x0, x - eps), x + eps).clamp(0, 1)
        for _ in range(steps):
            now = now.clone().requires_grad_()
            (-model(now[None]).log_softmax(-1)[0, y]).backward()
            now = (now + step_size * now.grad.sign()).detach()
            now = torch.minimum(torch.maximum(now, x - eps), x + eps).clamp(0, 1)
        found.append(now)
    model.zero_grad(set_to_none=True)
    return torch.stack(found)


def test_fgsm_matches_a_direct_loop(model, batch):
    images, labels = batch
    expected = by_hand(model, images, labels, images, 0.1, 0.1, 1)
    torch.testing.assert_close(FGSM(eps=0.1)(model, images, labels), expected)


@pytest.mark.parametrize("random_start", [False, True])
def test_pgd_matches_a_direct_loop(model, batch, random_start):
    images, labels = batch
    start = images + 0.1 * _uniform_start(images, 3, 7, 0) * random_start
    expected = by_hand(model, images, labels, start, 0.1, 0.03, 6)
    threat = PGD(eps=0.1, steps=6, step_size=0.03, random_start=random_start)
    torch.testing.assert_close(threat(model, images, labels, seed=3, offset=7), expected)


@pytest.mark.parametrize(("sparsity", "kept"), [(0.01, 64), (0.75, 17), (0.99, 2)])
@pytest.mark.parametrize("eps", [0.4, 3.0])
def test_sld_matches_a_direct_loop(data, eps, sparsity, kept):
    """Of a loss with no two slopes alike: the largest from the int(sparsity D)-th smallest on."""
    images, labels = data[0][:8], torch.zeros(8, dtype=torch.long)
    slope = torch.randn(64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def model(x):
        value = x.flatten(1) @ slope + x.flatten(1).square().sum(1)
        return torch.stack([torch.zeros_like(value), value], dim=1)

    threat = SLD(eps=eps, steps=5, step_size=0.7, sparsity=sparsity)
    found = threat(model, images, labels)
    for x, attacked in zip(images.flatten(1).numpy(), found.flatten(1).numpy(), strict=True):
        now = x
        for _ in range(threat.steps):
            g = slope.numpy() + 2 * now  # times a number above 0
            largest = np.argsort(-np.abs(g))[:kept]
            step = np.zeros(64)
            step[largest] = np.sign(g[largest]) / kept
            change = np.clip(now + 0.7 * step, 0, 1) - x
            change *= min(1, eps / max(np.abs(change).sum(), 1e-12))
            now = np.clip(x + change, 0, 1)
        np.testing.assert_allclose(attacked, now, atol=1e-12)


def test_square_walks_like_a_direct_loop(model, data):
    """Algorithms 1 and 2 of Andriushchenko et al. 2020, an image at a time, with our draws."""
    images, labels = data[0][1000:1025], data[1][1000:1025]
    threat = Square(eps=0.2, queries=90, p_init=0.3)
    draws = Draws.of_batch(images, 4, 0).at(0)
    stripes, first, second = (
        draws.at(*place).uniform(*shape)
        for place, shape in (((0,), (1, 1, 8)), ((1, 0), (64, 3)), ((1, 1), (64, 3)))
    )
    numbers = torch.cat([first, second], 1)
    took = []

    def lead(x, label):  # of the best wrong class
        logits = model(x[None]).detach()[0]
        return float(logits[torch.arange(10) != label].max() - logits[label])

    expected = images.clone()
    for row, (x, label) in enumerate(zip(images, labels, strict=True)):
        if lead(x, label) > 0:
            continue
        best = (x + 0.2 * (2.0 * (stripes[row] > 0.5) - 1)).clamp(0, 1)
        query, ahead = 0, lead(best, label)
        while query < threat.queries and ahead <= 0:
            down, along, sign = numbers[row, query].tolist()
            side = threat.side(query, 8, 8)
            top, left = (min(int(u * (9 - side)), 8 - side) for u in (down, along))
            tried = best.clone()
            square = slice(top, top + side), slice(left, left + side)
            tried[0][square] = (x[0][square] + (0.2 if sign > 0.5 else -0.2)).clamp(0, 1)
            found = lead(tried, label)
            best, ahead = (tried, found) if found > ahead else (best, ahead)
            query += 1
        if ahead > 0:
            expected[row] = best
            took.append(query)
    assert took.count(0) > 0 and max(took) > 64 and len(took) < 25
    torch.testing.assert_close(threat(model, images, labels, seed=4), expected)


@pytest.mark.parametrize("eps", [0.05, 0.15])
def test_pgd_with_nothing_but_a_budget_is_a_good_attack(model, batch, eps):
    """At every budget: beyond FGSM, beyond steps that only reach the edge, and near APGD."""
    images, labels = batch

    def loss(threat):
        return nn.functional.cross_entropy(model(threat(model, images, labels)), labels).item()

    found = loss(PGD(eps=eps))
    assert found > max(loss(FGSM(eps=eps)), loss(PGD(eps=eps, step_size=eps / 20)))
    best = loss(PGD(eps=eps, steps=200, step_size=eps / 40, restarts=3))
    assert found > 0.9 * best


@pytest.mark.parametrize(("eps", "steps"), [(1.0, 1), (0.5, 1), (1.0, 2)])
def test_pgd_with_few_steps_and_a_large_budget_needs_no_step_size(eps, steps):
    """2.5 eps / steps would be above 1, which no step of pixels is."""
    assert PGD(eps=eps, steps=steps).step_size == 1.0


def test_fgsm_is_one_step_of_pgd(model, batch):
    one = PGD(eps=0.1, steps=1, step_size=0.1, random_start=False)
    assert torch.equal(FGSM(eps=0.1)(model, *batch), one(model, *batch))


@pytest.mark.parametrize("threat", [FGSM(eps=0.2), SMALL, PGD(eps=0.3, steps=2, step_size=0.2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_stay_in_the_ball_and_are_pixels(model, batch, threat, dtype):
    images, labels = batch[0].to(dtype), batch[1]
    attacked = threat(lambda x: model(x.double()), images, labels)
    assert attacked.dtype == dtype and not torch.equal(attacked, images)
    assert attacked.min() >= 0 and attacked.max() <= 1
    assert (attacked - images).abs().max() <= threat.eps * (1 + 1e-5)


@pytest.mark.parametrize("threat", [FGSM(eps=0), PGD(eps=0), PGD(eps=0, restarts=3)])
def test_zero_budget_leaves_the_images_alone(model, batch, threat):
    attacked = threat(model, *batch)
    assert torch.equal(attacked, batch[0]) and attacked is not batch[0]


@pytest.mark.parametrize("make", [lambda e: FGSM(eps=e), lambda e: PGD(eps=e, step_size=e / 8)])
def test_accuracy_falls_with_the_budget(model, data, make):
    rest = [(data[0][1000:], data[1][1000:])]
    budgets = (0.0, 0.02, 0.05, 0.1, 0.2)
    right = [accuracy_under(model, rest, make(eps))[0] for eps in budgets]
    assert right == sorted(right, reverse=True) and right[-1] < right[0] / 2
    assert accuracy_under(model, rest)[0] == right[0]


def test_iterating_is_stronger_than_one_step(model, data):
    rest = [(data[0][1000:], data[1][1000:])]
    once, often = (accuracy_under(model, rest, t)[0] for t in (FGSM(eps=0.1), SMALL))
    assert often <= once


def test_restarts_only_help(model, batch):
    def loss(threat):
        attacked = threat(model, *batch)
        logits = model(attacked)
        wrong = logits.argmax(-1) != batch[1]
        return wrong.double() - logits.softmax(-1).gather(1, batch[1][:, None])[:, 0]

    settings = {"eps": 0.05, "steps": 3, "step_size": 0.02}
    one, three = (loss(PGD(**settings, restarts=n)) for n in (1, 3))
    assert (three >= one).all() and (three > one).any()


def test_the_split_into_batches_changes_nothing(model, batch):
    images, labels = batch
    whole = SMALL(model, images, labels, seed=5)
    parts = [
        SMALL(model, images[i : i + 7], labels[i : i + 7], seed=5, offset=i)
        for i in range(0, len(images), 7)
    ]
    torch.testing.assert_close(torch.cat(parts), whole)
    one = accuracy_under(model, [batch], SMALL, seed=5)
    split = zip(images.split(7), labels.split(7), strict=True)
    assert accuracy_under(model, split, SMALL, seed=5) == one


def test_seeds_repeat_and_differ(model, batch):
    runs = [SMALL(model, *batch, seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])


def test_the_start_is_uniform_and_independent():
    drawn = _uniform_start(torch.zeros(400, 1, 16, 16), 0, 0, 0).flatten(1)
    assert abs(float(drawn.mean())) < 0.01 and abs(float(drawn.var()) - 1 / 3) < 0.01
    assert drawn.min() >= -1 and drawn.max() <= 1
    correlation = torch.corrcoef(drawn) - torch.eye(400)
    assert correlation.abs().max() < 6 / 256**0.5
    other = _uniform_start(torch.zeros(400, 1, 16, 16), 0, 0, 1).flatten(1)
    assert abs(float((drawn * other).mean())) < 0.01


class Noisy(nn.Module):
    """Dropout and batch norm, one part kept in evaluation mode by its owner."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout(0.5))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.body(x))


@pytest.mark.parametrize("threat", [FGSM(eps=0.1), PGD(eps=0.1, step_size=0.03, restarts=2)])
def test_model_is_left_as_it_was(batch, threat):
    model = Noisy()
    model.body[1].eval()
    model.head.weight.grad = torch.ones_like(model.head.weight)
    modes = [module.training for module in model.modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    images = batch[0].float()
    first = threat(model, images, batch[1])
    assert torch.equal(first, threat(model, images, batch[1]))  # no dropout in between
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(model.head.weight.grad, torch.ones_like(model.head.weight))
    assert all(p.grad is None for n, p in model.named_parameters() if n != "head.weight")
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert not first.requires_grad


def test_the_mode_comes_back_after_an_error(batch):
    model = Noisy()
    with pytest.raises(RuntimeError):
        FGSM()(model, batch[0], batch[1])  # float64 images, float32 weights
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_callers_without_gradients_are_served(model, batch, mode):
    expected = SMALL(model, *batch)
    with mode():
        found = SMALL(model, batch[0] * 1, batch[1] * 1)
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    "threat", [FGSM(), FGSM(eps=0.1), PGD(), PGD(eps=8 / 255, step_size=2 / 255, restarts=2)]
)
def test_repr_makes_the_threat_again(threat):
    assert eval(repr(threat)) == threat


def test_repr_is_short():
    assert repr(FGSM()) == "FGSM(eps=3/255)"
    assert repr(PGD()).startswith("PGD(eps=3/255, steps=20, step_size=0.375/255")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FGSM(eps=3), "did you mean 3/255"),
        (lambda: PGD(eps=8), "did you mean 8/255"),
        (lambda: FGSM(eps=-0.1), r"\[0, 1\]"),
        (lambda: FGSM(eps=float("nan")), r"\[0, 1\]"),
        (lambda: PGD(step_size=2), "step_size"),
        (lambda: PGD(steps=0), ">= 1, got 0"),
        (lambda: PGD(restarts=2, random_start=False), "random_start"),
    ],
)
def test_bad_budgets_are_refused(make, words):
    with pytest.raises(pf.InputError, match=words):
        make()


@pytest.mark.parametrize(
    ("text", "value"),
    [("3/255", 3 / 255), ("0.1", 0.1), ("1e-3", 1e-3), (" 0.15 / 255 ", 0.15 / 255), ("0", 0.0)],
)
def test_budgets_may_be_text(text, value):
    assert FGSM(eps=text) == FGSM(eps=value) and isinstance(FGSM(eps=text).eps, float)
    assert FGSM(eps=text).eps == value and eval(repr(FGSM(eps=text))) == FGSM(eps=value)


def test_every_budget_of_an_attack_may_be_text():
    assert PGD(eps="3/255", step_size="0.375/255") == PGD()
    assert SPSA(eps="0.1", delta="0.01", lr="1e-2") == SPSA()
    assert SLD(eps="10", step_size="1") == SLD()  # lengths: no pixels to ask about
    for kind in (APGD, FAB, Square, AutoAttack):
        assert kind(eps="3/255") == kind() and kind(eps="4", norm="L2").eps == 4.0
    assert Noise(eps="0.3") == Noise()


@pytest.mark.parametrize(
    "value", ["", "3/", "/255", "3/0", "1/2/3", "three", "3%", None, True, [1]]
)
def test_what_is_no_budget_is_refused(value):
    with pytest.raises(pf.InputError, match="3/255") as error:
        FGSM(eps=value)
    assert repr(value) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("value", ["8", "8.0", 8])
@pytest.mark.parametrize("kind", [FGSM, PGD, SPSA, Noise, APGD, FAB, Square, AutoAttack])
def test_budgets_above_1_are_asked_about(kind, value):
    with pytest.raises(pf.InputError, match="did you mean 8/255"):
        kind(eps=value)


def test_steps_that_cannot_reach_the_edge_are_called_weak():
    with pytest.warns(UserWarning, match="weak"):
        PGD(eps=8 / 255, step_size=0.15 / 255)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PGD(eps=8 / 255)
        PGD(step_size=0.15 / 255)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x, y: (x * 2 - 1, y), "PixelModel"),
        (lambda x, y: (x * 255, y), "PixelModel"),
        (lambda x, y: (x * torch.nan, y), "PixelModel"),
        (lambda x, y: ((x * 255).byte(), y), "divide"),
        (lambda x, y: (x.bfloat16(), y), "float32 or float64"),
        (lambda x, y: (x[0], y), r"\(B, C, H, W\)"),
        (lambda x, y: (x, y[:3]), "labels"),
        (lambda x, y: (x, y.double()), "int64"),
    ],
)
def test_what_is_no_picture_is_refused(model, batch, change, words):
    with pytest.raises(pf.InputError, match=words):
        FGSM()(model, *change(*batch))


def test_models_without_a_finite_gradient_are_refused(model, batch):
    with pytest.raises(pf.InputError, match="no gradient"):
        FGSM()(lambda x: model(x).detach(), *batch)
    with pytest.raises(pf.InputError, match="not finite"):
        FGSM()(lambda x: model(x) * torch.nan, *batch)


@pytest.mark.parametrize("attack", [FGSM(eps=8 / 255), PGD(eps=8 / 255, steps=3)])
def test_a_gradient_that_is_one_number_for_all_pixels_is_taken(attack):
    """As of a model of the mean brightness: autograd expands a single number."""
    images, labels = torch.full((2, 3, 4, 4), 0.5), torch.tensor([0, 1])

    def brightness(x):
        return (x.sum((1, 2, 3)) - 24)[:, None] * torch.tensor([1.0, -1.0])

    attacked = attack(brightness, images, labels)
    # class 0 is the bright one: its image is darkened, the other brightened
    assert (attacked[0] < 0.5).all() and (attacked[1] > 0.5).all()
