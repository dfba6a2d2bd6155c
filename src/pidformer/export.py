"""Models for other runtimes: ONNX, and programs of torch.export; checked before they are kept."""

import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pidformer.errors import InputError, check_known
from pidformer.files import atomic_path
from pidformer.nn.depth import evaluating
from pidformer.runs.folder import read_model_info, read_recipe
from pidformer.runs.model import load

Format = Literal["onnx", "pt2"]
Run = Callable[..., list[Tensor]]
TOLERANCE = 1e-4
"""The largest difference of a logit from PyTorch's that is let through."""


@dataclass(frozen=True, kw_only=True)
class Exportable:
    """A module, an example of what it takes, and the axes that may have any length."""

    module: nn.Module
    example: Tensor
    axes: dict[int, str]
    input_name: str
    words: int | None = None
    """Size of the vocabulary where tokens go in; None for images."""
    past: tuple[Tensor, ...] = ()
    """Keys and values of earlier tokens, two tensors per layer; empty without a cache."""

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return (self.example, *self.past)

    def cache_names(self, prefix: str) -> list[str]:
        """The names that other exporters of Hugging Face models give keys and values."""
        layers = range(len(self.past) // 2)
        return [f"{prefix}.{layer}.{part}" for layer in layers for part in ("key", "value")]

    def dynamic_shapes(self) -> tuple[Any, ...]:
        """As torch.export wants them: the cache is the variable part of the arguments."""
        first = {axis: torch.export.Dim(name) for axis, name in self.axes.items()}
        if not self.past:
            return (first,)
        held = {0: first[0], 2: torch.export.Dim("past")}
        return (first, tuple(held for _ in self.past))

    def draw(self, sizes: Sequence[int], seed: int) -> Tensor:
        """Random input with these lengths of the free axes, which are the first."""
        shape = (*sizes, *self.example.shape[len(sizes) :])
        random = torch.Generator().manual_seed(seed)
        if self.words is None:
            return torch.rand(shape, generator=random)
        return torch.randint(self.words, shape, generator=random)


class Logits(nn.Module):
    """A language model as tokens (B, N) to logits (B, N, V), without a cache; nothing is padded."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> Tensor:
        options: dict[str, Any] = {"use_cache": False}
        if getattr(self.model.config, "position_order", None) == "descending":
            options["attention_mask"] = torch.ones_like(input_ids)  # says where its rows end
        return self.model(input_ids, **options).logits


class Step(Logits):
    """A language model behind P tokens: (B, N) to logits (B, N, V), and what to keep of P + N.

    `past` are keys and values (B, Hkv, P, D), two per layer; P may be 0. Nothing is padded.
    """

    def forward(self, input_ids: Tensor, *past: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        from transformers import DynamicCache

        cache = DynamicCache()
        for layer, (key, value) in enumerate(zip(past[::2], past[1::2], strict=True)):
            cache.update(key, value, layer)
        out = self.model(input_ids, past_key_values=cache, use_cache=True)
        kept = [part for layer in cache.layers for part in (layer.keys, layer.values)]
        return out.logits, *kept


def export(
    source: str | Path | Exportable,
    out: str | Path,
    *,
    format: Format | None = None,
    gains: Any = None,
    ema: bool = False,
    cache: bool = False,
) -> dict[str, Any]:
    """Write a model for other runtimes; what was written, and its largest difference.

    `source` is a run folder, or one with a converted Hugging Face model. `format` is "onnx" or
    "pt2" (torch.export), by the suffix of `out` if it is not given. The batch, and for language
    the number of tokens, may have any length. Images go in as pixels in [0, 1]. With `cache`, a
    language model takes and gives keys and values, so that texts grow token by token. The file is
    run on random input of other lengths (by ONNX Runtime, or loaded again by torch), in steps
    where there is a cache, and is kept only if its logits are within 1e-4 of the model's.
    """
    out = Path(out)
    chosen = format or out.suffix.removeprefix(".")
    check_known("export format", chosen, get_args(Format))
    subject = source if isinstance(source, Exportable) else _open(Path(source), gains, ema, cache)
    runtime = _onnx_runtime() if chosen == "onnx" else None
    with _at_rest(subject.module), atomic_path(out) as temporary:
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
    shape = [subject.axes.get(axis, size) for axis, size in enumerate(subject.example.shape)]
    return {
        "file": str(out),
        "format": chosen,
        "input": {"name": subject.input_name, "shape": shape},
        "cache": bool(subject.past),
        "difference": worst,
        **facts,
    }


def image_model(module: nn.Module, channels: int, height: int, width: int) -> Exportable:
    """Images (B, channels, height, width) of one size, any number of them."""
    example = torch.rand(2, channels, height, width)
    return Exportable(module=module, example=example, axes={0: "batch"}, input_name="images")


def language_model(model: Any, *, cache: bool = False) -> Exportable:
    """Tokens (B, N), any number and length; with a cache, behind any number of others."""
    length = max(2, min(model.config.max_position_embeddings // 2, 16))
    example = torch.zeros(2, length, dtype=torch.long)
    past: tuple[Tensor, ...] = ()
    if cache:  # an example of what it holds, one token more than goes in
        with torch.no_grad(), evaluating(model):
            past = Step(model)(F.pad(example, (0, 1)))[1:]
    return Exportable(
        module=Step(model) if cache else Logits(model),
        example=example,
        axes={0: "batch", 1: "tokens"},
        input_name="input_ids",
        words=model.config.vocab_size,
        past=past,
    )


def _open(folder: Path, gains: Any, ema: bool, cache: bool) -> Exportable:
    if not (folder / "recipe.yaml").exists() and (folder / "config.json").exists():
        return _open_hugging_face(folder, gains, ema, cache)
    is_language = read_recipe(folder).get("task") == "language"
    if cache and not is_language:
        raise InputError(f"{folder} takes images; a cache is for language models")
    model = load(folder, gains=gains, ema=ema)
    if is_language:
        return language_model(model, cache=cache)
    build = read_model_info(folder)["build"]
    size = build["image_size"]
    return image_model(model, build["channels"], size, size)


def _open_hugging_face(folder: Path, gains: Any, ema: bool, cache: bool) -> Exportable:
    from pidformer.convert.hugging_face import from_pretrained  # needs the extra `lm`
    from pidformer.models.language.folder import read_config

    if gains is not None or ema:
        raise InputError(f"other gains and averaged weights are for run folders, not for {folder}")
    name = read_config(folder)["architectures"][0]
    if "CausalLM" not in name and "LMHead" not in name:
        raise InputError(
            f"{folder} holds {name}; from Hugging Face, causal language models are exported"
        )
    return language_model(from_pretrained(folder), cache=cache)


def _write_onnx(subject: Exportable, path: Path) -> dict[str, Any]:
    program = torch.onnx.export(
        subject.module,
        subject.inputs,
        dynamo=True,
        dynamic_shapes=subject.dynamic_shapes(),
        input_names=[subject.input_name, *subject.cache_names("past_key_values")],
        output_names=["logits", *subject.cache_names("present")],
        verbose=False,
    )
    assert program is not None
    program.save(path, external_data=False)
    return {"opset": max(entry.version for entry in program.model_proto.opset_import)}


def _write_program(subject: Exportable, path: Path) -> dict[str, Any]:
    program = torch.export.export(
        subject.module, subject.inputs, dynamic_shapes=subject.dynamic_shapes()
    )
    held = io.BytesIO()  # on a full disk PyTorch's own writer of files ends the process
    torch.export.save(program, held)
    path.write_bytes(held.getbuffer())
    return {"torch": torch.__version__}


def _onnx_runner(runtime: Any, path: Path) -> Run:
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]

    def run(*inputs: Tensor) -> list[Tensor]:
        given = zip(names, (x.numpy() for x in inputs), strict=True)
        return [torch.from_numpy(out) for out in session.run(None, dict(given))]

    return run


def _program_runner(path: Path) -> Run:
    module = torch.export.load(path).module()

    def run(*inputs: Tensor) -> list[Tensor]:
        out = module(*inputs)
        return [out] if isinstance(out, Tensor) else list(out)

    return run


@torch.no_grad()
def _worst(subject: Exportable, run: Run) -> float:
    """The largest difference over random inputs whose free axes have other lengths."""
    found = 0.0
    for seed, sizes in enumerate(((1, 5), (3, 11))):
        x = subject.draw(sizes[: len(subject.axes)], seed)
        if subject.past:
            model: Any = subject.module.model
            wanted, logits = Logits(model)(x), in_steps(subject, run, x)
        else:
            wanted, logits = subject.module(x), run(x)[0]
        found = max(found, float((logits - wanted).abs().max()))
    return found


def in_steps(subject: Exportable, run: Run, tokens: Tensor) -> Tensor:
    """Logits (B, N, V) of a text that goes in as a prompt, single tokens, and a part."""
    past: list[Tensor] = [part[:1, :, :0].expand(len(tokens), -1, -1, -1) for part in subject.past]
    logits = []
    for part in tokens.split([2, 1, 1, tokens.shape[1] - 4], dim=1):
        out, *past = run(part, *past)
        logits.append(out)
    return torch.cat(logits, dim=1)


def _onnx_runtime() -> Any:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401, what torch's exporter needs
    except ImportError:
        raise InputError(
            "ONNX needs onnxruntime, onnxscript: pip install 'pidformer[export]'"
        ) from None
    return onnxruntime


@contextmanager
def _at_rest(module: nn.Module) -> Iterator[None]:
    """In evaluation mode and without gradients, and as it was again at the end."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    with evaluating(module):
        module.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in trained:
                parameter.requires_grad_(True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the messages of the exporters themselves."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
