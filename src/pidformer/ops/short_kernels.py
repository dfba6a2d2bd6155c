"""Triton: attention over short sequences with the control in its epilogue (see `ops.short`)."""
# H query heads, Hkv value heads, GROUP = H / Hkv; D head dim, BLOCK_D the power of two above it.
# Tensors that these kernels write, and gradients, lie in memory as (B, N, heads, D).

import triton
import triton.language as tl

from pidformer.ops.epilogue_kernels import control_tile, head_gains, load_previous, single


@triton.jit
def _load_rows(
    base, rows, columns, stride, tokens,
    MASKED: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    at = base + rows[:, None] * stride + columns[None, :]
    if MASKED:
        return tl.load(at, mask=(rows[:, None] < tokens) & (columns[None, :] < D), other=0.0)
    elif BLOCK_D != D:
        return tl.load(at, mask=columns[None, :] < D, other=0.0)
    else:
        return tl.load(at)


@triton.jit
def _attend(
    mixed, top, total, q, k, v, rows, columns, start, k_n, v_n, tokens, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of keys in the running softmax: values mixed so far, largest score, weight."""
    keys = start + tl.arange(0, BLOCK)
    key = _load_rows(k, keys, columns, k_n, tokens, MASKED, D, BLOCK_D)
    score = tl.dot(q, tl.trans(key), input_precision=PRECISION)
    if MASKED:
        seen = keys[None, :] < tokens
        if CAUSAL:
            seen = seen & (keys[None, :] <= rows[:, None])
        score = tl.where(seen, score, float("-inf"))
    higher = tl.maximum(top, tl.max(score, 1) * scale)
    weight = tl.exp2(score * scale - higher[:, None])
    shrink = tl.exp2(top - higher)
    total = total * shrink + tl.sum(weight, 1)
    value = _load_rows(v, keys, columns, v_n, tokens, MASKED, D, BLOCK_D)
    mixed = mixed * shrink[:, None]
    mixed = tl.dot(weight.to(value.dtype), value, mixed, input_precision=PRECISION)
    return mixed, higher, total


@triton.jit
def _control_columns(
    mixed, u, v, initial, previous, integral, integral_new, rows, begin, at_previous, sample,
    u_n, v_n, initial_n, previous_n, state_n, tokens, written, p, i, d, beta,
    D: tl.constexpr, BLOCK_M: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Adds the control to WIDTH columns of a tile and stores them; in PARTS, to save registers."""
    if PARTS > 1:
        half: tl.constexpr = WIDTH // 2
        left, right = tl.split(tl.permute(tl.reshape(mixed, [BLOCK_M, 2, half]), [0, 2, 1]))
        _control_columns(
            left, u, v, initial, previous, integral, integral_new, rows, begin, at_previous, sample,
            u_n, v_n, initial_n, previous_n, state_n, tokens, written, p, i, d, beta,
            D, BLOCK_M, half, PARTS // 2,
        )  # fmt: skip
        _control_columns(
            right, u, v, initial, previous, integral, integral_new, rows, begin + half, at_previous,
            sample, u_n, v_n, initial_n, previous_n, state_n, tokens, written, p, i, d, beta,
            D, BLOCK_M, half, PARTS // 2,
        )  # fmt: skip
    else:
        row = rows[:, None]
        column = (begin + tl.arange(0, WIDTH))[None, :]
        mask = (row < tokens) & (column < D)
        now = tl.load(v + row * v_n + column, mask=mask, other=0.0).to(tl.float32)
        first = tl.load(initial + row * initial_n + column, mask=mask, other=0.0).to(tl.float32)
        before = load_previous(previous, first, at_previous, row * previous_n + column, mask)
        mixed += control_tile(
            now, first, before, integral, integral_new, sample, row * state_n + column, mask,
            (row < written) & (column < D), p, i, d, beta,
        )  # fmt: skip
        tl.store(u + row * u_n + column, mixed.to(u.dtype.element_ty), mask=mask)


@triton.jit
def _prefetch(base, rows, step, D: tl.constexpr):
    """Ask the device's second cache for rows of D numbers, each line of 128 bytes once.

    Zeros, for each row. Use them: the instruction is said to be pure, or `torch.compile` would take
    every tensor of the kernel for one that it writes, and copy it first.
    """
    LINE: tl.constexpr = 1024 // base.dtype.element_ty.primitive_bitwidth
    zeros = tl.zeros_like(rows)
    for column in tl.static_range(0, D, LINE):
        zeros += tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [base + rows * step + column],
            dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    return zeros


@triton.jit
def short_forward(
    q, k, v, initial, previous, integral, gains, u, integral_new, lse,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n,
    initial_b, initial_h, initial_n, previous_b, previous_h, previous_n,
    p, i, d, beta, scale, tokens, heads,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_TAIL: tl.constexpr,
    PARTS: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, PREFETCH: tl.constexpr,
):  # fmt: skip
    """A program has BLOCK_M queries of one head.

    `scale` is that of the scores times log2(e). Keys come in tiles of BLOCK_N that need no mask,
    then in tiles of BLOCK_TAIL that do: 197 keys are three tiles of 64 and one of 16, not 256.
    `heads` counts the value heads.
    """
    scale, beta = single(scale), single(beta)
    chunks = tl.cdiv(tokens, BLOCK_M)
    program = tl.program_id(0)
    query_heads = heads * GROUP
    batch = (program // chunks // query_heads).to(tl.int64)
    query_head = program // chunks % query_heads
    head = query_head // GROUP
    q += batch * q_b + query_head * q_h
    k += batch * k_b + head * k_h
    v += batch * v_b + head * v_h
    columns = tl.arange(0, BLOCK_D)
    start = program % chunks * BLOCK_M
    rows = start + tl.arange(0, BLOCK_M)
    place = rows
    if PREFETCH:  # what the control reads at the end, while scores are computed
        there = tl.minimum(rows, tokens - 1)
        if initial is not None:
            place += _prefetch(initial + batch * initial_b + head * initial_h, there, initial_n, D)
        if previous is not None:
            at = batch * previous_b + head * previous_h
            place += _prefetch(previous + at, there, previous_n, D)
        if integral is not None:
            sums = integral + batch * tokens * heads * D + head * D
            place += _prefetch(sums, there, heads * D, D)
    query = _load_rows(q, place, columns, q_n, tokens, True, D, BLOCK_D)
    mixed = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    if CAUSAL:
        plain = start // BLOCK_N * BLOCK_N
        end = tl.minimum(start + BLOCK_M, tokens)
    else:
        plain = tokens // BLOCK_N * BLOCK_N
        end = tokens
    for at in range(0, plain, BLOCK_N):
        mixed, top, total = _attend(
            mixed, top, total, query, k, v, rows, columns, at, k_n, v_n, tokens, scale,
            D, BLOCK_D, BLOCK_N, False, CAUSAL, PRECISION,
        )  # fmt: skip
    for at in range(plain, end, BLOCK_TAIL):
        mixed, top, total = _attend(
            mixed, top, total, query, k, v, rows, columns, at, k_n, v_n, tokens, scale,
            D, BLOCK_D, BLOCK_TAIL, True, CAUSAL, PRECISION,
        )  # fmt: skip
    mixed = mixed / total[:, None]
    if lse is not None:
        lse += (batch * query_heads + query_head) * tokens
        tl.store(lse + rows, top + tl.log2(total), mask=rows < tokens)
    u += batch * tokens * query_heads * D + query_head * D
    if initial is None:
        to = rows[:, None] * (query_heads * D) + columns[None, :]
        mask = (rows[:, None] < tokens) & (columns[None, :] < D)
        tl.store(u + to, mixed.to(u.dtype.element_ty), mask=mask)
    else:
        p, i, d = head_gains(gains, head, heads, p, i, d)
        sample = batch * tokens * heads * D + head * D
        initial += batch * initial_b + head * initial_h
        at_previous = batch * previous_b + head * previous_h
        written = tl.where(query_head == head * GROUP, tokens, 0)  # by one head of the group
        _control_columns(
            mixed, u, v, initial, previous, integral, integral_new, rows, 0, at_previous, sample,
            query_heads * D, v_n, initial_n, previous_n, heads * D, tokens, written,
            p, i, d, beta, D, BLOCK_M, BLOCK_D, PARTS,
        )  # fmt: skip


@triton.jit
def _weights(
    left, right, norm, seen, scale, MASKED: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """A tile of the softmax, keys by queries or queries by keys; `norm`: log2 of a query's sum."""
    weight = tl.dot(left, tl.trans(right), input_precision=PRECISION)
    weight = tl.exp2(weight * scale - norm)
    return tl.where(seen, weight, 0.0) if MASKED else weight


@triton.jit
def _store_keys(
    dk, dv, d_packed, grad_value, keys, columns, width, first, heads, head, tokens, scale,
    D: tl.constexpr,
):  # fmt: skip
    """`first`: the head of d_packed at which the keys begin."""
    row, column = keys[:, None], columns[None, :]
    mask = (row < tokens) & (column < D)
    to = d_packed + row * width + (first + head) * D + column
    tl.store(to, (dk * scale).to(d_packed.dtype.element_ty), mask=mask)
    if grad_value is not None:
        at = (row * heads + head) * D + column
        dv += tl.load(grad_value + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(to + heads * D, dv.to(d_packed.dtype.element_ty), mask=mask)


@triton.jit
def short_backward(
    q, k, v, lse, grad, grad_value, d_packed,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, scale, tokens, heads,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_TAIL: tl.constexpr,
    TURNED: tl.constexpr, LEAN: tl.constexpr,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A program has one value head, all its keys, and walks over the queries.

    The keys are one tile of BLOCK_N or, where much of that would be empty, a full tile and a tail
    of BLOCK_TAIL: 65 keys are 64 and 16, not 128. Either way a step has complete rows of the
    softmax, so that sum_j P_ij dP_ij needs no saved output.
    Scores are kept transposed, keys by queries: then P and dS are left operands as they stand. The
    tail, too small for that, is the other way round, and its dk and dv are dims by keys.
    LEAN: a step computes its addresses anew, which leaves registers for more programs at a time.
    d_packed is (B, N, H + 2 Hkv, D): dq, dk, dv.
    """
    tl.static_assert(BLOCK_TAIL == 0 or TURNED, "a tail needs dq made transposed")
    scale = single(scale)
    own_scale = scale * 0.6931471805599453  # that of the scores: without log2(e)
    program = tl.program_id(0)
    batch = (program // heads).to(tl.int64)
    head = program % heads
    query_heads = heads * GROUP
    width = (query_heads + 2 * heads) * D
    k += batch * k_b + head * k_h
    v += batch * v_b + head * v_h
    d_packed += batch * tokens * width
    if grad_value is not None:
        grad_value += batch * tokens * heads * D
    PARTIAL: tl.constexpr = BLOCK_TAIL == 0
    keys = tl.arange(0, BLOCK_N)
    columns = tl.arange(0, BLOCK_D)
    column = columns[None, :]
    key = _load_rows(k, keys, columns, k_n, tokens, PARTIAL, D, BLOCK_D)
    value = _load_rows(v, keys, columns, v_n, tokens, PARTIAL, D, BLOCK_D)
    dk = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
    if BLOCK_TAIL > 0:
        last = BLOCK_N + tl.arange(0, BLOCK_TAIL)
        last_key = _load_rows(k, last, columns, k_n, tokens, True, D, BLOCK_D)
        last_value = _load_rows(v, last, columns, v_n, tokens, True, D, BLOCK_D)
        last_dk = tl.zeros([BLOCK_D, BLOCK_TAIL], dtype=tl.float32)
        last_dv = tl.zeros([BLOCK_D, BLOCK_TAIL], dtype=tl.float32)
    for member in range(GROUP):
        query_head = head * GROUP + member
        q_head = q + batch * q_b + query_head * q_h
        g_head = grad + (batch * tokens * query_heads + query_head) * D
        lse_head = lse + (batch * query_heads + query_head) * tokens
        for start in tl.range(0, tokens, BLOCK_M, disable_licm=LEAN):
            rows = start + tl.arange(0, BLOCK_M)
            query = _load_rows(q_head, rows, columns, q_n, tokens, True, D, BLOCK_D)
            g = _load_rows(g_head, rows, columns, query_heads * D, tokens, True, D, BLOCK_D)
            norm = tl.load(lse_head + rows, mask=rows < tokens, other=float("inf"))
            if BLOCK_TAIL > 0:  # before the larger tile, which holds more registers
                seen = last[None, :] < tokens
                if CAUSAL:
                    seen = seen & (last[None, :] <= rows[:, None])
                last_weight = _weights(
                    query, last_key, norm[:, None], seen, scale, True, PRECISION
                )  # fmt: skip
                last_d_weight = tl.dot(g, tl.trans(last_value), input_precision=PRECISION)
                last_p = last_weight.to(g.dtype)
                last_dv = tl.dot(tl.trans(g), last_p, last_dv, input_precision=PRECISION)
            seen = keys[:, None] < tokens
            if CAUSAL:
                seen = seen & (keys[:, None] <= rows[None, :])
            weight = _weights(
                key, query, norm[None, :], seen, scale, PARTIAL or CAUSAL, PRECISION
            )  # fmt: skip
            dv = tl.dot(weight.to(g.dtype), g, dv, input_precision=PRECISION)
            d_weight = tl.dot(value, tl.trans(g), input_precision=PRECISION)
            shared = tl.sum(weight * d_weight, 0)
            if BLOCK_TAIL > 0:
                shared += tl.sum(last_weight * last_d_weight, 1)
                last_ds = (last_weight * (last_d_weight - shared[:, None])).to(query.dtype)
                last_dk = tl.dot(tl.trans(query), last_ds, last_dk, input_precision=PRECISION)
            d_score = (weight * (d_weight - shared[None, :])).to(query.dtype)
            dk = tl.dot(d_score, query, dk, input_precision=PRECISION)
            if TURNED:  # dims by queries: few queries are then no obstacle to wgmma
                dq = tl.dot(tl.trans(key), d_score, input_precision=PRECISION)
                if BLOCK_TAIL > 0:
                    dq = tl.dot(
                        tl.trans(last_key), tl.trans(last_ds), dq, input_precision=PRECISION
                    )
                dq = tl.trans(dq)
            else:
                dq = tl.dot(tl.trans(d_score), key, input_precision=PRECISION)
            dq *= own_scale
            to = rows[:, None] * width + query_head * D + column
            mask = (rows[:, None] < tokens) & (column < D)
            tl.store(d_packed + to, dq.to(d_packed.dtype.element_ty), mask=mask)
    _store_keys(
        dk, dv, d_packed, grad_value, keys, columns, width, query_heads, heads, head, tokens,
        own_scale, D,
    )  # fmt: skip
    if BLOCK_TAIL > 0:
        _store_keys(
            tl.trans(last_dk), tl.trans(last_dv), d_packed, grad_value, last, columns, width,
            query_heads, heads, head, tokens, own_scale, D,
        )  # fmt: skip
