"""Triton: the control of a tile of rows, forward and backward (import only where Triton is)."""
# H query heads, Hkv value heads, GROUP = H / Hkv; D head dim, BLOCK_D the power of two above it.
# Tensors that these kernels write, and gradients, lie in memory as (B, N, heads, D).

import triton
import triton.language as tl


@triton.jit
def head_gains(gains, head, heads, p, i, d):
    """The gains of a value head: from a float32 tensor (3, Hkv), or the three numbers given."""
    if gains is not None:
        p = tl.load(gains + head)
        i = tl.load(gains + heads + head)
        d = tl.load(gains + 2 * heads + head)
    else:
        p, i, d = single(p), single(i), single(d)
    return p, i, d


@triton.jit
def single(number):
    """A number in float32: one that `torch.compile` hands over is float64."""
    return tl.cast(number, tl.float32)


@triton.jit
def load_previous(previous, first, base, at, mask):
    """v_{l-1}; None stands for v_0, which it is at the second layer."""
    if previous is not None:
        return tl.load(previous + base + at, mask=mask, other=0.0).to(tl.float32)
    else:
        return first


@triton.jit
def control_tile(
    value, initial, before, integral, integral_new, base, at, mask, store_mask, p, i, d, beta
):
    """p e + i S + d (v_{l-1} - v) of a tile; stores S = S_{l-1} + e, unless there is no i.

    The integral is at `base`, which may pass 2^31, plus `at`, within a tile.
    """
    error = beta * initial - value
    total = error
    if integral is not None:
        total += tl.load(integral + base + at, mask=mask, other=0.0).to(tl.float32)
    if integral_new is not None:
        tl.store(integral_new + base + at, total.to(integral_new.dtype.element_ty), mask=store_mask)
    return p * error + i * total + d * (before - value)


@triton.jit
def value_gradient(grad, grad_integral, grad_value, base, at, mask, p, i, d):
    """What the control adds to dv_l: g_v - (p + d) g - G with G = i g + g_S.

    g_S and g_v arrive from the layer above; None: nothing does.
    """
    change = -(p + d + i) * grad
    if grad_integral is not None:
        change -= tl.load(grad_integral + base + at, mask=mask, other=0.0).to(tl.float32)
    if grad_value is not None:
        change += tl.load(grad_value + base + at, mask=mask, other=0.0).to(tl.float32)
    return change


@triton.jit
def store_state_gradients(
    grad, grad_integral, grad_initial, d_integral, d_initial, d_previous,
    base, at, mask, p, i, d, beta,
):  # fmt: skip
    """dS = G, dv_0 = g_v0 + beta (p g + G), dv_{l-1} = d g.

    g_v0 arrives from the layer above. Without d_previous v_{l-1} is v_0: one gradient for both.
    Without d_integral i is 0, and G is g_S as it came.
    """
    total = i * grad
    if grad_integral is not None:
        total += tl.load(grad_integral + base + at, mask=mask, other=0.0).to(tl.float32)
    if d_integral is not None:
        tl.store(d_integral + base + at, total.to(d_integral.dtype.element_ty), mask=mask)
    initial = beta * (p * grad + total)
    if grad_initial is not None:
        initial += tl.load(grad_initial + base + at, mask=mask, other=0.0).to(tl.float32)
    if d_previous is not None:
        tl.store(d_previous + base + at, (d * grad).to(d_previous.dtype.element_ty), mask=mask)
    else:
        initial += d * grad
    tl.store(d_initial + base + at, initial.to(d_initial.dtype.element_ty), mask=mask)


@triton.jit
def _tile(tokens, heads, BLOCK: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Which rows of which value head a program has: batch, head, first row; rows, columns, mask.

    Then where in (B, N, Hkv, D) the first row begins, and where the others are from there. Only
    what a row can be from the first of its tile stays below 2^31: of q, k and v in one projection
    with 32 heads of 128, 175,000 tokens do not.
    """
    chunks = tl.cdiv(tokens, BLOCK)
    program = tl.program_id(0)
    batch = (program // chunks // heads).to(tl.int64)
    head = (program // chunks % heads).to(tl.int64)
    begin = (program % chunks * BLOCK).to(tl.int64)
    row = tl.arange(0, BLOCK)[:, None]
    column = tl.arange(0, BLOCK_D)[None, :]
    mask = (row < tokens - begin) & (column < D)
    start = ((batch * tokens + begin) * heads + head) * D
    return batch, head, begin, row, column, mask, start, row * heads * D + column


@triton.jit
def control_forward(
    out, value, initial, previous, integral, gains, u, integral_new,
    out_b, out_h, out_n, value_b, value_h, value_n,
    initial_b, initial_h, initial_n, previous_b, previous_h, previous_n,
    p, i, d, beta, tokens, heads,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    batch, head, begin, row, column, mask, start, at = _tile(tokens, heads, BLOCK, D, BLOCK_D)
    p, i, d = head_gains(gains, head, heads, p, i, d)
    beta = single(beta)
    value += batch * value_b + head * value_h + begin * value_n
    initial += batch * initial_b + head * initial_h + begin * initial_n
    now = tl.load(value + row * value_n + column, mask=mask, other=0.0).to(tl.float32)
    first = tl.load(initial + row * initial_n + column, mask=mask, other=0.0).to(tl.float32)
    base = batch * previous_b + head * previous_h + begin * previous_n
    before = load_previous(previous, first, base, row * previous_n + column, mask)
    control = control_tile(
        now, first, before, integral, integral_new, start, at, mask, mask, p, i, d, beta
    )
    out += batch * out_b + head * GROUP * out_h + begin * out_n
    for member in range(GROUP):
        source = out + member * out_h + row * out_n + column
        mixed = tl.load(source, mask=mask, other=0.0).to(tl.float32)
        to = u + start * GROUP + (row * heads * GROUP + member) * D + column
        tl.store(to, (mixed + control).to(u.dtype.element_ty), mask=mask)


@triton.jit
def group_gradient(
    grad, row, column, heads, mask,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """A tile's gradient of the output, rows of (H, D), summed over the queries of a value head."""
    total = tl.zeros([BLOCK, BLOCK_D], dtype=tl.float32)
    for member in tl.static_range(GROUP):
        at = (row * heads * GROUP + member) * D + column
        total += tl.load(grad + at, mask=mask, other=0.0).to(tl.float32)
    return total


@triton.jit
def control_backward(
    grad, grad_integral, grad_value, grad_initial, gains,
    d_value, d_integral, d_initial, d_previous,
    p, i, d, beta, tokens, heads,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    _batch, head, _begin, row, column, mask, start, at = _tile(tokens, heads, BLOCK, D, BLOCK_D)
    p, i, d = head_gains(gains, head, heads, p, i, d)
    beta = single(beta)
    total = group_gradient(grad + start * GROUP, row, column, heads, mask, GROUP, D, BLOCK, BLOCK_D)
    change = value_gradient(total, grad_integral, grad_value, start, at, mask, p, i, d)
    store_state_gradients(
        total, grad_integral, grad_initial, d_integral, d_initial, d_previous,
        start, at, mask, p, i, d, beta,
    )  # fmt: skip
    tl.store(d_value + start + at, change.to(d_value.dtype.element_ty), mask=mask)


@triton.jit
def gain_gradient(
    grad, value, initial, previous, integral_new, partial,
    value_b, value_h, value_n, initial_b, initial_h, initial_n,
    previous_b, previous_h, previous_n,
    beta, tokens, heads,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums of g e, g S and g (v_{l-1} - v_l) over a tile, into partial (programs, 3)."""
    beta = single(beta)
    batch, head, begin, row, column, mask, start, at = _tile(tokens, heads, BLOCK, D, BLOCK_D)
    value += batch * value_b + head * value_h + begin * value_n
    initial += batch * initial_b + head * initial_h + begin * initial_n
    total = group_gradient(grad + start * GROUP, row, column, heads, mask, GROUP, D, BLOCK, BLOCK_D)
    now = tl.load(value + row * value_n + column, mask=mask, other=0.0).to(tl.float32)
    first = tl.load(initial + row * initial_n + column, mask=mask, other=0.0).to(tl.float32)
    base = batch * previous_b + head * previous_h + begin * previous_n
    before = load_previous(previous, first, base, row * previous_n + column, mask)
    to = partial + tl.program_id(0).to(tl.int64) * 3
    tl.store(to, tl.sum(tl.sum(total * (beta * first - now), 1), 0))
    if integral_new is not None:
        summed = tl.load(integral_new + start + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(to + 1, tl.sum(tl.sum(total * summed, 1), 0))
    else:
        tl.store(to + 1, 0.0)
    tl.store(to + 2, tl.sum(tl.sum(total * (before - now), 1), 0))


@triton.jit
def _direction(value, row, column, stride, mask):
    """Values of a tile's rows at length 1, and one over their length; nothing of a row of zeros."""
    now = tl.load(value + row * stride + column, mask=mask, other=0.0).to(tl.float32)
    inverse = 1.0 / tl.maximum(tl.sqrt(tl.sum(now * now, 1)), 1e-12)[:, None]
    return now * inverse, inverse


@triton.jit
def _share(shares, head, share):
    """The share of a value head: from a float32 tensor (Hkv,), or the number given."""
    if shares is not None:
        return tl.load(shares + head)
    else:
        return single(share)


@triton.jit
def exclude_forward(
    out, value, shares, u,
    out_b, out_h, out_n, value_b, value_h, value_n,
    share, tokens, heads,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """u = y - share (y.n) n with n = v / |v|."""
    batch, head, begin, row, column, mask, start, _at = _tile(tokens, heads, BLOCK, D, BLOCK_D)
    share = _share(shares, head, share)
    value += batch * value_b + head * value_h + begin * value_n
    n, _ = _direction(value, row, column, value_n, mask)
    out += batch * out_b + head * GROUP * out_h + begin * out_n
    for member in range(GROUP):
        source = out + member * out_h + row * out_n + column
        y = tl.load(source, mask=mask, other=0.0).to(tl.float32)
        y -= share * tl.sum(y * n, 1)[:, None] * n
        to = u + start * GROUP + (row * heads * GROUP + member) * D + column
        tl.store(to, y.to(u.dtype.element_ty), mask=mask)


@triton.jit
def exclude_backward(
    grad, out, value, shares, d_out, d_value, parts,
    out_b, out_h, out_n, value_b, value_h, value_n,
    share, tokens, heads,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dy = g - share (g.n) n, and for v dn = -share ((g.n) y + (y.n) g) across n, over |v|.

    parts (programs,): -(g.n) (y.n) of a tile, the gradient of its head's share.
    """
    batch, head, begin, row, column, mask, start, at = _tile(tokens, heads, BLOCK, D, BLOCK_D)
    share = _share(shares, head, share)
    value += batch * value_b + head * value_h + begin * value_n
    n, inverse = _direction(value, row, column, value_n, mask)
    dn = tl.zeros([BLOCK, BLOCK_D], dtype=tl.float32)
    both = tl.zeros([BLOCK], dtype=tl.float32)
    out += batch * out_b + head * GROUP * out_h + begin * out_n
    for member in range(GROUP):
        source = out + member * out_h + row * out_n + column
        y = tl.load(source, mask=mask, other=0.0).to(tl.float32)
        there = start * GROUP + (row * heads * GROUP + member) * D + column
        g = tl.load(grad + there, mask=mask, other=0.0).to(tl.float32)
        along_g, along_y = tl.sum(g * n, 1), tl.sum(y * n, 1)
        dn -= along_g[:, None] * y + along_y[:, None] * g
        both -= along_g * along_y
        d_y = g - share * along_g[:, None] * n
        tl.store(d_out + there, d_y.to(d_out.dtype.element_ty), mask=mask)
    dn = share * inverse * (dn - tl.sum(dn * n, 1)[:, None] * n)
    tl.store(d_value + start + at, dn.to(d_value.dtype.element_ty), mask=mask)
    if parts is not None:
        tl.store(parts + tl.program_id(0).to(tl.int64), tl.sum(both, 0))
