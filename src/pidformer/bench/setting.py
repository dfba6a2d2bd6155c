"""Where a benchmark runs and with which patience."""

import os
import platform
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch

from pidformer.errors import InputError

GAINS = "0.4,0.1,0.05"
"""The controller of every benchmark: all three terms act."""


@dataclass(frozen=True, kw_only=True)
class BenchSetting:
    """Device, rounds and seed; a GPU gets the sizes of models in use, a CPU small ones."""

    device: torch.device
    rounds: int = 7
    seed: int = 0
    say: Callable[[str], None] = lambda _: None
    """Told what is about to be measured."""

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise InputError(f"rounds must be at least 1, got {self.rounds}")

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """What operators and models compute in."""
        return torch.bfloat16 if self.is_gpu else torch.float32

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast("cuda", torch.bfloat16) if self.is_gpu else nullcontext()


def header(setting: BenchSetting) -> dict[str, Any]:
    """Device and versions that the numbers belong to."""
    versions = {"python": platform.python_version()}
    for name in ("pidformer", "torch", "timm", "triton", "transformers", "torchattacks"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    versions["torch"] = torch.__version__  # with what it was built for
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(setting.device) if setting.is_gpu else "CPU",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "rounds": setting.rounds,
        "seed": setting.seed,
        "dtype": name_of(setting.dtype),
        "versions": versions,
    }
    return found


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
