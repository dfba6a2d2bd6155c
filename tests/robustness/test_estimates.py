"""The parts of attacks that can be checked by themselves."""

import math

import pytest
import torch

from pidformer.robustness import SPSA, Square
from pidformer.robustness.autoattack import _checkpoints
from pidformer.robustness.balls import (
    PIXELS,
    UNBOUNDED,
    length,
    onto_plane,
    random_start,
    steepest,
)
from pidformer.robustness.black_box import moved, pair, pyramid, tiled, window
from pidformer.robustness.threat import Draws, random_signs


def quadratic(x):
    """Two logits whose margin for label 0 is x' A x / 2, A diagonal."""
    weight = torch.linspace(-1, 2, x[0].numel(), dtype=x.dtype)
    value = (weight * x.flatten(1) ** 2).sum(1) / 2
    return torch.stack([torch.zeros_like(value), value], dim=1)


def test_the_estimate_converges_to_the_gradient_of_a_quadratic():
    x = torch.rand(3, 2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = torch.zeros(3, dtype=torch.long)
    truth = (torch.linspace(-1, 2, 18, dtype=x.dtype) * x.flatten(1)).view_as(x)
    draws = Draws.of_batch(x, 0, 0).at(1)
    errors = []
    for samples in (100, 1600, 25600):
        estimate = SPSA(samples=samples, chunk=4096).estimate(quadratic, x, labels, draws)
        errors.append(float((estimate - truth).norm() / truth.norm()))
    # One sample's error is about |g| sqrt(D - 1): central differences of a quadratic are exact.
    expected = [math.sqrt(17 / samples) for samples in (100, 1600, 25600)]
    assert all(0.5 < error / guess < 2 for error, guess in zip(errors, expected, strict=True))


def test_the_estimate_does_not_depend_on_the_chunk():
    x = torch.rand(5, 1, 4, 4, dtype=torch.float64)
    labels = torch.zeros(5, dtype=torch.long)
    draws = Draws.of_batch(x, 0, 0)
    one, two = (
        SPSA(samples=9, chunk=chunk).estimate(quadratic, x, labels, draws) for chunk in (2, 1000)
    )
    torch.testing.assert_close(one, two)


def test_a_sample_of_a_linear_margin_has_the_variance_of_the_other_slopes():
    """g_i + sum_{j != i} g_j v_i v_j: mean g_i, variance |g|^2 - g_i^2, for any delta and chunk."""
    g = torch.linspace(-1, 2, 12, dtype=torch.float64)
    x = torch.full((4000, 3, 2, 2), 0.5, dtype=torch.float64)
    labels = torch.zeros(len(x), dtype=torch.long)

    def linear(x):
        value = x.flatten(1) @ g
        return torch.stack([torch.zeros_like(value), value], dim=1)

    for samples, delta in ((1, 0.3), (5, 1e-3)):
        spsa = SPSA(samples=samples, delta=delta, chunk=1000)
        found = spsa.estimate(linear, x, labels, Draws.of_batch(x, 0, 0).at(1)).flatten(1)
        variance = (g.square().sum() - g.square()) / samples
        assert ((found.mean(0) - g) / (variance / len(x)).sqrt()).abs().max() < 4
        assert (found.var(0) / variance - 1).abs().max() < 0.15


def test_spsa_walks_like_torchs_adam_on_its_estimates(model, batch):
    images, labels = batch[0][:6], batch[1][:6]
    threat = SPSA(eps=0.1, steps=7, samples=6, lr=0.03)
    draws = Draws.of_batch(images, 2, 5)
    change = (0.1 * (2 * draws.at(0).uniform(1, 8, 8) - 1)).double().requires_grad_()
    adam = torch.optim.Adam([change], threat.lr)
    for step in range(1, threat.steps + 1):
        with torch.no_grad():
            change.copy_((images + change.clamp(-0.1, 0.1)).clamp(0, 1) - images)
            points = images + change
        change.grad = -threat.estimate(model, points, labels, draws.at(step))
        adam.step()
    expected = (images + change.detach().clamp(-0.1, 0.1)).clamp(0, 1)
    torch.testing.assert_close(threat(model, images, labels, seed=2, offset=5), expected)


def test_no_forward_is_larger_than_the_chunk(model, batch):
    sizes = []

    def spy(x):
        sizes.append(len(x))
        return model(x)

    SPSA(samples=10, steps=2, chunk=30)(spy, *batch)
    assert max(sizes) == 30 and sum(sizes) == 2 * 2 * 10 * len(batch[0])


def test_compat_mode_asks_about_twice_the_image(model, batch):
    images, labels = batch
    asked = []

    def spy(x):
        asked.append(x)
        return model(x)

    SPSA(samples=3, steps=1, chunk=10_000, compat="cleverhans")(spy, images, labels)
    ahead, behind = asked[0].chunk(2)
    torch.testing.assert_close((ahead + behind) / 2, 2 * images.repeat_interleave(3, dim=0))


def test_signs_are_fair_and_independent():
    signs = random_signs(Draws.of_batch(torch.zeros(50, 1), 0, 0).at(1).keys(8), 1000)
    assert signs.shape == (400, 1000) and set(signs.unique().tolist()) == {-1.0, 1.0}
    assert abs(float(signs.mean())) < 0.01
    assert (torch.corrcoef(signs) - torch.eye(400)).abs().max() < 6 / 1000**0.5
    assert (torch.corrcoef(signs.T) - torch.eye(1000)).abs().max() < 6 / 400**0.5


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_onto_plane_is_the_shortest_step_in_the_box(norm):
    from scipy.optimize import linprog, minimize

    generator = torch.Generator().manual_seed(1)
    x = torch.rand(12, 6, dtype=torch.float64, generator=generator)
    normal = torch.randn(12, 6, dtype=torch.float64, generator=generator)
    normal[3, 2] = 0
    goal = torch.rand(12, 6, dtype=torch.float64, generator=generator)  # a point of the box
    goal[6:] = 0.02 * x[6:] + 0.98 * (normal[6:] > 0)  # nearly as far as the box allows
    offset = (normal * goal).sum(1)
    step = onto_plane(x, normal, offset, norm, PIXELS)
    torch.testing.assert_close((normal * (x + step)).sum(1), offset)
    assert (x + step).min() >= -1e-12 and (x + step).max() <= 1 + 1e-12
    for row in range(len(x)):
        a, w, d = x[row].numpy(), normal[row].numpy(), step[row].numpy()
        box = [(-v, 1 - v) for v in a]
        gap = float(offset[row] - w @ a)
        if norm == "Linf":  # minimise t with -t <= d_i <= t
            rows = [[s * (i == j) for j in range(6)] + [-1] for i in range(6) for s in (1, -1)]
            best = linprog([0] * 6 + [1], rows, [0] * 12, [[*w, 0]], [gap], [*box, (0, None)]).fun
            assert abs(abs(d).max() - best) < 1e-9
        else:
            best = minimize(
                lambda d: d @ d, d * 0, jac=lambda d: 2 * d, bounds=box, method="SLSQP",
                constraints={"type": "eq", "fun": lambda d, w=w, gap=gap: w @ d - gap},
                options={"ftol": 1e-14},
            )  # fmt: skip
            assert d @ d <= best.fun + 1e-7


@pytest.mark.parametrize("bounds", [PIXELS, UNBOUNDED])
@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_directions_and_steps_do_not_know_the_scale_of_the_gradient(norm, bounds):
    """The cross entropy of a model that is sure has gradients of 1e-13 and less."""
    generator = torch.Generator().manual_seed(2)
    x, normal = (torch.rand(8, 1, 4, 4, generator=generator) for _ in range(2))
    normal = normal - 0.5
    offset = (normal * torch.rand(x.shape, generator=generator)).sum((1, 2, 3))
    flat, way = normal.flatten(1), steepest(normal, norm)
    step = onto_plane(x.flatten(1), flat, offset, norm, bounds)
    torch.testing.assert_close(length(way, norm), torch.ones(8, 1, 1, 1))
    for scale in (1e-6, 1e-13, 1e-18):
        torch.testing.assert_close(steepest(scale * normal, norm), way)
    for scale in (1e-6, 1e-9):
        found = onto_plane(x.flatten(1), scale * flat, scale * offset, norm, bounds)
        torch.testing.assert_close(found, step, rtol=1e-4, atol=1e-5)
    nothing = torch.zeros_like(normal)
    assert torch.equal(steepest(nothing, norm), nothing)
    assert not onto_plane(x.flatten(1), nothing.flatten(1), offset, norm, bounds).any()


def test_the_random_start_lies_on_the_edge_of_the_ball_in_any_direction():
    images = torch.full((300, 1, 8, 8), 0.5, dtype=torch.float64)
    for norm in ("Linf", "L2"):
        draws = Draws.of_batch(images, 0, 0)
        change = (random_start(images, 0.1, norm, PIXELS, draws) - images).flatten(1)
        torch.testing.assert_close(
            length(change.view_as(images), norm).flatten(), torch.full((300,), 0.1).double()
        )
        assert change.mean(0).abs().max() < 5 * float(change.std()) / 300**0.5
        shape = (change.pow(4).mean() / change.pow(2).mean() ** 2).item()
        assert shape == pytest.approx({"Linf": 1.8, "L2": 3.0}[norm], rel=0.05)  # of a box, a bell


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_onto_plane_without_a_box_and_out_of_reach(norm):
    x, normal = torch.rand(4, 5).double(), torch.randn(4, 5).double() / 100
    offset = (normal * x).sum(1) + torch.tensor([3.0, -3.0, 100.0, 0.0])
    step = onto_plane(x, normal, offset, norm, UNBOUNDED)
    torch.testing.assert_close((normal * (x + step)).sum(1), offset)
    dual = normal.norm(1 if norm == "Linf" else 2, dim=1)
    length = step.norm(float("inf") if norm == "Linf" else 2, dim=1)
    torch.testing.assert_close(length, ((offset - (normal * x).sum(1)) / dual).abs())
    far = x + onto_plane(x, normal, torch.full((4,), 1e3).double(), norm, PIXELS)
    torch.testing.assert_close(far, (normal > 0).double())


def test_checkpoints_are_those_of_the_paper():
    assert sorted(_checkpoints(100)) == [22, 41, 57, 70, 80, 87, 93, 99]


def test_squares_shrink_as_the_paper_says():
    square = Square(queries=10_000, p_init=0.8)
    sides = [square.side(q, 100, 100) for q in (0, 10, 11, 51, 201, 501, 1001, 8001, 9999)]
    areas = [0.8, 0.8, 0.4, 0.2, 0.1, 0.05, 0.025, 0.8 / 512, 0.8 / 512]
    assert sides == [round(math.sqrt(area * 10_000)) for area in areas]
    half = Square(queries=5000, p_init=0.8)
    for q in (0, 12, 202):
        assert half.side(q // 2, 100, 100) == square.side(q, 100, 100)


def test_squares_in_the_l2_ball_are_odd_and_fit():
    square = Square(queries=10_000, norm="L2")
    sides = [square.side(q, 100, 100) for q in (0, 11, 201, 8001)]
    assert sides == [89, 63, 33, 5]  # sqrt(0.8) 100 = 89.4, 63.2, 31.6 -> 32, 3.95 -> 4
    assert square.side(9999, 8, 8) == 3 and square.side(9999, 2, 2) == 2
    assert Square(norm="L2", p_init=1.0).side(0, 8, 8) == 8


def test_a_pyramid_is_a_sum_of_centred_squares():
    for rows, columns in [(1, 1), (1, 3), (2, 5), (3, 7), (4, 4)]:
        expected = torch.zeros(rows, columns, dtype=torch.float64)
        for k in range(max(rows, columns) // 2 + 1):
            for i in range(rows):
                for j in range(columns):
                    if abs(i - rows // 2) <= k and abs(j - columns // 2) <= k:
                        expected[i, j] += 1 / (k + 1) ** 2
        torch.testing.assert_close(pyramid(rows, columns), expected)


@pytest.mark.parametrize("side", [1, 2, 3, 5, 6])
def test_a_pair_of_bumps_has_length_1_and_two_signs(side):
    both = pair(side)
    assert both.shape == (side, side) and abs(float(both.norm()) - 1) < 1e-12
    assert (both[: side // 2] > 0).all() and (both[side // 2 :] < 0).all()


def test_windows_reach_every_place():
    uniform = torch.cartesian_prod(torch.linspace(0.01, 1, 30), torch.linspace(0.01, 1, 30))
    inside, _, _ = window(uniform, 3, 5, 7)
    assert (inside.sum((1, 2, 3)) == 9).all()
    corners = {tuple(found[0].nonzero()[0].tolist()) for found in inside}
    assert corners == {(i, j) for i in range(3) for j in range(5)}


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 32, 32), (2, 11, 16), (1, 3, 3)])
def test_the_grid_of_bumps_has_length_1_and_its_own_signs(shape):
    images = torch.rand(6, *shape, dtype=torch.float64)
    change = tiled(images, Draws.of_batch(images, 0, 0))
    torch.testing.assert_close(change.flatten(1).norm(dim=1), torch.ones(6).double())
    assert not torch.equal(change[0], change[1])
    side = max(min(shape[1:]) // 5, 1)
    top, left = (size % side // 2 for size in shape[1:])
    tile = change[0, 0, top : top + side, left : left + side]
    tile = tile / tile.norm()
    options = [s * p for s in (1, -1) for p in (pair(side), pair(side).T)]
    assert min(float((tile - option).norm()) for option in options) < 1e-12


def test_mass_moves_as_the_paper_says():
    """Algorithm 3 of Andriushchenko et al. 2020, one image and one channel at a time."""
    generator = torch.Generator().manual_seed(0)
    eps, side, size, channels = 1.5, 3, 7, 2
    change = torch.randn(40, channels, size, size, dtype=torch.float64, generator=generator)
    change *= 1.2 / change.flatten(1).norm(dim=1)[:, None, None, None]
    change[0] = 0
    numbers = torch.rand(40, 5 + channels, generator=generator)
    found = moved(change, numbers, side, eps)
    for row in range(40):
        u = numbers[row].tolist()
        a, b, c, d = (min(int(v * (size - side + 1)), size - side) for v in u[:4])
        bumps = pair(side).T if u[4] > 0.5 else pair(side)
        unused = eps**2 - float(change[row].square().sum())
        expected = change[row].clone()
        for i in range(channels):
            both = torch.zeros(size, size, dtype=torch.bool)
            both[a : a + side, b : b + side] = both[c : c + side, d : d + side] = True
            length = math.sqrt(float((change[row, i] ** 2)[both].sum()) + unused / channels)
            old = change[row, i, a : a + side, b : b + side]
            new = (1 if u[5 + i] > 0.5 else -1) * bumps + old / max(float(old.norm()), 1e-12)
            expected[i, c : c + side, d : d + side] = 0
            expected[i, a : a + side, b : b + side] = new / new.norm() * length
        torch.testing.assert_close(found[row], expected)  # already of length eps
        assert abs(float(found[row].norm()) - eps) < 1e-9
