"""Are the kernels right? Outputs and gradients against float64, on fresh random numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from pidformer.control import PIDGains, PIDState
from pidformer.control.pid import pid_step
from pidformer.ops import dispatch, epilogue, short
from pidformer.ops.attention import add_control, pid_attention
from pidformer.ops.dispatch import power_of_two

GAINS = PIDGains(p=0.8, i=0.5, d=0.05, beta=0.1)
LAWS = ("xsa", "laplacian", "resformer", "0.8,0.5,0.05,0.1,implicit", "0.4,0.1,0.05,1,step=0.5")
LIMIT = {torch.bfloat16: 1e-2, torch.float16: 1.5e-3, torch.float32: 1e-5}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


def check(part: tuple[int, int] | None = None) -> None:
    """Every case and every law against float64, or, of part (k, n), every n-th case."""
    cases: list[Callable[[], bool]] = [
        partial(_check_case, op, **case)
        for case in (_cases() if DEVICE == "cuda" else SMALL_CASES)
        for op in ("short", "epilogue")
    ]
    _check_all(cases + _laws() if part is None else cases[part[0] - 1 :: part[1]])


def check_laws() -> None:
    """Every law, in one process: what an earlier one leaves behind may be another's mistake."""
    _check_all(_laws())


def _laws() -> list[Callable[[], bool]]:
    sizes = ((7, 3, False), (65, 1, True), (197, 3, False), (1025, 1, True))
    few = sizes if DEVICE == "cuda" else sizes[:1]
    return [partial(check_law, law, *size) for law, size in itertools.product(LAWS, few)]


def _check_all(cases: Sequence[Callable[[], bool]]) -> None:
    """Raises at the end if any is off."""
    print("| N | D | type | heads | kind | op | output | worst gradient | |\n|" + "---|" * 9)
    if wrong := sum(case() for case in cases):
        raise SystemExit(f"{wrong} cases are wrong")
    print("\nall right\n", flush=True)


# No bfloat16: the interpreter multiplies such matrices as if they were integers.
SMALL_CASES: tuple[dict[str, Any], ...] = (
    {"tokens": 1, "dim": 16, "dtype": torch.float16},
    {"tokens": 17, "dim": 24, "is_causal": True, "dtype": torch.float32},
    {"tokens": 7, "dim": 16, "heads": 4, "kv": 2, "learned": True, "dtype": torch.float16},
)


def _cases() -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = [
        {"tokens": n, "dim": d, "dtype": t}
        for n, d, t in itertools.product(
            (1, 7, 65, 145, 197, 256), (16, 32, 64, 80, 128), (torch.bfloat16,)
        )
    ]
    cases += [{"tokens": n, "dim": 64, "dtype": torch.float16} for n in (7, 65, 197, 256)]
    cases += [{"tokens": n, "dim": 64, "dtype": torch.float32} for n in (7, 65, 197)]
    cases += [{"tokens": n, "dim": 64} for n in (17, 81, 129)]
    cases += [{"tokens": n, "dim": 64, "is_causal": True} for n in (7, 65, 145, 197, 256, 512)]
    cases += [{"tokens": n, "dim": 64, "heads": 4, "kv": 2} for n in (7, 65, 197, 1025)]
    cases += [{"tokens": 197, "dim": 80, "heads": 4, "kv": 1, "is_causal": True}]
    cases += [{"tokens": n, "dim": d} for n, d in ((1025, 64), (4096, 64), (1025, 80), (400, 128))]
    cases += [{"tokens": n, "dim": 64, "learned": True} for n in (197, 1025)]
    cases += [{"tokens": n, "dim": 64, "wide_sums": True} for n in (65, 197, 1025)]
    return cases


def check_law(law: str, tokens: int, kv: int, is_causal: bool, dim: int = 64) -> bool:
    """Whether three layers of a law on our kernels, all of them, are off PyTorch's in float64."""
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    drawn = [
        torch.randn(2, heads, tokens, dim, device=DEVICE).to(dtype)
        for _ in range(3)
        for heads in (3, kv, kv)
    ]
    pull = [torch.randn(2, 3, tokens, dim, device=DEVICE) for _ in range(3)]
    found = []
    for name, wide in (("triton", dtype), ("torch", torch.float64)):
        leaves = [x.detach().to(wide).requires_grad_() for x in drawn]
        state: PIDState | None = None
        outs: list[Tensor] = []
        with dispatch.kernels(name):  # type: ignore[arg-type]
            for layer in zip(leaves[::3], leaves[1::3], leaves[2::3], strict=True):
                out, state = pid_attention(*layer, state, law, is_causal=is_causal)
                outs.append(out)
            loss = sum((out.to(wide) * g.to(wide)).sum() for out, g in zip(outs, pull, strict=True))
            found.append((outs, torch.autograd.grad(loss, leaves)))  # type: ignore[arg-type]
    (outs, grads), (exact, exact_grads) = found
    error = max(map(relative, outs, exact))
    errors = [relative(a, b) for a, b in zip(grads, exact_grads, strict=True)]
    worst = max(errors)
    kind = ("causal " if is_causal else "") + law
    label = f"| {tokens} | {dim} | {NAMES[dtype]} | 3/{kv} | {kind} | three layers |"
    place = errors.index(worst)
    name = f" ({'qkv'[place % 3]} of layer {place // 3 + 1})"
    return _is_wrong(label, error, worst, 2 * LIMIT[dtype], name)


def _is_wrong(label: str, error: float, worst: float | None, limit: float, name: str = "") -> bool:
    """Says a case's errors of output and worst gradient, which may be twice as far off."""
    is_wrong = not (error < limit and (worst is None or worst < 2 * limit))
    shown = "-" if worst is None else f"{worst:.1e}{name}"
    print(f"{label} {error:.1e} | {shown} | {'WRONG' if is_wrong else ''} |", flush=True)
    return is_wrong


def _check_case(
    op: str,
    tokens: int,
    dim: int,
    dtype: torch.dtype = torch.bfloat16,
    heads: int = 3,
    kv: int = 3,
    is_causal: bool = False,
    learned: bool = False,
    wide_sums: bool = False,
) -> bool:
    is_long = max(16, power_of_two(tokens)) * power_of_two(dim) > dispatch.BACKWARD_TILE
    with_backward = op == "epilogue" or not is_long
    if op == "short" and (tokens > dispatch.LONGEST or (dtype == torch.float32 and tokens > 65)):
        return False
    kind = ("causal " if is_causal else "") + ("learned" if learned else "fixed")
    kind += ", float32 sums" if wide_sums else ""
    sums = torch.float32 if wide_sums else dtype
    label = f"| {tokens} | {dim} | {NAMES[dtype]} | {heads}/{kv} | {kind} | {op} |"
    try:
        found = _errors(op, tokens, dim, dtype, sums, heads, kv, is_causal, learned, with_backward)
    except Exception as error:  # one case must not end the run
        print(f"{label} {type(error).__name__}: {str(error)[:300]!r} | | WRONG |", flush=True)
        return True
    out, worst, name = found
    return _is_wrong(label, out, worst if with_backward else None, LIMIT[dtype], f" ({name})")


def _errors(
    op: str,
    tokens: int,
    dim: int,
    dtype: torch.dtype,
    sums: torch.dtype,
    heads: int,
    kv: int,
    is_causal: bool,
    learned: bool,
    with_backward: bool,
) -> tuple[float, float, str]:
    """Relative errors of output and integral, of the worst gradient, and which that is."""
    batch = 2
    values = (batch, kv, tokens, dim)
    given = {
        "qkv": torch.randn(batch, tokens, heads + 2 * kv, dim, device=DEVICE).to(dtype),
        "initial": torch.randn(values, device=DEVICE).to(dtype),
        "integral": torch.randn(values, device=DEVICE).to(sums),
        "previous": torch.randn(values, device=DEVICE).to(dtype),
        "gains": torch.rand(3, kv, 1, 1, device=DEVICE),
    }
    grads = [torch.randn(batch, heads, tokens, dim, device=DEVICE).to(dtype)]
    grads += [torch.randn(values, device=DEVICE).to(sums)]
    grads += [torch.randn(values, device=DEVICE).to(dtype) for _ in range(2)]

    def gains_of(inputs: dict[str, Tensor]) -> Any:
        from pidformer.control.gains import GainTensors

        p, i, d = inputs["gains"]
        return GainTensors(p, i, d, GAINS.beta) if learned else GAINS

    def ours(inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        state = PIDState(inputs["initial"], inputs["integral"], inputs["previous"])
        if op == "short":
            out, _, after = short.short_attention(
                (inputs["qkv"], None, None), kv, state, gains_of(inputs), is_causal=is_causal
            )
        else:
            q, k, v = short.split_heads(inputs["qkv"], kv)
            mixed = sdpa(q, k, v, is_causal=is_causal, enable_gqa=heads != kv)
            out, after = epilogue.control(mixed, v, state, gains_of(inputs))
        assert after is not None
        return out, after.integral, after.initial, after.previous

    def exact(inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        q, k, v = short.split_heads(inputs["qkv"], kv)
        wide_k, wide_v = (x.repeat_interleave(heads // kv, 1) for x in (k, v))
        score = q @ wide_k.transpose(-2, -1) / dim**0.5
        if is_causal:
            later = torch.ones(tokens, tokens, dtype=torch.bool, device=DEVICE).triu(1)
            score = score.masked_fill(later, -torch.inf)
        state = PIDState(inputs["initial"], inputs["integral"], inputs["previous"])
        control, after = pid_step(v, state, gains_of(inputs))
        return add_control(score.softmax(-1) @ wide_v, control), *after[1:2], after[0], v

    outs, pulled = [], []
    for function, wide in ((ours, False), (exact, True)):
        inputs = {name: x.double() if wide else x.clone() for name, x in given.items()}
        for x in inputs.values():
            x.requires_grad_(with_backward)
        found = function(inputs)
        outs.append(found)
        if with_backward:
            names = [name for name in inputs if learned or name != "gains"]
            pull = [g.to(x.dtype) for g, x in zip(grads, found, strict=True)]
            pulled.append(
                dict(
                    zip(
                        names,
                        torch.autograd.grad(found, [inputs[n] for n in names], pull),
                        strict=True,
                    )
                )
            )
    out = max(relative(a, b) for a, b in zip(outs[0][:2], outs[1][:2], strict=True))
    if not with_backward:
        return out, 0.0, ""
    heads_at = {"q": slice(0, heads), "k": slice(heads, heads + kv), "v": slice(heads + kv, None)}
    worst = {
        name: relative(pulled[0]["qkv"][:, :, part], pulled[1]["qkv"][:, :, part])
        for name, part in heads_at.items()
        if tokens > 1 or name == "v"  # one key: its score has no influence
    }
    worst |= {n: relative(pulled[0][n], x) for n, x in pulled[1].items() if n != "qkv"}
    name = max(worst, key=lambda key: worst[key])
    return out, worst[name], name


def relative(found: Tensor, expected: Tensor) -> float:
    """||found - expected|| / ||expected||."""
    found, expected = found.detach().double(), expected.detach()
    return float((found - expected).norm() / expected.norm())
