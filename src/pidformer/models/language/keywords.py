"""The keywords of a forward: honoured, ignored by name, or refused in one line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pidformer.errors import InputError, unknown

WITHOUT_EFFECT = ("cache_position", "token_type_ids")
"""Tokens stand behind what the cache holds, and there is one type of token."""
PACKING = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")
"""What flash attention is told of packed documents; `position_ids` tell the same."""


def check_keywords(
    forward: Callable[..., Any], given: Mapping[str, Any], *, has_positions: bool
) -> None:
    """Refuse keywords that would change the numbers of another model and not ours."""
    for name, value in given.items():
        if name in WITHOUT_EFFECT:
            continue
        if name in PACKING:
            if value is not None and not has_positions:
                raise InputError(
                    f"{name} needs position_ids, which restart at 0 with each packed document; "
                    "DataCollatorWithFlattening gives both"
                )
        elif name == "is_causal":
            if value is False:
                raise InputError("is_causal must be True: a causal model sees no later token")
        else:
            known = {*inspect.signature(forward).parameters, "is_causal"} - {"self", "options"}
            raise unknown("keyword", name, known | {*WITHOUT_EFFECT, *PACKING})
