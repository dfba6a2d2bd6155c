"""Perplexity of a language model, by protocol; every number becomes a record of its run."""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch

from pidformer import ranks
from pidformer.data.text import PERTURBATIONS, Corpus, Perturbation, open_corpus, perturb
from pidformer.data.text.perturb import Disturbed
from pidformer.devices import as_device, tf32
from pidformer.errors import InputError, check_known
from pidformer.ledger import Found, Ledger
from pidformer.results import Record, as_text
from pidformer.runs.model import HUB, LanguageModel, load_text
from pidformer.runs.open import run_facts
from pidformer.runs.weights import Weights, fingerprint, gains_of
from pidformer.statistics import crossed_items
from pidformer.training.language import window_nll

Protocol = Literal["sliding", "strided", "segments", "documents"]
BLOCK = 1024
"""Targets in a block; intervals and paired comparisons take blocks as independent."""
MOST_BLOCKS = 512
LONGER = (512, 1024)
"""Windows that are longer than in training."""
SLIDING = "sliding"
"""Ends the rows in which a token sees no more of a window than the training length."""


@dataclass(frozen=True, kw_only=True)
class LanguageSetup:
    """A language run, or hf:FOLDER, and a text. Nothing is read before it is asked for."""

    run: Path
    data: str | Path
    device: torch.device
    split: str = "valid"
    limit: int | None = None
    """Tokens to take from the start of the text; None for all."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    batch_size: int | None = None
    """Windows at a time; None for what the device takes."""
    block: int | None = BLOCK
    """Targets, at least, in a block of which records keep the mean loss; None for a window's."""
    gains: Any = None
    weights: Weights = "auto"
    cache: str | Path | None = None
    folder: Path | None = None
    """Where the records go; None: to the run's folder, those of hf:FOLDER nowhere."""
    command: str | None = None

    @cached_property
    def loaded(self) -> LanguageModel:
        found = load_text(self.run, gains=self.gains, weights=self.weights)
        model, kind = found.model, type(found.model).__name__
        sees = [getattr(module, "is_causal", True) for module in model.modules()]
        if not kind.endswith(("ForCausalLM", "LMHeadModel")) or not all(sees):
            raise InputError(f"{self.run} holds a {kind}, which predicts no next token")
        model.to(self.device)
        return found

    @property
    def longer(self) -> tuple[int, ...]:
        """Windows of the robustness suite, for which a model of others may lack positions."""
        most = getattr(self.loaded.model.config, "max_position_embeddings", None)
        if most is None or not str(self.run).startswith(HUB):
            return LONGER
        return tuple(window for window in LONGER if window <= most)

    @property
    def can_slide(self) -> bool:
        return self.loaded.model.config.model_type == "pidformer"

    @cached_property
    def corpus(self) -> Corpus:
        return open_corpus(self.data, self.split, self.loaded.tokenizer, cache=self.cache)

    @cached_property
    def tokens(self) -> np.ndarray:
        if self.limit is not None and self.limit < 2:
            raise InputError(f"limit must be at least 2 tokens, got {self.limit}")
        found = self.corpus.tokens[: self.limit]
        if len(found) < 2:
            raise InputError(
                f"the {self.split} text at {self.data} has {len(found)} token(s); 2 are needed"
            )
        return found

    @cached_property
    def ledger(self) -> Ledger:
        model = self.loaded.model
        gains = getattr(model, "gains", None) or gains_of(model)
        settings = run_facts(self.run, fingerprint(model), gains) | {
            "data": str(self.data),
            "data_hash": self.corpus.fingerprint[:16],
            "split": self.split,
            "limit": self.limit,
            "precision": self.precision,
            "command": self.command,
        }
        own = self.run if self.run.is_dir() else None
        return Ledger("language", self.folder or own, settings)

    def measure(
        self,
        protocol: Protocol = "sliding",
        *,
        window: int | None = None,
        stride: int | None = None,
        noise: Perturbation | None = None,
        is_sliding: bool = False,
    ) -> Record:
        """The record of a row, which is measured if it is not there; see `evaluate_language`."""
        check_known("protocol", protocol, get_args(Protocol))
        if is_sliding and not self.can_slide:
            raise InputError(f"the attention of {self.run} is its own: sliding is for our models")
        length = self.loaded.length
        window = length if window is None else window
        step = _stride(protocol, window, stride)
        row = _row(protocol, self.split, window, length, noise)
        about = {
            "protocol": protocol,
            "window": window,
            "stride": step,
            "noise": as_text(noise),
            "row": f"{row}/{SLIDING}" if is_sliding else row,
        }
        with _seeing(self.loaded.model, length if is_sliding else None):
            return self.ledger.measure(about, lambda: self.scores(protocol, window, step, noise))

    def scores(
        self, protocol: Protocol, window: int, stride: int, noise: Perturbation | None = None
    ) -> Found:
        """Metrics and details of a row, measured now."""
        is_split = protocol == "documents"
        texts = _documents(self.corpus, self.tokens) if is_split else [self.tokens]
        tokenizer = self.loaded.tokenizer
        parts = [perturb(text, noise, tokenizer) for text in texts]
        with torch.inference_mode(), _precision(self.precision, self.device):
            if is_split:
                found = ranks.spread(parts, lambda part, _: self._losses(part, window, stride))
            else:
                found = [self._shared_losses(parts[0], window, stride)]
        nll, targets = np.concatenate(found), np.concatenate([targets for _, targets in parts])
        is_scored = ~np.isnan(nll)
        nll, targets = nll[is_scored], targets[is_scored]
        metrics = perplexities(nll, targets, tokenizer.unknown_id, self.corpus)
        size = _block(len(nll), self.block or window)
        details: dict[str, Any] = {"block": size, "block_nll": _blocks(nll, size).tolist()}
        if is_split:
            details["document_ppl"] = [_ppl(float(np.nanmean(d))) for d in found][:MOST_BLOCKS]
        return metrics, details

    def _shared_losses(self, text: Disturbed, window: int, stride: int) -> np.ndarray:
        """The losses of one text, whose windows the processes share; NaN where none has scored."""
        total = ranks.size()
        shares = ranks.spread(
            range(total), lambda rank, _: self._losses(text, window, stride, rank, total)
        )
        return reduce(lambda a, b: np.where(np.isnan(a), b, a), shares)

    def _losses(
        self, text: Disturbed, window: int, stride: int, rank: int = 0, world_size: int = 1
    ) -> np.ndarray:
        inputs, targets = (torch.from_numpy(part).to(self.device) for part in text)
        nll = window_nll(
            self.loaded.model,
            inputs,
            targets,
            window=window,
            stride=stride,
            batch_size=self.batch_size or _windows(window, stride, self.device),
            rank=rank,
            world_size=world_size,
        )
        return nll.cpu().numpy()


def evaluate_language(
    run: str | Path,
    *,
    data: str | Path,
    protocol: Protocol = "sliding",
    window: int | None = None,
    stride: int | None = None,
    noise: Perturbation | None = None,
    is_sliding: bool = False,
    device: str = "auto",
    **options: Any,
) -> dict[str, float]:
    """Perplexity of a run on the text at `data`; written to the run's results as "language".

    - "sliding", the paper's: windows of `window` tokens (the training length by default) moved by
      one; the first scores all its targets, each further one its last. n - 1 targets of n tokens.
    - "strided": moved by `stride` (half a window by default), each scoring its last `stride`.
    - "segments": windows side by side, each on its own: what training's validation does.
    - "documents": each document on its own, strided inside, its first token not scored.

    `noise` disturbs the context and leaves the targets, `window` beyond the training length tries
    longer contexts; with `is_sliding` a token sees no more of these than the training length
    (`sliding_window` in the model's configuration). `options` are those of `LanguageSetup`:
    `split`, `limit`, `precision`, `gains`, `weights`, ... What the run's results have is not
    measured again.
    """
    setup = LanguageSetup(run=Path(run), data=data, device=as_device(device), **options)
    found = setup.measure(
        protocol, window=window, stride=stride, noise=noise, is_sliding=is_sliding
    )
    return dict(found.metrics)


def evaluate_language_robustness(
    run: str | Path,
    *,
    data: str | Path,
    kinds: Sequence[str] = tuple(PERTURBATIONS),
    strengths: Sequence[int] = (1, 2, 3, 4, 5),
    windows: Sequence[int] = LONGER,
    seed: int = 0,
    protocol: Protocol = "strided",
    stride: int | None = None,
    device: str = "auto",
    **options: Any,
) -> dict[str, dict[str, float]]:
    """Perplexity under noise in the context at each strength, and at longer windows, for our models
    also with attention that slides over them.

    Strided by half a window; row "clean" is what the others compare with. `options` are those of
    `LanguageSetup`.
    """
    setup = LanguageSetup(run=Path(run), data=data, device=as_device(device), **options)
    rows = robustness_rows(kinds, strengths, windows, seed, can_slide=setup.can_slide)
    return {row: dict(setup.measure(protocol, stride=stride, **more).metrics) for row, more in rows}


def perplexities(
    nll: np.ndarray, targets: np.ndarray, unknown_id: int | None, corpus: Corpus
) -> dict[str, float]:
    """exp of the mean loss, with a 95 % interval (Student's t) over blocks of text.

    `ppl_known` leaves out targets that are `<unk>`, `unknown` is their share in per cent. Bits per
    character are those of a token over the characters of one in this text; with `<unk>` in it, the
    spelling of unknown words is not paid for.
    """
    mean = float(nll.mean())
    spread = crossed_items(_blocks(nll, _block(len(nll))))
    half = spread.high - spread.mean
    is_known = targets != unknown_id if unknown_id is not None else np.ones(len(targets), bool)
    return {
        "ppl": _ppl(mean),
        "ppl_low": _ppl(mean - half),
        "ppl_high": _ppl(mean + half),
        "loss": mean,
        "bits_per_character": mean / math.log(2) * len(corpus.tokens) / corpus.characters,
        "tokens": float(len(nll)),
        "ppl_known": _ppl(float(nll[is_known].mean())) if is_known.any() else math.nan,
        "unknown": 100 * float(1 - is_known.mean()),
    }


def robustness_rows(
    kinds: Sequence[str] = tuple(PERTURBATIONS),
    strengths: Sequence[int] = (1, 2, 3, 4, 5),
    windows: Sequence[int] = LONGER,
    seed: int = 0,
    can_slide: bool = True,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names of the rows, and what each changes."""
    yield "clean", {}
    for kind in kinds:
        for strength in strengths:
            noise = Perturbation(kind=kind, strength=strength, seed=seed)  # type: ignore[arg-type]
            yield f"{kind}/{strength}", {"noise": noise}
    for window in windows:
        yield f"window/{window}", {"window": window}
        if can_slide:
            yield f"window/{window}/{SLIDING}", {"window": window, "is_sliding": True}


def _row(protocol: str, split: str, window: int, length: int, noise: Perturbation | None) -> str:
    row = f"{protocol}/{split}"
    if noise is not None:
        row += f"/{noise.kind}/{noise.strength}"
    return row if window == length else f"{row}/window/{window}"


@contextmanager
def _seeing(model: Any, tokens: int | None) -> Iterator[None]:
    """A token sees so many tokens at most, or as few as in training; None: as the model has it."""
    if tokens is None:
        yield
        return
    before = model.config.sliding_window
    model.config.sliding_window = min(tokens, before or tokens)
    try:
        yield
    finally:
        model.config.sliding_window = before


def _documents(corpus: Corpus, tokens: np.ndarray) -> list[np.ndarray]:
    starts = [start for start in corpus.documents.tolist() if start < len(tokens)]
    ends = [*starts[1:], len(tokens)]
    parts = [tokens[a:b] for a, b in zip(starts, ends, strict=True) if b - a > 1]
    if not parts:
        raise InputError("no document of two tokens or more in this text")
    return parts


def _stride(protocol: str, window: int, stride: int | None) -> int:
    if window < 1:
        raise InputError(f"window must be >= 1, got {window}")
    fixed = {"sliding": 1, "segments": window}.get(protocol)
    if fixed is not None and stride not in (None, fixed):
        raise InputError(f"protocol {protocol} has a stride of {fixed}; use strided for {stride}")
    chosen = fixed or stride or max(1, window // 2)
    if not 1 <= chosen <= window:
        raise InputError(f"stride must be 1 to the window of {window}, got {chosen}")
    return chosen


def _windows(window: int, stride: int, device: torch.device) -> int:
    """Windows at a time: few enough tokens, and scored tokens, for the device."""
    tokens, scored = (2**17, 2**13) if device.type == "cuda" else (2**13, 2**11)
    return max(1, min(tokens // window, scored // stride))


def _blocks(nll: np.ndarray, size: int) -> np.ndarray:
    """Means over blocks of text; what is left over joins none unless it is all there is."""
    whole = len(nll) // size * size
    return nll[:whole].reshape(-1, size).mean(1) if whole else np.array([nll.mean()])


def _block(count: int, least: int = BLOCK) -> int:
    return max(least, math.ceil(count / MOST_BLOCKS))


def _ppl(loss: float) -> float:
    return math.exp(min(loss, 700.0)) if not math.isnan(loss) else math.nan


def _precision(name: str, device: torch.device) -> AbstractContextManager[Any]:
    if name == "fp32":
        return nullcontext()
    if name == "tf32":
        return tf32()
    if name == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    raise InputError(f"precision must be fp32, tf32 or bf16, got {name!r}")
