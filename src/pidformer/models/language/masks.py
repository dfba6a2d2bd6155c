"""Which key a query may see, with padding and with caches of either kind."""
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
    attention_mask: Tensor | None, cache: Any, like: Tensor, documents: Tensor | None = None
) -> Mask:
    """The mask for tokens `like` (B, N) behind what `cache` holds.

    `attention_mask` is 2-D (0 at padding) or made already, 4-D. SDPA's causal mask is used where
    nothing is padded and nothing cached, since that is what its fast kernels take. A token sees
    only those of its own of the `documents` (B or 1, N); there is no cache then.
    """
    if documents is not None:
        count = like.shape[1]
        is_same = documents[:, None, :, None] == documents[:, None, None, :]
        return Mask(is_same & causal_mask(None, 0, count, count, like.device), False)
    if attention_mask is not None and attention_mask.ndim == 4:
        return Mask(attention_mask, False)
    queries = like.shape[1]
    past, size = cached_tokens(cache), fixed_size(cache)
    is_padded = attention_mask is not None and (
        torch.compiler.is_compiling() or not bool(attention_mask.all())
    )
    if not is_padded and size is None:
        if queries == 1:
            return Mask(None, False)
        if isinstance(past, int) and past == 0:
            return Mask(None, True)
    # A cache that grows knows its length as a number, or as torch.export's symbol for one.
    keys: Any = past + queries if size is None else size
    return Mask(causal_mask(attention_mask, past, queries, keys, like.device), False)


def causal_mask(
    attention_mask: Tensor | None,
    past: int | Tensor,
    queries: int,
    keys: int,
    device: torch.device,
) -> Tensor:
    """True where a query may look, bool (B or 1, 1, N, M); queries stand behind `past` tokens.

    Padding looks at itself, so that no row is empty: a softmax over nothing would be NaN and
    spread through the values.
    """
    place = torch.arange(queries, device=device) + past
    key = torch.arange(keys, device=device)
    seen = (key <= place[:, None])[None, None]
    if attention_mask is None:
        return seen
    real = attention_mask.to(device=device, dtype=torch.bool)[:, :keys]
    real = F.pad(real, (0, keys - real.shape[1]))
    return (seen & real[:, None, None]) | (key == place[:, None])


def cached_tokens(cache: Any) -> int | Tensor:
    """Tokens in a Hugging Face cache: a number, or a tensor for one of fixed size."""
    return 0 if cache is None else cache.get_seq_length()


def fixed_size(cache: Any) -> int | None:
    """Length of the keys that a cache of fixed size returns; None for one that grows."""
    layers = getattr(cache, "layers", None)
    return getattr(layers[0], "max_cache_len", None) if layers else None
