"""Language: sliding evaluation in batches against one target at a time, and decoding with a cache.

    python -m benchmarks.language [--only sliding|decode] [--device cuda] [--rows 1,16,64]
        [--modes eager,graph,compiled,static] [--steps 200] [--rounds 7] [--kernels 12]
        [--models novels,paper] [--batch 512,64]

On random tokens, the paper's model (16 layers of width 128, adaptive softmax over 267,735 words)
and, for sliding evaluation, that of the novels (10 layers of width 256, 19,989 words).

Sliding: windows of 256 in batches, only the last place projected, against the reference way, one
window at a time with the softmax at all 256 places; the naive time is of `--naive` targets and
scaled. The largest difference of a target's loss between the two ways stands beside it. On a GPU
the kernels that take most of a batch in TF32 stand below. Small batches may stay in a GPU's cache.

Decoding: the PID model and its softmax twin take turns after a warm-up; median of the rounds, and
the smallest and largest ratio of a round. Modes:

    eager     generate, a cache that grows
    static    generate, cache_implementation="static": Hugging Face compiles the step on a GPU
    graph     the eager step with a static cache in a CUDA graph, greedy, nothing on the host
    compiled  torch.compile(mode="reduce-overhead", fullgraph=True) of the same step
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from statistics import median
from typing import Any, TypeVar

import torch
import torch._dynamo
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.step import kernel_times, print_kernels
from pidformer.bench.generate import GreedyLoop
from pidformer.devices import tf32
from pidformer.models.causal_lm import PIDformerConfig, PIDformerForCausalLM
from pidformer.training.language import window_nll

T = TypeVar("T")
WINDOW = 256
PROMPT = 16
MODES = ("eager", "graph", "compiled", "static")
OURS = "our attention"
"""In TF32, which has to be asked for (PIDFORMER_TF32=1)."""
NOVELS = partial(
    PIDformerConfig,
    vocab_size=19989,
    hidden_size=256,
    num_hidden_layers=10,
    num_attention_heads=8,
    intermediate_size=768,
)
MODELS: dict[str, Callable[..., PIDformerConfig]] = {
    "novels": NOVELS,
    "paper": PIDformerConfig.paper,
}


def main() -> None:
    options = _options()
    device = torch.device(options.device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"Language models, {name}, torch {torch.__version__}, window {WINDOW}\n")
    if options.only != "decode":
        for label in options.models:
            _compare_sliding(label, device, options)
    if options.only != "sliding":
        _compare_decoding(device, options)


def _compare_sliding(label: str, device: torch.device, options: argparse.Namespace) -> None:
    model = _model(device, label, gains="lm")
    size = (options.tokens + WINDOW + 1,)
    tokens = torch.randint(0, model.config.vocab_size, size, device=device)
    few = tokens[: WINDOW + options.naive + 1]
    print(f"| sliding evaluation, {label} | precision | targets/s | naive | ratio | difference |")
    print("|---|---|---|---|---|---|")
    is_gpu = device.type == "cuda"
    ways = [("eager", name) for name in (("fp32", "tf32", "bf16") if is_gpu else ("fp32",))]
    if options.compile:
        # One function for all blocks: a graph for each kind of state, of batch, and the last block.
        torch._dynamo.config.recompile_limit = 64
        ways += [("compiled blocks", name) for _, name in ways if name != "bf16"]
    if is_gpu:
        ways.insert(2, (OURS, "tf32"))
    naive: dict[str, tuple[float, Tensor]] = {}
    kernels: dict[str, dict[str, tuple[int, float]]] = {}
    for (way, name), batch in itertools.product(ways, options.batch):
        with _precision(name, device):
            if name not in naive:  # before anything is compiled
                _naive(model, few[: WINDOW + 5])  # a warm-up
                naive[name] = _timed(lambda: _naive(model, few), device)
            if way == "compiled blocks":
                torch.compiler.reset()
                for block in model.model.layers:
                    block.compile(dynamic=False)
            # of whole batches, or what is left compiles as well
            count = WINDOW + options.tokens // batch * batch
            two, whole = tokens[: WINDOW + 2 * batch + 1], tokens[: count + 1]
            os.environ["PIDFORMER_TF32"] = str(int(way == OURS))
            _batched(model, two, batch)
            spent, nll = _timed(partial(_batched, model, whole, batch), device)
            if is_gpu and name == "tf32":
                with profile(activities=[ProfilerActivity.CUDA]) as seen:
                    _batched(model, two, batch)
                    torch.cuda.synchronize()
                kernels[f"{label}, {way}, batches of {batch}"] = kernel_times(seen)
        alone, expected = naive[name][0] / options.naive, naive[name][1]
        apart = float((nll[WINDOW : WINDOW + len(expected)] - expected).abs().max())
        fast = (count - WINDOW) / spent
        row = f"{name} | {fast:,.1f} | {1 / alone:,.1f} | {fast * alone:.1f} | {apart:.1e}"
        print(f"| {way}, batches of {batch} | {row} |", flush=True)
    print()
    for title, found in kernels.items():
        print(f"{title}; a step is a batch\n")
        print_kernels(found, 2, options.kernels)
        print()


def _precision(name: str, device: torch.device) -> AbstractContextManager[object]:
    if name == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return tf32() if name == "tf32" else nullcontext()


@torch.inference_mode()
def _batched(model: PIDformerForCausalLM, tokens: Tensor, batch: int) -> Tensor:
    return window_nll(model, tokens[:-1], tokens[1:], window=WINDOW, stride=1, batch_size=batch)


@torch.inference_mode()
def _naive(model: PIDformerForCausalLM, tokens: Tensor) -> Tensor:
    found = []
    for end in range(WINDOW + 1, len(tokens)):
        context = tokens[end - WINDOW : end]
        logits = model(context[None], use_cache=False).logits
        found.append(float(-logits[0].log_softmax(-1)[-1, tokens[end]]))  # at all places
    return torch.tensor(found, dtype=torch.float64, device=tokens.device)


def _compare_decoding(device: torch.device, options: argparse.Namespace) -> None:
    # Positions that count up, since those that count down keep no cache.
    up = {"position_order": "ascending"}
    twins = {"softmax": _model(device, **up), "PID": _model(device, gains="lm", **up)}
    print("| decoding | batch | softmax tokens/s | PID tokens/s | PID / softmax | rounds |")
    print("|---|---|---|---|---|---|")
    for mode in options.modes:
        for rows in options.rows:
            torch.compiler.reset()
            prompt = torch.randint(0, 20000, (rows, PROMPT), device=device)
            ways = {k: _way(mode, m, prompt, options.steps) for k, m in twins.items()}
            times: dict[str, list[float]] = {label: [] for label in twins}
            for turn in range(options.rounds + 1):
                for label, run in ways.items():
                    spent, _ = _timed(run, device)
                    if turn:  # the first compiles, captures, warms up
                        times[label].append(spent)
            speed = {k: rows * options.steps / median(t) for k, t in times.items()}
            each = [s / p for s, p in zip(times["softmax"], times["PID"], strict=True)]
            row = f"{speed['softmax']:,.0f} | {speed['PID']:,.0f} "
            row += f"| {speed['PID'] / speed['softmax']:.3f} | {min(each):.3f} to {max(each):.3f}"
            print(f"| {mode} | {rows} | {row} |", flush=True)


def _way(
    mode: str, model: PIDformerForCausalLM, prompt: Tensor, steps: int
) -> Callable[[], object]:
    if mode in ("eager", "static"):
        cache = {"cache_implementation": "static"} if mode == "static" else {}
        fixed = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        return lambda: model.generate(prompt, max_new_tokens=steps, **fixed, **cache)
    if mode == "graph":
        return _GraphLoop(model, len(prompt), steps).replayed
    return GreedyLoop(model, len(prompt), steps).compiled


class _GraphLoop(GreedyLoop):
    graph: torch.cuda.CUDAGraph | None = None

    @torch.no_grad()
    def replayed(self) -> None:
        """All steps, from an empty cache, by a CUDA graph of the eager step."""
        if self.graph is None:
            self._capture()
        assert self.graph is not None
        self.cache.reset()
        for _ in range(self.steps):
            self.graph.replay()

    def _capture(self) -> None:
        self.cache.reset()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.token.copy_(self.step(self.token))
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.token.copy_(self.step(self.token))


def _model(device: torch.device, name: str = "paper", **options: Any) -> PIDformerForCausalLM:
    torch.manual_seed(0)
    return PIDformerForCausalLM(MODELS[name](**options)).to(device).eval()


def _timed(run: Callable[[], T], device: torch.device) -> tuple[float, T]:
    if device.type == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    found = run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun, found


def _options() -> argparse.Namespace:
    has_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("sliding", "decode"))
    parser.add_argument("--device", default="cuda" if has_gpu else "cpu")
    parser.add_argument("--tokens", type=int, default=20000 if has_gpu else 320)
    parser.add_argument("--naive", type=int, default=200 if has_gpu else 6)
    parser.add_argument("--models", type=_models, default=list(MODELS), help=", ".join(MODELS))
    parser.add_argument("--batch", type=_numbers, default=[512, 64] if has_gpu else [16])
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=has_gpu,
        help="sliding evaluation with compiled blocks as well",
    )
    parser.add_argument("--kernels", type=int, default=12, help="rows of each table of kernels")
    parser.add_argument("--steps", type=int, default=200 if has_gpu else 16)
    parser.add_argument("--rows", type=_numbers, default=[1, 16, 64] if has_gpu else [1])
    parser.add_argument("--rounds", type=int, default=7 if has_gpu else 3)
    parser.add_argument(
        "--modes",
        type=lambda text: [_known(mode, MODES) for mode in text.split(",")],
        default=["eager", "graph", "compiled"] if has_gpu else ["eager"],
        help="of decoding, with commas: " + ", ".join(MODES),
    )
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _models(text: str) -> list[str]:
    return [_known(name, MODELS) for name in text.split(",")]


def _known(name: str, names: Iterable[str]) -> str:
    if name not in names:
        raise argparse.ArgumentTypeError(f"unknown {name!r}; known: {', '.join(names)}")
    return name


if __name__ == "__main__":
    main()
