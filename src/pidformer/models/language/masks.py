"""Which key a query may see: with padding, in a sliding window, with caches of either kind."""
# B batch, N queries, M keys

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Mask(NamedTuple):
    """What attention is given: a mask, SDPA's own causal one, or neither (one query sees all)."""

    attn_mask: Tensor | None
    is_causal: bool

    def of_last(self, count: int) -> "Mask":
        """The same for the last queries alone; the very last one sees all."""
        if self.attn_mask is not None:
            return Mask(self.attn_mask[..., -count:, :], self.is_causal)
        return Mask(None, self.is_causal and count > 1)


def choose_mask(
    attention_mask: Tensor | None,
    cache: Any,
    like: Tensor,
    documents: Tensor | None = None,
    window: int | None = None,
) -> Mask:
    """The mask for tokens `like` (B, N) behind what `cache` holds.

    `attention_mask` is 2-D (0 at padding) or made already, 4-D. SDPA's causal mask is used where
    nothing is padded, nothing cached and no key too far away, since that is what its fast kernels
    take. A token sees only those of its own of the `documents` (B or 1, N); there is no cache then.
    """
    queries = like.shape[1]
    if documents is not None:
        is_same = documents[:, None, :, None] == documents[:, None, None, :]
        return Mask(is_same & causal_mask(None, None, queries, like.device, window), False)
    if attention_mask is not None and attention_mask.ndim == 4:
        return Mask(attention_mask, False)
    is_padded = attention_mask is not None and (
        torch.compiler.is_compiling() or not bool(attention_mask.all())
    )
    if not is_padded and fixed_size(cache) is None:
        past, keys, _first = held_keys(cache, queries)
        # An exported program is for any length, and may not ask for this one.
        if window is None or (not torch.compiler.is_exporting() and bool(keys <= window)):
            if queries == 1:
                return Mask(None, False)
            if isinstance(past, int) and past == 0:
                return Mask(None, True)
    return Mask(causal_mask(attention_mask, cache, queries, like.device, window), False)


def causal_mask(
    attention_mask: Tensor | None,
    cache: Any,
    queries: int,
    device: torch.device,
    window: int | None = None,
) -> Tensor:
    """True where a query may look, bool (B or 1, 1, N, M); queries stand behind what is cached.

    Token t sees t - window + 1, ..., t, or all up to t. Padding looks at itself, so that no row is
    empty: a softmax over nothing would be NaN and spread through the values.
    """
    past, keys, first = held_keys(cache, queries)
    place = (torch.arange(queries, device=device) + past)[:, None]
    key = torch.arange(keys, device=device) + first
    seen = key <= place
    if window is not None:
        seen = seen & (key > place - window)
    if attention_mask is None:
        return seen[None, None]
    real = attention_mask.to(device=device, dtype=torch.bool)[:, first : first + keys]
    real = F.pad(real, (0, keys - real.shape[1]))
    return (seen & real[:, None, None]) | (key == place)


def held_keys(cache: Any, queries: int) -> tuple[int | Tensor, Any, int]:
    """Tokens before the queries, keys that attention is given, and the place of the first of them.

    A cache that slides keeps window - 1 of the past, one of fixed size returns all its room until
    that is full. A growing one knows its length as a number, or as torch.export's symbol for one.
    """
    past, size = cached_tokens(cache), fixed_size(cache)
    if not _slides(cache):
        return past, past + queries if size is None else size, 0
    if size is not None and past + queries <= size:
        return past, size, 0
    kept = min(int(past), (cache.layers[0].sliding_window if size is None else size) - 1)
    return past, kept + queries, int(past) - kept


def _slides(cache: Any) -> bool:
    layers: Any = getattr(cache, "layers", None)
    return bool(layers) and getattr(layers[0], "is_sliding", False)


def cached_tokens(cache: Any) -> int | Tensor:
    """Tokens in a Hugging Face cache: a number, or a tensor for one of fixed size."""
    return 0 if cache is None else cache.get_seq_length()


def fixed_size(cache: Any) -> int | None:
    """Length of the keys that a cache of fixed size returns; None for one that grows."""
    layers = getattr(cache, "layers", None)
    return getattr(layers[0], "max_cache_len", None) if layers else None
