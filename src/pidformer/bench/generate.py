"""Decoding of the language model: tokens a second of `generate` with a cache, PID and its twin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch

from pidformer.bench.setting import Setting
from pidformer.bench.timing import Case, Group, Row, measure

TWIN, PID = "softmax twin", "PID"
DECODING = "language model, decoding"


class Size(NamedTuple):
    batch: int
    steps: int
    prompt: int = 16
    words: int = 267735
    layers: int = 16


LARGE = (Size(1, 64), Size(64, 64))
SMALL = (Size(1, 8, words=1000, layers=8), Size(4, 8, words=1000, layers=8))


def generate(setting: Setting, sizes: Sequence[Size] | None = None) -> Iterator[list[Row]]:
    """A group for each batch size, on the paper's model."""
    for size in sizes or (LARGE if setting.is_gpu else SMALL):
        group = Group(
            section="generate",
            what=DECODING,
            sizes=size._asdict(),
            unit="tokens/s",
            amount=size.batch * size.steps,
        )
        cases = [
            Case(label=TWIN, make=partial(_decoder, size, setting, None)),
            Case(label=PID, make=partial(_decoder, size, setting, "lm")),
        ]
        yield measure(group, cases, setting)


def _decoder(size: Size, setting: Setting, gains: str | None) -> Callable[[], object]:
    from pidformer.models.causal_lm import PIDformerConfig, PIDformerForCausalLM  # extra `lm`

    torch.manual_seed(setting.seed)
    # Positions that count up, since those that count down keep no cache.
    config = PIDformerConfig.paper(
        size.words, gains=gains, position_order="ascending", num_hidden_layers=size.layers
    )
    with setting.device:
        network = PIDformerForCausalLM(config).to(setting.device).eval()
    shape = (size.batch, size.prompt)
    prompt = torch.randint(0, min(size.words, 20000), shape, device=setting.device)
    options = {"max_new_tokens": size.steps, "min_new_tokens": size.steps, "do_sample": False}
    return lambda: network.generate(prompt, eos_token_id=None, pad_token_id=0, **options)
