"""Whole models: a training step and an inference of PID DeiT, its softmax twin and timm's DeiT."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pidformer.models  # noqa: F401  (registers them)
from pidformer import ops
from pidformer.bench.timing import GAINS, BenchSetting, Case, Timing, Workload, measure, name_of

TWIN, PID, TIMM = "softmax twin", "PID", "timm"
P, P_GAINS = "P", "0.4,0,0"
"""P control keeps no sum; measured where it costs most, in inference with CUDA graphs."""
SDPA_TWIN = "softmax twin, PyTorch's kernels"
TRAINING, INFERENCE = "training step", "inference"
Mode = Literal["eager", "compiled", "graphs"]
"""As it is; torch.compile; torch.compile(mode="reduce-overhead"): CUDA graphs."""


class ModelSize(NamedTuple):
    """A DeiT, its images, and what of it is measured."""

    name: str
    batch: int
    image: int = 224
    patch: int = 16
    mode: Mode = "eager"
    steps: tuple[str, ...] = (TRAINING, INFERENCE)
    with_timm: bool = True


LARGE = (
    ModelSize("tiny", 256, mode="graphs"),
    ModelSize("tiny", 256, mode="compiled", steps=(TRAINING,)),
    ModelSize("tiny", 256),
    ModelSize("small", 256, mode="compiled", steps=(TRAINING,), with_timm=False),
    ModelSize("base", 128, mode="compiled", steps=(TRAINING,), with_timm=False),
)
SMALL = (ModelSize("tiny", 2, image=64, patch=8),)


def model(
    setting: BenchSetting, sizes: Sequence[ModelSize] | None = None
) -> Iterator[list[Timing]]:
    """A group for each model and step."""
    for size in sizes or (LARGE if setting.is_gpu else SMALL):
        if size.mode != "eager":
            torch.compiler.reset()  # it keeps few graphs of a function, and then stops compiling
        builders = {TWIN: partial(deit, size, setting), PID: partial(deit, size, setting, GAINS)}
        if setting.is_gpu and ops.dispatch.selected() != "torch":
            builders[SDPA_TWIN] = builders[TWIN]
        if size.with_timm:
            builders[TIMM] = partial(deit, size, setting, is_timm=True)
        made: dict[str, nn.Module] = {}
        for step in size.steps:
            group = Workload(
                section="model",
                what=f"DeiT-{size.name}, {step}",
                sizes={"batch": size.batch, "image": size.image, "patch": size.patch},
                dtype=name_of(setting.dtype),
                mode=size.mode,
            )
            kinds = dict(builders)
            if (step, size.mode) == (INFERENCE, "graphs"):
                kinds[P] = partial(deit, size, setting, P_GAINS)
            cases = [
                Case(label=label, make=partial(_step, step, label, made, build, size, setting))
                for label, build in kinds.items()
            ]
            yield measure(group, cases, setting)


def deit(
    size: ModelSize,
    setting: BenchSetting,
    gains: str | None = None,
    *,
    is_timm: bool = False,
    **options: Any,
) -> nn.Module:
    """The DeiT of a size on the device: PID, its softmax twin, or timm's own."""
    torch.manual_seed(setting.seed)
    name = f"deit_{size.name}_patch16_224"
    sizes = {"img_size": size.image, "patch_size": size.patch, **options}
    with setting.device:
        built: nn.Module = (
            timm.create_model(name, **sizes)
            if is_timm
            else timm.create_model(f"pid_{name}", gains=gains, **sizes)
        )
    return built.to(setting.device)


def training_step(
    network: nn.Module, images: Tensor, setting: BenchSetting
) -> Callable[[], object]:
    """Forward, loss and backward; no optimiser. Gradients are dropped at the end."""
    labels = torch.zeros(len(images), dtype=torch.int64, device=images.device)

    def run() -> None:
        network.train()
        with setting.autocast():
            loss = F.cross_entropy(network(images).float(), labels)
        loss.backward()
        network.zero_grad(set_to_none=True)

    return run


def inference(network: nn.Module, images: Tensor, setting: BenchSetting) -> Callable[[], object]:
    def run() -> None:
        network.eval()
        with torch.no_grad(), setting.autocast():
            network(images)

    return run


def pixels(batch: int, image: int, setting: BenchSetting) -> Tensor:
    """Random images (B, 3, S, S)."""
    generator = torch.Generator(setting.device).manual_seed(setting.seed)
    return torch.rand(batch, 3, image, image, generator=generator, device=setting.device)


def _step(
    step: str,
    label: str,
    made: dict[str, nn.Module],
    build: Callable[[], nn.Module],
    size: ModelSize,
    setting: BenchSetting,
) -> Callable[[], object]:
    if label not in made:
        setting.say(f"DeiT-{size.name}, {step}, {label}, {size.mode}")
        made[label] = build()
        if size.mode != "eager":
            made[label].compile(mode="reduce-overhead" if size.mode == "graphs" else None)
    take = training_step if step == TRAINING else inference
    run = take(made[label], pixels(size.batch, size.image, setting), setting)

    def on_torch() -> object:
        with ops.kernels("torch"):
            return run()

    return on_torch if label == SDPA_TWIN else run
