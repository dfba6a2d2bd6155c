"""Models for other runtimes: ONNX, and programs of torch.export; checked before they are kept."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor, nn

from pidformer.checkpoint import load, read_model_info, read_recipe
from pidformer.errors import InputError, unknown
from pidformer.files import atomic_path

Format = Literal["onnx", "pt2"]
TOLERANCE = 1e-4
"""The largest difference of a logit from PyTorch's that is let through."""


class Exportable(NamedTuple):
    """A module of one tensor, an example of it, and the axes that may have any length."""

    module: nn.Module
    example: Tensor
    axes: dict[int, str]
    input_name: str
    words: int | None = None
    """Size of the vocabulary where tokens go in; None for images."""

    def draw(self, sizes: Sequence[int], seed: int) -> Tensor:
        """Random input with these lengths of the free axes."""
        shape = list(self.example.shape)
        for axis, size in zip(self.axes, sizes, strict=True):
            shape[axis] = size
        random = torch.Generator().manual_seed(seed)
        if self.words is None:
            return torch.rand(shape, generator=random)
        return torch.randint(self.words, shape, generator=random)


class Logits(nn.Module):
    """A language model as tokens (B, N) to logits (B, N, V), without a cache."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.model(input_ids, use_cache=False).logits


def export(
    source: str | Path | Exportable,
    out: str | Path,
    *,
    format: Format | None = None,
    gains: Any = None,
    ema: bool = False,
) -> dict[str, Any]:
    """Write a model for other runtimes; what was written, and its largest difference.

    `source` is a run folder, or one with a converted Hugging Face model. `format` is "onnx" or
    "pt2" (torch.export), by the suffix of `out` if it is not given. The batch, and for language
    the number of tokens, may have any length. Images go in as pixels in [0, 1]. The file is run
    on random input of other lengths (by ONNX Runtime, or loaded again by torch) and is kept only
    if its logits are within 1e-4 of the model's.
    """
    out = Path(out)
    chosen = format or out.suffix.removeprefix(".")
    if chosen not in get_args(Format):
        raise unknown("export format", chosen, get_args(Format))
    subject = source if isinstance(source, Exportable) else _open(Path(source), gains, ema)
    subject.module.eval().requires_grad_(False)
    runtime = _need("onnxruntime", "onnxscript") if chosen == "onnx" else None
    with atomic_path(out) as temporary:
        with _quiet():
            write = _write_onnx if chosen == "onnx" else _write_program
            facts = write(subject, temporary)
            run = _onnx_runner(runtime, temporary) if runtime else _program_runner(temporary)
        worst = _worst(subject, run)
        if not worst <= TOLERANCE:
            raise InputError(
                f"the exported logits are {worst:.2g} away from PyTorch's, more than {TOLERANCE:g};"
                " nothing was written"
            )
    axes = [subject.axes.get(axis, size) for axis, size in enumerate(subject.example.shape)]
    return {
        "file": str(out),
        "format": chosen,
        "input": {"name": subject.input_name, "shape": axes},
        "difference": worst,
        **facts,
    }


def image_model(module: nn.Module, channels: int, height: int, width: int) -> Exportable:
    """Images (B, channels, height, width) of one size, any number of them."""
    return Exportable(module, torch.rand(2, channels, height, width), {0: "batch"}, "images")


def language_model(model: nn.Module, words: int, length: int) -> Exportable:
    """Tokens (B, N), any number and length."""
    example = torch.zeros(2, max(2, min(length, 16)), dtype=torch.long)
    return Exportable(Logits(model), example, {0: "batch", 1: "tokens"}, "input_ids", words)


def _open(folder: Path, gains: Any, ema: bool) -> Exportable:
    if not (folder / "recipe.yaml").exists() and (folder / "config.json").exists():
        return _open_hugging_face(folder, gains, ema)
    recipe = read_recipe(folder)
    model = load(folder, gains=gains, ema=ema)
    build = read_model_info(folder)["build"]
    if recipe.get("task") == "language":
        return language_model(model, build["vocab_size"], build["length"])
    size = build["image_size"]
    return image_model(model, build["channels"], size, size)


def _open_hugging_face(folder: Path, gains: Any, ema: bool) -> Exportable:
    from pidformer.convert.language import from_pretrained  # needs the extra `lm`

    if gains is not None or ema:
        raise InputError(f"other gains and averaged weights are for run folders, not for {folder}")
    config = json.loads((folder / "config.json").read_text())
    if not any("CausalLM" in name or "LMHead" in name for name in config.get("architectures", [])):
        raise InputError(
            f"{folder} holds {config.get('architectures')}; of Hugging Face, causal language "
            "models are exported"
        )
    model = from_pretrained(folder)
    return language_model(model, model.config.vocab_size, model.config.max_position_embeddings)


def _dynamic(subject: Exportable) -> tuple[dict[int, Any], ...]:
    return ({axis: torch.export.Dim(name) for axis, name in subject.axes.items()},)


def _write_onnx(subject: Exportable, path: Path) -> dict[str, Any]:
    program = torch.onnx.export(
        subject.module,
        (subject.example,),
        dynamo=True,
        dynamic_shapes=_dynamic(subject),
        input_names=[subject.input_name],
        output_names=["logits"],
        verbose=False,
    )
    assert program is not None
    program.save(path, external_data=False)
    return {"opset": max(entry.version for entry in program.model_proto.opset_import)}


def _write_program(subject: Exportable, path: Path) -> dict[str, Any]:
    program = torch.export.export(
        subject.module, (subject.example,), dynamic_shapes=_dynamic(subject)
    )
    torch.export.save(program, path)
    return {"torch": torch.__version__}


def _onnx_runner(runtime: Any, path: Path) -> Any:
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: session.run(None, {name: x.numpy()})[0]


def _program_runner(path: Path) -> Any:
    module = torch.export.load(path).module()
    return lambda x: module(x).numpy()


@torch.no_grad()
def _worst(subject: Exportable, run: Any) -> float:
    """The largest difference over random inputs whose free axes have other lengths."""
    found = 0.0
    for seed, sizes in enumerate(((1, 5), (3, 11))):
        x = subject.draw(sizes[: len(subject.axes)], seed)
        found = max(found, float(np.abs(run(x) - subject.module(x).numpy()).max()))
    return found


def _need(*names: str) -> Any:
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            raise InputError(
                f"ONNX needs {', '.join(names)}: pip install 'pidformer[export]'"
            ) from None
    return importlib.import_module(names[0])


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporters say of their own affairs."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
