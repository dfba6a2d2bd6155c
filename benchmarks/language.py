"""Language: sliding evaluation in batches against one target at a time, and decoding with a cache.

    python -m benchmarks.language [--device cuda] [--tokens 20000] [--naive 200] [--steps 200]

The paper's model (16 layers of width 128, adaptive softmax over 267,735 words) on random tokens.
Sliding: windows of 256 in batches, only the last place projected, against the reference way, one
window at a time with the softmax at all 256 places; the naive time is of `--naive` targets and
scaled. Decoding: the PID model and its softmax twin take turns, median of the rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from statistics import median

import torch
from torch import Tensor

from pidformer.devices import tf32
from pidformer.models.causal_lm import PIDformerConfig, PIDformerForCausalLM
from pidformer.training.perplexity import window_nll

WINDOW = 256


def main() -> None:
    options = _options()
    device = torch.device(options.device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"Paper's language model, {name}, window {WINDOW}\n")
    torch.manual_seed(0)
    model = _model(device, gains="lm")
    tokens = torch.randint(0, model.config.vocab_size, (options.tokens + 1,), device=device)
    few = tokens[: WINDOW + options.naive + 1]
    _naive(model, few[: WINDOW + 5])  # a warm-up
    print("| sliding evaluation | precision | targets/s | one window at a time | ratio |")
    print("|---|---|---|---|---|")
    for name in ("fp32", "tf32", "bf16") if device.type == "cuda" else ("fp32",):
        with _precision(name, device):
            naive = _seconds(lambda: _naive(model, few), device) / options.naive
            _batched(model, tokens[: WINDOW + 2 * options.batch], options.batch)
            spent = _seconds(lambda: _batched(model, tokens, options.batch), device)
        batched = spent / options.tokens
        row = f"{name} | {1 / batched:,.1f} | {1 / naive:,.1f} | {naive / batched:.0f}"
        print(f"| batches of {options.batch} | {row} |", flush=True)
    print()
    print("| decoding, cache | batch | tokens/s | PID / softmax |\n|---|---|---|---|")
    for cache in ("dynamic", "static") if options.static else ("dynamic",):
        _compare_decoding(device, options, cache)


def _precision(name: str, device: torch.device) -> AbstractContextManager[object]:
    if name == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return tf32() if name == "tf32" else nullcontext()


def _compare_decoding(device: torch.device, options: argparse.Namespace, cache: str) -> None:
    # Positions that count up, since those that count down keep no cache.
    up = {"position_order": "ascending"}
    twins = {
        "softmax": _model(device, **up),
        "PID": _model(device, gains="lm", **up),
    }
    prompt = torch.randint(0, 20000, (options.rows, 16), device=device)
    times: dict[str, list[float]] = {label: [] for label in twins}
    for turn in range(options.rounds + 1):
        for label, model in twins.items():
            spent = _seconds(lambda m=model: _decode(m, prompt, options.steps, cache), device)
            if turn:
                times[label].append(spent)
    speed = {label: options.rows * options.steps / median(t) for label, t in times.items()}
    for label, found in speed.items():
        ratio = found / speed["softmax"]
        print(f"| {label}, {cache} | {options.rows} | {found:,.0f} | {ratio:.3f} |", flush=True)


def _model(device: torch.device, **options: object) -> PIDformerForCausalLM:
    return PIDformerForCausalLM(PIDformerConfig.paper(**options)).to(device).eval()


@torch.inference_mode()
def _batched(model: PIDformerForCausalLM, tokens: Tensor, batch: int) -> None:
    window_nll(model, tokens[:-1], tokens[1:], window=WINDOW, stride=1, batch_size=batch)


@torch.inference_mode()
def _naive(model: PIDformerForCausalLM, tokens: Tensor) -> None:
    for end in range(WINDOW + 1, len(tokens)):
        context = tokens[end - WINDOW : end]
        logits = model(context[None], use_cache=False).logits
        float(-logits[0, -1, tokens[end]])


def _decode(model: PIDformerForCausalLM, prompt: Tensor, steps: int, cache: str) -> None:
    options = {"cache_implementation": "static"} if cache == "static" else {}
    model.generate(
        prompt, max_new_tokens=steps, do_sample=False, eos_token_id=None, pad_token_id=0, **options
    )


def _seconds(run: Callable[[], None], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def _options() -> argparse.Namespace:
    has_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if has_gpu else "cpu")
    parser.add_argument("--tokens", type=int, default=20000 if has_gpu else 320)
    parser.add_argument("--naive", type=int, default=200 if has_gpu else 6)
    parser.add_argument("--batch", type=int, default=512 if has_gpu else 16)
    parser.add_argument("--steps", type=int, default=200 if has_gpu else 16)
    parser.add_argument("--rows", type=int, default=16 if has_gpu else 1)
    parser.add_argument("--rounds", type=int, default=7 if has_gpu else 3)
    parser.add_argument(
        "--static",
        action=argparse.BooleanOptionalAction,
        default=has_gpu,
        help="also the static cache, whose steps Hugging Face compiles on a GPU",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
