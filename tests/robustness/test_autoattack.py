"""Auto-PGD step by step."""

import math

import pytest
import torch
import torch.nn.functional as F

from pidformer.robustness import APGD
from pidformer.robustness.autoattack import _Path
from pidformer.robustness.balls import PIXELS, random_start
from pidformer.robustness.threat import Draws


def checkpoints(steps):
    """w_0 = 0, w_1, ... of the paper."""
    shares = [0.0, 0.22]
    while shares[-1] < 1:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 0.03, 0.06))
    return [math.ceil(round(share * steps, 9)) for share in shares if share < 1]


def algorithm_1(loss_of, x, start, attack):
    """The points that Croce & Hein's Algorithm 1 asks about for one image, as their code runs it:
    conditions 1 and 2 are asked at x_w, which the best point then takes the place of."""
    steps, eps, is_linf = attack.steps, attack.eps, attack.norm == "Linf"

    def project(z):
        change = z - x
        scale = 1 if is_linf else min(1.0, eps / max(float(change.norm()), 1e-12))
        return (x + (change.clamp(-eps, eps) if is_linf else change * scale)).clamp(0, 1)

    def ask(z):
        z = z.clone().requires_grad_()
        loss = loss_of(z)
        (gradient,) = torch.autograd.grad(loss, z)
        return loss.item(), gradient.sign() if is_linf else gradient / gradient.norm()

    marks, step, before = checkpoints(steps), 2 * eps, None
    points, losses, then = [start], [], (None, None)
    best, best_loss, best_way = start, -math.inf, None
    for k in range(steps + 1):
        here = points[-1]
        loss, way = ask(here)
        losses.append(loss)
        if loss > best_loss:
            best, best_loss, best_way = here, loss, way
        if k in marks[1:]:
            last = marks[marks.index(k) - 1]
            rises = sum(losses[i + 1] > losses[i] for i in range(last, k))
            is_stuck, then = then == (step, best_loss), (step, best_loss)
            if rises < attack.rho * (k - last) or is_stuck:
                step, here, way = step / 2, best, best_way
        ahead = project(here + step * way)
        if before is not None:
            ahead = project(here + 0.75 * (ahead - here) + 0.25 * (here - before))
        before = here
        points.append(ahead)
    return torch.stack(points[:-1])


def dlr(logits, label):
    high = logits.sort(descending=True).values
    others = logits[torch.arange(len(logits)) != label]
    return (others.max() - logits[label]) / (high[0] - high[2] + 1e-12)


@pytest.mark.parametrize("loss", ["ce", "dlr"])
@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.03), ("L2", 0.15)])
def test_apgd_walks_like_algorithm_1(model, data, norm, eps, loss):
    attack = APGD(eps=eps, norm=norm, loss=loss, steps=60)
    images, labels = data[0][1000:1020], data[1][1000:1020]
    right = model(attack(model, images, labels)).argmax(-1) == labels
    images, labels = images[right], labels[right]  # those that walk to the end
    asked = []

    def spy(x):
        if torch.is_grad_enabled():
            asked.append(x.detach())
        return model(x)

    attack(spy, images, labels)
    starts = random_start(images, eps, norm, PIXELS, Draws.of_batch(images, 0, 0).at(0))
    found = torch.stack(asked, 1)
    for row, (x, y, start) in enumerate(zip(images, labels, starts, strict=True)):

        def loss_of(z, y=y):
            logits = model(z[None])
            return F.cross_entropy(logits, y[None]) if loss == "ce" else dlr(logits[0], y)

        expected = algorithm_1(loss_of, x, start, attack)
        torch.testing.assert_close(found[row], expected, msg=lambda m, row=row: f"image {row}: {m}")


@pytest.mark.parametrize(
    ("steps", "rises", "is_halved"),
    [(22, 0, True), (22, 16, True), (22, 17, False), (22, 22, False), (16, 11, True),
     (16, 12, False)],
)  # fmt: skip
def test_a_step_is_halved_if_too_few_of_the_steps_raised_the_loss(steps, rises, is_halved):
    """Fewer than three quarters: 16.5 of 22, 12 of 16. The start is no step."""
    images, labels = torch.zeros(2, 1, 1, 1), torch.zeros(2, dtype=torch.long)
    path = _Path.begin(images, labels, None, images, 1.0)
    for k in range(steps + 1):  # down, and up again at the end; and a plateau, which rises nowhere
        path = path.judge(torch.tensor([abs(steps - rises - k), 1.0]), images)
    assert path.check(0.75 * steps).was_halved.tolist() == [is_halved, True]
