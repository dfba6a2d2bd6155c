"""Perplexity of a language model, by protocol; every number becomes a record of its run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from pidformer import results
from pidformer.data.text import PERTURBATIONS, Corpus, Perturbation, open_corpus, perturb
from pidformer.devices import as_device, tf32
from pidformer.errors import InputError, unknown
from pidformer.runs.folder import read_recipe
from pidformer.runs.model import LanguageModel, load_language
from pidformer.runs.twins import recipe_hash
from pidformer.runs.weights import Weights, fingerprint
from pidformer.training.perplexity import window_nll

Protocol = Literal["sliding", "strided", "segments", "documents"]
BLOCK = 1024
"""Targets in a block; intervals and paired comparisons take blocks as independent."""
MOST_BLOCKS = 512


def evaluate_language(
    run: str | Path,
    *,
    data: str | Path,
    protocol: Protocol = "sliding",
    split: str = "valid",
    window: int | None = None,
    stride: int | None = None,
    noise: Perturbation | None = None,
    limit: int | None = None,
    device: str = "auto",
    precision: Literal["fp32", "tf32", "bf16"] = "fp32",
    batch_size: int | None = None,
    gains: Any = None,
    weights: Weights = "auto",
    cache: str | Path | None = None,
    command: str | None = None,
) -> dict[str, float]:
    """Perplexity of a run on the text at `data`; written to the run's results as "language".

    - "sliding", the paper's: windows of `window` tokens (the training length by default) moved by
      one; the first scores all its targets, each further one its last. n - 1 targets of n tokens.
    - "strided": moved by `stride` (half a window by default), each scoring its last `stride`.
    - "segments": windows side by side, each on its own: what training's validation does.
    - "documents": each document on its own, strided inside, its first token not scored.

    `noise` disturbs the context and leaves the targets, `window` beyond the training length tries
    longer contexts, `limit` takes the first so many tokens.
    """
    if protocol not in get_args(Protocol):
        raise unknown("protocol", protocol, get_args(Protocol))
    loaded = load_language(run, gains=gains, weights=weights)
    corpus = open_corpus(data, split, loaded.tokenizer, cache=cache)
    place = as_device(device)
    loaded.model.to(place)
    window = loaded.length if window is None else window
    step = _stride(protocol, window, stride)
    begun = time.perf_counter()
    check_tokens(limit)
    tokens = corpus.tokens[:limit]
    if len(tokens) < 2:
        raise InputError(f"the {split} text at {data} has {len(tokens)} token(s); 2 are needed")
    inner = _precision(precision, place)
    with torch.inference_mode(), inner:
        score = _scorer(loaded.model, window, step, batch_size or _windows(window, step, place))
        if protocol == "documents":
            parts = [(d, *perturb(d, noise, loaded.tokenizer)) for d in _documents(corpus, tokens)]
        else:
            parts = [(tokens, *perturb(tokens, noise, loaded.tokenizer))]
        found = [score(inputs, targets, place) for _, inputs, targets in parts]
    targets = np.concatenate([targets for _, _, targets in parts])
    nll = np.concatenate(found)
    is_scored = ~np.isnan(nll)
    nll, targets = nll[is_scored], targets[is_scored]
    metrics = perplexities(nll, targets, loaded.tokenizer.unknown_id, corpus)
    metrics["seconds"] = time.perf_counter() - begun
    details: dict[str, Any] = {"block": _block(len(nll)), "block_nll": _blocks(nll).tolist()}
    if protocol == "documents":
        details["document_ppl"] = [_ppl(float(np.nanmean(d))) for d in found][:MOST_BLOCKS]
    shape = {"window": window, "stride": step, "noise": repr(noise), "limit": limit}
    shape |= {"precision": precision, "row": _row(protocol, split, window, loaded.length, noise)}
    settings = _facts(Path(run), loaded, data, corpus, command) | {
        "protocol": protocol,
        "split": split,
        **shape,
    }
    results.append(
        run, results.Record(kind="language", metrics=metrics, settings=settings, details=details)
    )
    return metrics


def evaluate_language_robustness(
    run: str | Path,
    *,
    data: str | Path,
    split: str = "valid",
    kinds: Sequence[str] = tuple(PERTURBATIONS),
    strengths: Sequence[int] = (1, 2, 3, 4, 5),
    windows: Sequence[int] = (512, 1024),
    seed: int = 0,
    on_row: Callable[[str, dict[str, float]], None] = lambda row, metrics: None,
    **options: Any,
) -> dict[str, dict[str, float]]:
    """Perplexity under noise in the context at each strength, and at longer windows.

    Strided by half a window; row "clean" is what the others compare with. `options` are those of
    `evaluate_language`.
    """
    found: dict[str, dict[str, float]] = {}
    for row, changes in _rows(kinds, strengths, windows, seed):
        settings = {"protocol": "strided", **options, **changes}
        found[row] = evaluate_language(run, data=data, split=split, **settings)
        on_row(row, found[row])
    return found


def check_tokens(limit: int | None) -> None:
    """Refuse a number of tokens to score that leaves nothing to predict."""
    if limit is not None and limit < 2:
        raise InputError(f"limit must be at least 2 tokens, got {limit}")


def perplexities(
    nll: np.ndarray, targets: np.ndarray, unknown_id: int | None, corpus: Corpus
) -> dict[str, float]:
    """exp of the mean loss, with a 95 % interval over blocks of text.

    `ppl_known` leaves out targets that are `<unk>`, `unknown` is their share in per cent. Bits per
    character are those of a token over the characters of one in this text; with `<unk>` in it, the
    spelling of unknown words is not paid for.
    """
    mean = float(nll.mean())
    blocks = _blocks(nll)
    half = (
        1.96 * float(blocks.std(ddof=1)) / math.sqrt(len(blocks)) if len(blocks) > 1 else math.nan
    )
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


def _rows(
    kinds: Sequence[str], strengths: Sequence[int], windows: Sequence[int], seed: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "clean", {}
    for kind in kinds:
        for strength in strengths:
            noise = Perturbation(kind=kind, strength=strength, seed=seed)  # type: ignore[arg-type]
            yield f"{kind}/{strength}", {"noise": noise}
    for window in windows:
        yield f"window/{window}", {"window": window}


def _row(protocol: str, split: str, window: int, length: int, noise: Perturbation | None) -> str:
    row = f"{protocol}/{split}"
    if noise is not None:
        row += f"/{noise.kind}/{noise.strength}"
    return row if window == length else f"{row}/window/{window}"


def _scorer(
    model: nn.Module, window: int, stride: int, batch_size: int
) -> Callable[[np.ndarray, np.ndarray, torch.device], np.ndarray]:
    def score(inputs: np.ndarray, targets: np.ndarray, device: torch.device) -> np.ndarray:
        nll: Tensor = window_nll(
            model,
            torch.from_numpy(inputs).to(device),
            torch.from_numpy(targets).to(device),
            window=window,
            stride=stride,
            batch_size=batch_size,
        )
        return nll.cpu().numpy()

    return score


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
    """Windows at a time: so many tokens, and so many scored ones, as a device takes easily."""
    tokens, scored = (2**17, 2**13) if device.type == "cuda" else (2**13, 2**11)
    return max(1, min(tokens // window, scored // stride))


def _blocks(nll: np.ndarray) -> np.ndarray:
    """Means over blocks of text; what is left over joins none unless it is all there is."""
    size = _block(len(nll))
    whole = len(nll) // size * size
    return nll[:whole].reshape(-1, size).mean(1) if whole else np.array([nll.mean()])


def _block(count: int) -> int:
    return max(BLOCK, math.ceil(count / MOST_BLOCKS))


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


def _facts(
    run: Path, loaded: LanguageModel, data: str | Path, corpus: Corpus, command: str | None
) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "model": str(run),
        "label": run.resolve().name,
        "weights": fingerprint(loaded.model),
        "gains": None if loaded.model.gains is None else str(loaded.model.gains),
        "train_seed": None,
        "recipe": None,
        "data": str(data),
        "data_hash": corpus.fingerprint[:16],
        "machine": results.machine(),
        "command": command,
    }
    if (run / "recipe.yaml").exists():
        recipe = read_recipe(run)
        facts |= {"train_seed": recipe["seed"], "recipe": recipe_hash(recipe)}
    return facts
