"""Equality with the libraries of the field, where they are installed (the extra `oracle`)."""

import pytest
import torch

from pidformer.robustness import APGD, FAB, FGSM, PGD, SLD, SPSA, AutoAttack, Square
from pidformer.robustness import black_box as pyramids
from pidformer.robustness import black_box as square_module
from pidformer.robustness.threat import Draws, random_signs

CLOSE = {"atol": 1e-6, "rtol": 0}


@pytest.fixture(scope="module")
def network(model):
    """The trained model in float32: cleverhans knows no other."""
    import copy

    return copy.deepcopy(model).float().eval()


@pytest.fixture(scope="module")
def images(data):
    return data[0][1000:1100].float()


@pytest.fixture(scope="module")
def labels(data):
    return data[1][1000:1100]


def right(network, attacked, labels):
    with torch.no_grad():
        return int((network(attacked).argmax(-1) == labels).sum())


def foolbox_run(network, images, labels, attack, eps):
    foolbox = pytest.importorskip("foolbox", reason="needs pidformer[oracle]")
    wrapped = foolbox.PyTorchModel(network, bounds=(0, 1), device="cpu")
    return attack(foolbox.attacks).run(wrapped, images, labels, epsilon=eps)


def test_fgsm_equals_foolbox(network, images, labels):
    expected = foolbox_run(
        network, images, labels, lambda a: a.LinfFastGradientAttack(random_start=False), 0.1
    )
    torch.testing.assert_close(FGSM(eps=0.1)(network, images, labels), expected, **CLOSE)


def test_pgd_equals_foolbox(network, images, labels):
    expected = foolbox_run(
        network, images, labels,
        lambda a: a.LinfPGD(abs_stepsize=0.03, steps=10, random_start=False), 0.1,
    )  # fmt: skip
    threat = PGD(eps=0.1, step_size=0.03, steps=10, random_start=False)
    torch.testing.assert_close(threat(network, images, labels), expected, **CLOSE)


def test_fgsm_and_pgd_equal_torchattacks(network, images, labels):
    torchattacks = pytest.importorskip("torchattacks", reason="needs pidformer[oracle]")
    expected = torchattacks.FGSM(network, eps=0.1)(images, labels)
    torch.testing.assert_close(FGSM(eps=0.1)(network, images, labels), expected, **CLOSE)
    oracle = torchattacks.PGD(network, eps=0.1, alpha=0.03, steps=10, random_start=False)
    threat = PGD(eps=0.1, step_size=0.03, steps=10, random_start=False)
    torch.testing.assert_close(threat(network, images, labels), oracle(images, labels), **CLOSE)


def cleverhans(name):
    return pytest.importorskip(f"cleverhans.torch.attacks.{name}", reason="needs pidformer[oracle]")


def test_fgsm_and_pgd_equal_cleverhans(network, images, labels):
    fgm = cleverhans("fast_gradient_method").fast_gradient_method
    pgd = cleverhans("projected_gradient_descent").projected_gradient_descent
    inside = {"clip_min": 0.0, "clip_max": 1.0, "y": labels}
    expected = fgm(network, images, 0.1, float("inf"), **inside).detach()
    torch.testing.assert_close(FGSM(eps=0.1)(network, images, labels), expected, **CLOSE)
    expected = pgd(network, images, 0.1, 0.03, 10, float("inf"), rand_init=False, **inside)
    threat = PGD(eps=0.1, step_size=0.03, steps=10, random_start=False)
    torch.testing.assert_close(threat(network, images, labels), expected.detach(), **CLOSE)


@pytest.mark.parametrize(
    "threat", [SLD(), SLD(eps=3.0, step_size=0.5), SLD(eps=2.0, steps=15, sparsity=0.9)], ids=repr
)
def test_sld_equals_cleverhans(network, images, labels, threat):
    descent = cleverhans("sparse_l1_descent").sparse_l1_descent
    expected = descent(
        network, images, threat.eps, threat.step_size, threat.steps, y=labels,
        clip_min=0.0, clip_max=1.0, grad_sparsity=100 * threat.sparsity,
    )  # fmt: skip
    torch.testing.assert_close(threat(network, images, labels), expected, **CLOSE)


def test_spsa_in_compat_mode_equals_cleverhans_given_the_same_draws(
    network, images, labels, monkeypatch
):
    """Bug included: the only random numbers it draws are replaced by ours."""
    module = cleverhans("spsa")
    threat = SPSA(eps=0.1, steps=5, samples=6, compat="cleverhans")
    for row in range(6):
        draws = Draws.of_batch(images[:1], 0, row)
        numbers = [draws.at(0).uniform(1, 8, 8)]
        for step in range(1, threat.steps + 1):
            signs = random_signs(draws.at(step).keys(threat.samples), 64).view(-1, 1, 8, 8)
            numbers.append((signs + 1) / 2)
        queue = iter(numbers)
        monkeypatch.setattr(torch, "rand_like", lambda x, queue=queue: next(queue))
        one, label = images[row : row + 1], labels[row : row + 1]
        expected = module.spsa(
            network, one, 0.1, threat.steps, clip_min=0.0, clip_max=1.0, y=label, spsa_samples=6
        )
        found = threat(network, one, label, offset=row)
        # Adam divides by the size of the gradient, so rounding grows where that is nearly 0.
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_spsa_is_as_strong_as_torchattacks(network, images, labels):
    torchattacks = pytest.importorskip("torchattacks", reason="needs pidformer[oracle]")
    torch.manual_seed(0)
    oracle = torchattacks.SPSA(network, eps=0.1, delta=0.01, lr=0.02, nb_iter=15, nb_sample=64)
    theirs = right(network, oracle(images, labels), labels)
    threat = SPSA(eps=0.1, lr=0.02, steps=15, samples=64)
    ours = right(network, threat(network, images, labels), labels)
    assert abs(ours - theirs) <= 8 and ours < right(network, images, labels) - 20


@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.05), ("L2", 0.3)])
def test_apgd_is_as_strong_as_torchattacks(network, images, labels, norm, eps):
    torchattacks = pytest.importorskip("torchattacks", reason="needs pidformer[oracle]")
    theirs = torchattacks.APGD(network, norm=norm, eps=eps, steps=50)
    ours = APGD(norm=norm, eps=eps, steps=50)
    assert_as_strong(network, images, labels, ours, theirs)
    theirs = torchattacks.APGDT(network, norm=norm, eps=eps, steps=20, n_classes=10)
    ours = APGD(norm=norm, eps=eps, steps=20, loss="dlr", targets=9)
    assert_as_strong(network, images, labels, ours, theirs)


@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.05), ("L2", 0.3)])
def test_fab_is_as_strong_as_torchattacks(network, images, labels, norm, eps):
    torchattacks = pytest.importorskip("torchattacks", reason="needs pidformer[oracle]")
    theirs = torchattacks.FAB(
        network, norm=norm, eps=eps, steps=20, multi_targeted=True, n_classes=10
    )
    assert_as_strong(network, images, labels, FAB(norm=norm, eps=eps, steps=20), theirs)


@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.05), ("Linf", 0.1), ("L2", 0.3), ("L2", 0.6)])
def test_square_is_as_strong_as_torchattacks(network, images, labels, norm, eps, monkeypatch):
    torchattacks = pytest.importorskip("torchattacks", reason="needs pidformer[oracle]")
    theirs = torchattacks.Square(network, norm=norm, eps=eps, n_queries=400)
    ours = Square(norm=norm, eps=eps, queries=400)
    full = right(network, ours(network, images, labels), labels)
    # Its squares never reach the last row and column, which costs it strength on small images.
    reached = pyramids.window

    def short(uniform, side, height, width):
        scale = uniform.new_tensor([(n - side) / (n - side + 1) for n in (height, width)])
        return reached(uniform * scale, side, height, width)

    for module in (pyramids, square_module):
        monkeypatch.setattr(module, "window", short)
    assert_as_strong(network, images, labels, ours, theirs, slack=6)
    assert full <= right(network, ours(network, images, labels), labels)


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.06), ("L2", 0.35)])
def test_autoattack_is_as_strong_as_torchattacks(network, images, labels, norm, eps):
    """Theirs takes 10 steps where the standard, and ours, takes 100."""
    torchattacks = pytest.importorskip("torchattacks", reason="needs pidformer[oracle]")
    theirs = torchattacks.AutoAttack(network, norm=norm, eps=eps, seed=0)
    assert_as_strong(network, images, labels, AutoAttack(norm=norm, eps=eps), theirs)


@pytest.mark.parametrize("side", [1, 2, 3, 7, 8, 21])
def test_the_bumps_of_square_equal_torchattacks(network, side, monkeypatch):
    torchattacks = pytest.importorskip("torchattacks", reason="needs pidformer[oracle]")
    monkeypatch.setattr(torch, "rand", lambda shape: torch.zeros(shape))  # never turned
    expected = torchattacks.Square(network, norm="L2").eta(side)
    torch.testing.assert_close(pyramids.pair(side).float(), expected, **CLOSE)


def assert_as_strong(network, images, labels, ours, theirs, slack=2):
    expected = right(network, theirs(images, labels), labels)
    found = right(network, ours(network, images, labels), labels)
    print(f"{ours}: {found} right, torchattacks {expected}, clean {right(network, images, labels)}")
    assert 0 < found < right(network, images, labels) and abs(found - expected) <= slack
