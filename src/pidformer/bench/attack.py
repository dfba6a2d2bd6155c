"""Attacks: ours against a minimal loop written out, and the libraries that are installed.

No random start, same budgets. The note of a row says how many images the model in float32 still
gets right afterwards: a faster search must not be a weaker one. On a GPU ours is measured as it
is, and with steps that were recorded in the calls before (`robustness.recorded`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pidformer.bench import model as models
from pidformer.bench.timing import GAINS, BenchSetting, Case, Timing, Workload, measure
from pidformer.robustness import FGSM, PGD
from pidformer.robustness.attack import Attack
from pidformer.robustness.queries import Precision
from pidformer.robustness.recording import Recorder, recorded

EPS = 3 / 255
OURS, PLAIN = "pidformer", "minimal loop"
IN_A_ROW = ", recorded"
Contender = Callable[[Tensor, Tensor], Tensor]
Runs = dict[str, Contender]


class AttackSize(NamedTuple):
    batch: int
    image: int = 224
    patch: int = 16
    steps: int = 20
    is_compiling: bool = False
    """Also the compiled model, for every library."""

    @property
    def step(self) -> float:
        """Long enough to reach the edge of the ball: 0.15/255 for 20 steps."""
        return EPS / self.steps


LARGE = AttackSize(64, steps=10)
SMALL = AttackSize(2, image=32, patch=8, steps=4)


def attack(setting: BenchSetting, size: AttackSize | None = None) -> Iterator[list[Timing]]:
    """FGSM and PGD of timm's DeiT-tiny with random weights, then PGD of the twins."""
    size = size or (LARGE if setting.is_gpu else SMALL)
    kind = models.ModelSize("tiny", size.batch, size.image, size.patch)
    network = models.deit(kind, setting, is_timm=True).eval()
    images = models.pixels(size.batch, size.image, setting)
    yield from compare_attacks(setting, size, network, images, predictions(network, images))
    for is_recorded in (False, True)[: 1 + setting.is_gpu]:
        yield _twins(setting, size, kind, images, is_recorded)


def compare_attacks(
    setting: BenchSetting,
    size: AttackSize,
    network: nn.Module,
    images: Tensor,
    labels: Tensor,
    name: str = "DeiT-tiny",
) -> Iterator[list[Timing]]:
    """FGSM and PGD, ours, a minimal loop and other libraries, on a model in evaluation mode."""
    for what, runs in _contenders(network, images, size).items():
        left: dict[str, int] = {}
        cases = [
            Case(
                label=label,
                make=partial(_judged, label, run, network, images, labels, left),
                is_optional=not label.startswith((OURS, PLAIN)),
            )
            for label, run in runs.items()
        ]
        group = _group(f"{name}, {what}", images)
        rows = measure(group, cases, setting)
        notes = {label: f"{count} of {len(images)} right" for label, count in left.items()}
        yield [replace(row, note=row.note or notes.get(row.label, "")) for row in rows]


def predictions(network: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return network(images).argmax(-1)


def minimal(network: nn.Module, step: float, steps: int, eps: float) -> Contender:
    """`steps` signed gradient steps inside the box of size `eps`, and nothing else."""

    def run(images: Tensor, labels: Tensor) -> Tensor:
        low, high = (images - eps).clamp(min=0), (images + eps).clamp(max=1)
        moved = images
        for _ in range(steps):
            moved = moved.detach().requires_grad_()
            loss = F.cross_entropy(network(moved), labels)
            (gradient,) = torch.autograd.grad(loss, moved)
            moved = (moved.detach() + step * gradient.sign()).clamp(low, high)
        return moved

    return run


def _twins(
    setting: BenchSetting,
    size: AttackSize,
    kind: models.ModelSize,
    images: Tensor,
    is_recorded: bool,
) -> list[Timing]:
    threat = PGD(eps=EPS, step_size=size.step, steps=size.steps, random_start=False)

    def make(gains: str | None) -> Callable[[], object]:
        network = models.deit(kind, setting, gains).eval()
        run = in_a_row(threat, network) if is_recorded else partial(threat, network)
        return partial(run, images, predictions(network, images))

    cases = [
        Case(label=models.TWIN, make=partial(make, None)),
        Case(label=models.PID, make=partial(make, GAINS)),
    ]
    what = f"DeiT-tiny, PGD-{size.steps} of the twins{IN_A_ROW * is_recorded}"
    return measure(_group(what, images), cases, setting)


def _group(what: str, images: Tensor) -> Workload:
    return Workload(
        section="attack",
        what=what,
        sizes={"batch": len(images), "image": images.shape[-1]},
        unit="images/s",
        amount=len(images),
    )


def _judged(
    label: str,
    run: Contender,
    network: nn.Module,
    images: Tensor,
    labels: Tensor,
    left: dict[str, int],
) -> Callable[[], object]:
    found = predictions(network, run(images, labels).detach())
    left[label] = int((found == labels).sum())
    return partial(run, images, labels)


def _contenders(network: nn.Module, images: Tensor, size: AttackSize) -> dict[str, Runs]:
    """Attack to name to what runs it."""
    found: dict[str, Runs] = {"FGSM": {}, f"PGD-{size.steps}": {}}
    networks: dict[str, Any] = {"": network}
    if size.is_compiling:
        networks[", compiled"] = torch.compile(network)
    for suffix, each in networks.items():
        plain: tuple[Runs, Runs] = (
            {PLAIN: minimal(each, EPS, 1, EPS)},
            {PLAIN: minimal(each, size.step, size.steps, EPS)},
        )
        ours = _ours(each, size, images.is_cuda)
        for made in (plain, ours, _others(each, size, images.device.type)):
            for runs, more in zip(found.values(), made, strict=True):
                runs |= {name + suffix: run for name, run in more.items()}
    return found


def _ours(network: nn.Module, size: AttackSize, is_cuda: bool) -> tuple[Runs, Runs]:
    """FGSM and PGD, PGD with early stop too, in each precision that is fast on the device."""
    pgd = PGD(eps=EPS, step_size=size.step, steps=size.steps, random_start=False)
    one: Runs = {}
    many: Runs = {}
    precisions: tuple[Precision, ...] = get_args(Precision) if is_cuda else ("float32",)
    for precision in precisions:
        name = OURS if precision == "float32" else f"{OURS}, {precision}"
        early = replace(pgd, precision=precision, early_stop=True)
        rows: list[tuple[Runs, str, Attack]] = [
            (one, name, FGSM(eps=EPS, precision=precision)),
            (many, name, replace(pgd, precision=precision)),
            (many, f"{name}, early stop", early),
        ]
        for runs, label, threat in rows:
            runs[label] = partial(threat, network)
            if is_cuda:
                runs[label + IN_A_ROW] = in_a_row(threat, network)
    return one, many


def in_a_row(threat: Attack, network: nn.Module) -> Contender:
    """The attack on batch after batch in a scope that records: recordings are kept."""
    recorder = Recorder()

    def run(images: Tensor, labels: Tensor) -> Tensor:
        with recorded(recorder):
            return threat(network, images, labels)

    return run


def _others(network: nn.Module, size: AttackSize, device: str) -> tuple[Runs, Runs]:
    """The same of the libraries that are installed."""
    one: Runs = {}
    many: Runs = {}
    if torchattacks := _installed("torchattacks"):
        one["torchattacks"] = torchattacks.FGSM(network, eps=EPS)
        many["torchattacks"] = torchattacks.PGD(
            network, eps=EPS, alpha=size.step, steps=size.steps, random_start=False
        )
    if foolbox := _installed("foolbox"):
        bounded = foolbox.PyTorchModel(network, bounds=(0, 1), device=device)
        first = foolbox.attacks.LinfFastGradientAttack(random_start=False)
        second = foolbox.attacks.LinfPGD(
            abs_stepsize=size.step, steps=size.steps, random_start=False
        )
        one["foolbox"] = lambda x, y: first.run(bounded, x, y, epsilon=EPS)
        many["foolbox"] = lambda x, y: second.run(bounded, x, y, epsilon=EPS)
    attacks = "cleverhans.torch.attacks"
    fgsm = _installed(f"{attacks}.fast_gradient_method")
    pgd = _installed(f"{attacks}.projected_gradient_descent")
    if fgsm and pgd:
        inside = {"norm": float("inf"), "clip_min": 0.0, "clip_max": 1.0, "sanity_checks": False}
        one["cleverhans"] = lambda x, y: fgsm.fast_gradient_method(network, x, EPS, y=y, **inside)
        many["cleverhans"] = lambda x, y: pgd.projected_gradient_descent(
            network, x, EPS, size.step, size.steps, y=y, rand_init=False, **inside
        )
    return one, many


def _installed(name: str) -> Any:
    """A library's module; None where it, or what it needs, is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
