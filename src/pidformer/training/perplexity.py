"""The loss of each token of a text, in windows that overlap as little or as much as asked."""
# n tokens to predict, B windows, W window, S stride

import torch
from torch import Tensor, nn


def window_nll(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    window: int,
    stride: int,
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
) -> Tensor:
    """-log p(target) of each of n targets, float64 (n,); NaN where the target is -100, and
    infinite where the model gives no number.

    Windows of W inputs begin at 0, S, 2S, ...; the first scores all its targets, each further one
    its last S, so every target is scored once, with W - S to W - 1 tokens before its own input.
    S = 1 is the sliding window of the paper, S = W gives independent segments. What is left at the
    end is scored by the window that ends there; of segments, by a shorter one.

    Windows go through the model `batch_size` at a time, and only scored places are projected.
    Process `rank` of `world_size` does its share; the others' places are NaN.
    """
    count = len(inputs)
    found = torch.full((count,), torch.nan, dtype=torch.float64, device=inputs.device)

    def score(starts: Tensor, size: int, scored: int) -> None:
        places = starts[:, None] + torch.arange(size, device=inputs.device)
        last = places[:, -scored:]
        wanted = targets[last]
        nll = model(input_ids=inputs[places], targets=wanted, reduction="none").loss.double()
        nll = nll.masked_fill(nll.isnan(), torch.inf)  # no number is no excuse: it counts
        found[last.flatten()] = nll.masked_fill(wanted < 0, torch.nan).flatten()

    first = min(window, count)
    further = (count - first) // stride
    left = count - first - further * stride
    ends: list[tuple[int, int, int]] = [(0, first, first)]  # start, size, scored
    if left:
        size = left if stride >= window else min(window, count)
        ends.append((count - size, size, left))
    starts = torch.arange(1, further + 1, device=inputs.device) * stride + first - window
    for part in starts[rank::world_size].split(batch_size):
        score(part, window, stride)
    if rank == 0:
        for start, size, scored in ends:
            score(torch.tensor([start], device=inputs.device), size, scored)
    return found
