"""Transformers with a PID feedback controller in their attention.

`import pidformer` loads operator, layers and models, which puts the models into timm's registry.
The rest is loaded when it is first asked for: `pf.load`, `pf.analysis`, `pf.data`, ...
"""

import importlib
import importlib.util
import pkgutil
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pidformer import analysis, control, nn, robustness
    from pidformer.control import PIDController, PIDGains, PIDState
    from pidformer.convert import convert, revert
    from pidformer.errors import InputError
    from pidformer.models import PIDVisionTransformer, PixelModel
    from pidformer.nn import LearnedGains, PIDAttention, PIDBlock, scan_blocks
    from pidformer.ops import pid_attention
    from pidformer.runs.model import load

__version__ = "0.2.0"

__all__ = [
    "InputError",
    "LearnedGains",
    "PIDAttention",
    "PIDBlock",
    "PIDController",
    "PIDGains",
    "PIDState",
    "PIDVisionTransformer",
    "PixelModel",
    "__version__",
    "analysis",
    "control",
    "convert",
    "load",
    "nn",
    "pid_attention",
    "restore",
    "revert",
    "robustness",
    "save",
    "scan_blocks",
]
_HOMES = ("errors", "control", "ops", "nn", "models", "convert", "runs.model")
"""Where the names above are, each room after those that it imports."""
_LANGUAGE = {
    "PIDformerConfig": "models.causal_lm",
    "PIDformerForCausalLM": "models.causal_lm",
    "from_pretrained": "convert.hugging_face",
}
"""What needs transformers, which `import *` must not ask for."""


def __getattr__(name: str) -> Any:
    """Names from their modules, and modules, imported when they are asked for."""
    if name in _LANGUAGE:
        try:
            return getattr(_module(_LANGUAGE[name]), name)
        except ImportError as error:
            raise ImportError(
                f"pf.{name} needs transformers: pip install 'pidformer[lm]'"
            ) from error
    if not name.startswith("_") and importlib.util.find_spec(f"pidformer.{name}") is not None:
        return _module(name)
    for home in _HOMES if name in __all__ else ():
        if hasattr(_module(home), name):
            value = globals()[name] = getattr(_module(home), name)
            return value
    raise AttributeError(f"module 'pidformer' has no attribute {name!r}")


def __dir__() -> list[str]:
    rooms = (room.name for room in pkgutil.iter_modules(__path__) if room.name != "__main__")
    return sorted({*__all__, *_LANGUAGE, *rooms, "__doc__", "__file__", "__name__", "__path__"})


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"pidformer.{name}")


class _Package(ModuleType):
    """A function and a subpackage are called `convert`; `pf.convert` is the function."""

    @property
    def convert(self) -> Any:
        return _module("convert").convert

    @convert.setter
    def convert(self, _: ModuleType) -> None:
        """The import system binds a subpackage to its name: not here."""


def _is_command() -> bool:
    """Whether this is `pidformer ...` or `python -m pidformer ...`, whose help is to be quick."""
    word = "".join(sys.argv[:1])
    is_module = word == "-m" and ("-m", "pidformer") in pairwise(sys.orig_argv)
    return is_module or Path(word).stem == "pidformer"


sys.modules[__name__].__class__ = _Package
if not _is_command():
    _module("models")
elif "multiprocessing.spawn" not in sys.modules:  # a process of its own, not one of its workers
    _module("interrupts").handle()
