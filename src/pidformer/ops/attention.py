"""PID attention: scaled dot-product attention plus the control, one call per layer."""
# B batch, H heads, Hkv key/value heads, N tokens, D head dim

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pidformer.control.feedback import Law, acting_law, mixes, read_gains, with_own
from pidformer.control.gains import Gains, GainsLike, acts
from pidformer.control.pid import FirstLayer, PIDState, check_first_layer, pid_step
from pidformer.errors import InputError
from pidformer.ops import dispatch, plain
from pidformer.ops.epilogue import control as control_epilogue
from pidformer.ops.epilogue import takes_gains
from pidformer.ops.exclude import exclude, excludes, takes_exclude
from pidformer.ops.layout import token_rows
from pidformer.ops.plan import LawPlan, planned
from pidformer.ops.short import short_attention


def pid_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: PIDState | None,
    gains: Gains | GainsLike | None,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    scale: float | None = None,
    first_layer: FirstLayer = "free",
    value: Tensor | None = None,
    packed: Tensor | None = None,
    gate: Tensor | None = None,
) -> tuple[Tensor, PIDState | None]:
    """u_l = softmax(q k^T scale) v_l + p e_l + i (e_1 + ... + e_l) + d (e_l - e_{l-1}).

    q (B, H, N, D); k, v (B, Hkv, M, D) with H a multiple of Hkv (grouped-query attention; the
    state is kept per value head). Returns the output (B, H, N, D) and the state for the next
    layer; `state=None` marks the first layer. `gains=None` is plain attention, with no state.

    With more keys than queries (M > N, decoding with a cache) the queries are the last N of the M
    tokens; where they are not (a cache of fixed size), `value` (B, Hkv, N, D) gives their values.
    Its heads may be fewer than those of v, where v repeats each for its group of queries. A law
    that mixes in values of the first layer (`Feedback`) finds v mixed where `value` is given: a
    cache keeps them so (`mixed_values`).
    The control of a token reads that token alone, so the cache holds nothing new.

    `packed` (B, N, H + 2 Hkv, D) is the projection that q, k, v are views of (`split_heads`), if
    they are: its gradient then comes in one piece. `gate` (B, H, N, D) is what a law with a gate
    reads from the layer, sigmoid(W x).

    The control is computed in float32 or wider and rounded once, into the output's type.
    `ops.dispatch` says which kernels compute it: ours for short sequences do all of it, SDPA leaves
    the control for after.
    """
    _check_shapes(q, k, v, value, packed)
    if first_layer != "free":
        check_first_layer(first_layer)
    acting: Gains | None = acting_law(read_gains(gains))
    if value is None and mixes(acting):
        value, v, packed = v, mixed_values(v, state, acting), None
        if k.shape[-2] != q.shape[-2]:
            raise InputError("behind a cache, give `value` and keep mixed values (`mixed_values`)")
    own = _own_values(q, v, value)
    plan = planned(acting, state, own, first_layer)
    way = _way(q, k, v, own, plan, acting, attn_mask is not None, dropout_p, scale)
    after, is_inside = None, way == "short" and own is v and not excludes(acting)
    if way == "short":
        is_controlled = is_inside and plan.gains is not None
        out, seen, after = short_attention(
            (q, k, v) if packed is None or own is not v else (packed, None, None),
            k.shape[1],
            plan.state if is_controlled else None,
            plan.gains if is_controlled else acting if own is v else None,
            is_causal=is_causal,
            scale=scale,
        )
        own = seen if own is v else own
    else:
        out = _attention(q, k, v, attn_mask, is_causal, dropout_p=dropout_p, scale=scale)
    if acting is None:
        return out, state
    if isinstance(acting, Law):
        is_ours = way != "torch" and out.dtype == own.dtype and takes_exclude(acting, own)
        if is_inside or is_ours:
            return _on_kernels(out, own, state, acting, plan, after, gate)
    elif after is not None:
        return out, after
    elif way == "epilogue" and state is not None and out.dtype == own.dtype:
        return control_epilogue(out, own, state, acting)
    elif state is not None and plain.takes(out, own, state, acting):
        return control_epilogue(out, own, state, acting, is_plain=True)
    return feed_back(out, own, state, acting, first_layer, gate=gate)


def _attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, is_causal: bool, **options: Any
) -> Tensor:
    """SDPA, also where heads share keys and values, and where masks and causality meet.

    Its flags must be bool: of open sizes a compiler has others, a trace tensors. Hence `if`.
    """
    if q.shape[-3] != k.shape[-3]:
        options["enable_gqa"] = True
    if is_causal:
        # Its own causal mask takes no other, and no queries that stand at the end of the keys.
        if attn_mask is None and q.shape[-2] == k.shape[-2]:
            options["is_causal"] = True
        else:
            attn_mask = _causal_mask(q, k, attn_mask)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, **options)
    if out.requires_grad and not torch.compiler.is_compiling() and _is_cudnns(out):
        # Its backward takes the layout of a shape's first gradient for that of all others (torch
        # 2.11), so all come in one; compiled code has one as it is.
        out.register_hook(token_rows)
    return out


def _is_cudnns(out: Tensor) -> bool:
    """Whether this may be the output of cuDNN's attention."""
    return out.is_cuda and out.ndim == 4 and out.dtype in (torch.bfloat16, torch.float16)


def _own_values(q: Tensor, v: Tensor, value: Tensor | None) -> Tensor:
    """The values of the tokens that ask; behind a cache those of the last."""
    if value is not None or v.shape[-2] == q.shape[-2]:
        return v if value is None else value
    return v[..., v.shape[-2] - q.shape[-2] :, :]


def _on_kernels(
    out: Tensor,
    own: Tensor,
    state: PIDState | None,
    law: Law,
    plan: LawPlan,
    after: PIDState | None,
    gate: Tensor | None,
) -> tuple[Tensor, PIDState]:
    """What a law does to attention's output; `after`: its control is in there already."""
    if acts(law.exclude):
        out = exclude(out, own, law.exclude)
    if after is None and plan.gains is not None and plan.state is not None:
        out, after = control_epilogue(out, own, plan.state, plan.gains)
    if plan.rest is not None:
        out = add_own(out, own, plan.rest, None, gate)
    return out, plan.after(after, state, own)


def feed_back(
    out: Tensor,
    value: Tensor,
    state: PIDState | None,
    gains: Gains | None,
    first_layer: FirstLayer = "free",
    *,
    gate: Tensor | None = None,
) -> tuple[Tensor, PIDState | None]:
    """out (B, H, N, D) of attention plus the control from the tokens' own values (B, Hkv, N, D)."""
    if gains is None:
        return out, state
    is_free = state is None and first_layer == "free"
    control, after = pid_step(value, state, gains, first_layer)
    if isinstance(gains, Law):
        return add_own(out, value, gains, control, gate), after
    return (out if is_free else add_control(out, control)), after


def mixed_values(v: Tensor, state: PIDState | None, gains: Gains | None) -> Tensor:
    """first v_0 + own v, the values that attention sees; v itself unless the law mixes them."""
    if not mixes(gains):
        return v
    if state is None and gains.embedded:  # type: ignore[union-attr]
        raise InputError("value_embedding has a learned reference: give it as `state.initial`")
    initial = v if state is None else state.initial
    return (gains.first * initial + gains.own * v).to(v.dtype)  # type: ignore[union-attr]


def scores(q: Tensor, k: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
    """q k^T / sqrt(D), -inf where a query does not see a key; (B, H, N, M)."""
    found = q * q.shape[-1] ** -0.5 @ of_queries(k, q).mT
    mask = _causal_mask(q, k, attn_mask) if is_causal else attn_mask
    if mask is None:
        return found
    return found.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else found + mask


def of_queries(part: Tensor, q: Tensor) -> Tensor:
    """Keys or values (B, Hkv, M, D), each repeated for its group of query heads."""
    groups = q.shape[-3] // part.shape[-3]
    return part if groups == 1 else part.repeat_interleave(groups, dim=-3)


def _way(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    own: Tensor,
    plan: LawPlan,
    gains: Gains | None,
    has_mask: bool,
    dropout_p: float,
    scale: float | None,
) -> dispatch.Route:
    """The way these inputs take through `dispatch`, after checks on what only we know."""
    if not dispatch.is_asked(q) or not plan.is_possible:
        return "torch"
    is_controlled = plan.state is not None and plan.gains is not None
    if plan.state is not None and plan.gains is not None:
        initial, integral, previous = plan.state
        is_same = initial.dtype == previous.dtype == own.dtype
        # The kernels read what the shape of the values promises; `pid_step` broadcasts, or refuses.
        is_same = is_same and initial.shape == integral.shape == previous.shape == own.shape
        if not is_same or not takes_gains(plan.gains, own.shape[-3]):
            return "torch"
    return dispatch.route(
        q,
        k,
        v,
        is_plain=not is_controlled and not excludes(gains),
        has_mask=has_mask or (own is not v and not isinstance(gains, Law)),
        dropout_p=dropout_p,
        scale=scale,
        state=plan.state,
    )


def add_own(
    out: Tensor, value: Tensor, law: Law, control: Tensor | None, gate: Tensor | None = None
) -> Tensor:
    """g scale (y + skip v - exclude (y.v / v.v) v + control), y (B, H, N, D), v (B, Hkv, N, D)."""
    if acts(law.gate) and gate is None:
        raise InputError("gated reads the layer's input: give `gate`, sigmoid(W x) (B, H, N, D)")
    wide = torch.promote_types(out.dtype, torch.float32)
    value = value.to(wide).unsqueeze(-3)  # (B, Hkv, 1, N, D)
    mixed = out.unflatten(-3, (value.shape[-4], -1)).to(wide)  # (B, Hkv, H / Hkv, N, D)
    own = map(_by_group, (law.skip, law.exclude, law.scale))
    control = None if control is None else control.unsqueeze(-3)
    total = with_own(mixed, value, control, *own)
    if gate is not None:
        by_group = gate.unflatten(-3, (value.shape[-4], -1)).to(wide)
        total = total * (1 + _by_group(law.gate) * (by_group - 1))
    return total.to(out.dtype).flatten(-4, -3)


def _by_group(gain: Any) -> Any:
    """A coefficient per value head (Hkv, 1, 1), for each of the queries that the head serves."""
    return gain.unsqueeze(-3) if isinstance(gain, Tensor) and gain.ndim else gain


def add_control(out: Tensor, control: Tensor) -> Tensor:
    """out (B, H, N, D) + control (B, Hkv, N, D), each value head serving its group of queries."""
    grouped = out.unflatten(-3, (control.shape[-3], -1))  # (B, Hkv, H / Hkv, N, D)
    return (grouped.to(control.dtype) + control.unsqueeze(-3)).to(out.dtype).flatten(-4, -3)


def _causal_mask(q: Tensor, k: Tensor, attn_mask: Tensor | None) -> Tensor:
    """Queries are the last of the keys, and see those before them that a mask leaves."""
    queries, keys = q.shape[-2], k.shape[-2]
    lower = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
    if attn_mask is None:
        return lower
    if attn_mask.dtype == torch.bool:
        return attn_mask & lower
    return attn_mask.masked_fill(~lower, -torch.inf)


def _check_shapes(
    q: Tensor, k: Tensor, v: Tensor, value: Tensor | None = None, packed: Tensor | None = None
) -> None:
    if value is packed is None and q.shape == k.shape == v.shape and q.ndim > 2 and q.shape[-3]:
        return
    if min(q.ndim, k.ndim, v.ndim) < 3:
        problem = "q, k, v must be (..., heads, tokens, head_dim)"
    elif k.shape[:-1] != v.shape[:-1] or q.shape[-1] != k.shape[-1] or q.shape[:-3] != k.shape[:-3]:
        problem = "q, k, v do not fit together"
    elif k.shape[-3] == 0 or q.shape[-3] % k.shape[-3]:
        problem = "query heads must be a multiple of key/value heads"
    elif q.shape[-2] > k.shape[-2]:
        problem = "more queries than keys"
    elif value is not None and not _is_of_queries(value, q, v):
        problem = "value must be (..., value heads, tokens of q, head_dim of v)"
    elif packed is not None and packed.shape != _packed_shape(q, k):
        problem = "packed must be (batch, tokens, heads of q, k and v, head_dim)"
    else:
        return
    given = {"q": q, "k": k, "v": v, "value": value, "packed": packed}
    shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in given.items() if x is not None)
    raise InputError(f"{problem}; got {shapes}")


def _packed_shape(q: Tensor, k: Tensor) -> tuple[int, ...]:
    """(B, N, H + 2 Hkv, D)."""
    return (*q.shape[:-3], k.shape[-2], q.shape[-3] + 2 * k.shape[-3], q.shape[-1])


def _is_of_queries(value: Tensor, q: Tensor, v: Tensor) -> bool:
    """Whether these are values of the tokens that ask, with heads that serve groups of queries."""
    if value.ndim != q.ndim or value.shape[-3] == 0:
        return False
    expected = (*q.shape[:-3], value.shape[-3], q.shape[-2], v.shape[-1])
    return value.shape == expected and q.shape[-3] % value.shape[-3] == 0
