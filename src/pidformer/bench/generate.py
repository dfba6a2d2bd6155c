"""Decoding of the language model: tokens per second with a cache, PID and its twin.

Eager is `generate` with a cache that grows. Compiled (on a GPU) is a greedy loop over one compiled
step and a cache of fixed size, in which nothing waits for the host.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pidformer.bench.model import PID, TWIN
from pidformer.bench.timing import BenchSetting, Case, Timing, Workload, measure

DECODING = "language model, decoding"


class DecodingSize(NamedTuple):
    batch: int
    steps: int
    prompt: int = 16
    words: int = 267735
    layers: int = 16


LARGE = (DecodingSize(1, 64), DecodingSize(64, 64))
SMALL = (DecodingSize(1, 8, words=1000, layers=8), DecodingSize(4, 8, words=1000, layers=8))


def generate(
    setting: BenchSetting, sizes: Sequence[DecodingSize] | None = None
) -> Iterator[list[Timing]]:
    """A group for each batch size and way, on the paper's model."""
    ways = {"eager": _decoder} | ({"compiled": _compiled_decoder} if setting.is_gpu else {})
    for size in sizes or (LARGE if setting.is_gpu else SMALL):
        for mode, make in ways.items():
            group = Workload(
                section="generate",
                what=DECODING,
                sizes=size._asdict(),
                mode=mode,  # type: ignore[arg-type]
                unit="tokens/s",
                amount=size.batch * size.steps,
            )
            cases = [
                Case(label=TWIN, make=partial(make, size, setting, None)),
                Case(label=PID, make=partial(make, size, setting, "lm")),
            ]
            yield measure(group, cases, setting)


class GreedyLoop:
    """Greedy decoding that never looks at the host: token and cache stay where they are."""

    def __init__(self, network: Any, batch: int, steps: int) -> None:
        from transformers import StaticCache  # extra `lm`

        self.network, self.steps = network, steps
        self.cache = StaticCache(config=network.config, max_cache_len=steps)
        self.token = torch.zeros(batch, 1, dtype=torch.int64, device=network.device)
        self.faster = torch.compile(
            self.step, mode="reduce-overhead", fullgraph=True, dynamic=False
        )
        with torch.no_grad():
            self.step(self.token)  # a cache takes its room when it is first used

    def step(self, token: Tensor) -> Tensor:
        """The next token (B, 1)."""
        out = self.network(token, past_key_values=self.cache, use_cache=True)
        found: Tensor = out.logits[:, -1].argmax(-1, keepdim=True)
        return found

    @torch.no_grad()
    def compiled(self) -> None:
        """All steps, from an empty cache, by `torch.compile`."""
        self.cache.reset()
        for _ in range(self.steps):
            self.token.copy_(self.faster(self.token))


def _compiled_decoder(
    size: DecodingSize, setting: BenchSetting, gains: str | None
) -> Callable[[], object]:
    if gains is None:
        torch.compiler.reset()  # it keeps few graphs of a function, and then stops compiling
    return GreedyLoop(_network(size, setting, gains), size.batch, size.steps).compiled


def _decoder(size: DecodingSize, setting: BenchSetting, gains: str | None) -> Callable[[], object]:
    network = _network(size, setting, gains)
    shape = (size.batch, size.prompt)
    prompt = torch.randint(0, min(size.words, 20000), shape, device=setting.device)
    options = {"max_new_tokens": size.steps, "min_new_tokens": size.steps, "do_sample": False}
    return lambda: network.generate(prompt, eos_token_id=None, pad_token_id=0, **options)


def _network(size: DecodingSize, setting: BenchSetting, gains: str | None) -> Any:
    from pidformer.models.causal_lm import PIDformerConfig, PIDformerForCausalLM  # extra `lm`

    torch.manual_seed(setting.seed)
    # Positions that count up, since those that count down keep no cache.
    config = PIDformerConfig.paper(
        size.words, gains=gains, position_order="ascending", num_hidden_layers=size.layers
    )
    with setting.device:
        return PIDformerForCausalLM(config).to(setting.device).eval()
