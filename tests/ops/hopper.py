"""Compiles the kernels for compute capability 9.0, for which no GPU is needed; run by a test.

The interpreter takes what the compiler refuses (optional pointers, shapes of loop variables).
"""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pidformer.ops import epilogue_kernels, gelu_kernels, short_kernels

WIDE = {"integral", "integral_new", "grad_integral", "d_integral", "lse", "gains", "partial"}
WIDE |= {"shares", "parts", "bias"}
FIRST = {"gains", "shares", "parts", "previous", "integral", "d_previous"}
FIRST |= {"grad_integral", "grad_initial", "grad_value"}
PROPORTIONAL = {"gains", "previous", "d_previous", "d_integral", "grad_integral", "grad_value"}
PROPORTIONAL |= {"integral", "integral_new"}
SIZES = {"GROUP": 1, "D": 64, "BLOCK_D": 64, "CAUSAL": False, "PRECISION": "ieee"}
GELU = {"WIDTH": 768, "CHUNK": 128, "BLOCK": 16, "COLUMNS": 256}
TF32 = {"D": 16, "BLOCK_D": 16, "CAUSAL": True, "PRECISION": "tf32"}
ONE_TILE = {"BLOCK_N": 64, "BLOCK_TAIL": 0, "LEAN": False}
WITH_TAIL = {"BLOCK_N": 64, "BLOCK_TAIL": 16, "LEAN": True}
FORWARD = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_TAIL": 16, "PARTS": 2, "PREFETCH": False}
FETCHED = FORWARD | {"PREFETCH": True}
FEW_TOKENS = {"BLOCK_M": 16, "BLOCK_N": 16, "PARTS": 1, "D": 16, "BLOCK_D": 16}
TILES = (
    (epilogue_kernels.control_forward, {"BLOCK": 32}),
    (epilogue_kernels.control_backward, {"BLOCK": 32}),
    (epilogue_kernels.gain_gradient, {"BLOCK": 32}),
    (epilogue_kernels.exclude_forward, {"BLOCK": 32}),
    (epilogue_kernels.exclude_backward, {"BLOCK": 32}),
    (gelu_kernels.gelu_forward, GELU),
    (gelu_kernels.gelu_backward, GELU),
    (short_kernels.short_forward, FORWARD),
    (short_kernels.short_forward, FETCHED),
    (short_kernels.short_forward, FETCHED | FEW_TOKENS),
    (short_kernels.short_forward, FETCHED | {"D": 80, "BLOCK_D": 128, "PARTS": 4}),
    (short_kernels.short_forward, FETCHED | {"BLOCK_TAIL": 64, "CAUSAL": True, "GROUP": 2}),
    (short_kernels.short_forward, FORWARD | {"BLOCK_TAIL": 64, "PARTS": 1, **TF32}),
    (short_kernels.short_backward, {"BLOCK_M": 32, "TURNED": True, **ONE_TILE}),
    (short_kernels.short_backward, {"BLOCK_M": 32, "TURNED": False, **ONE_TILE}),
    (short_kernels.short_backward, {"BLOCK_M": 16, "TURNED": True, **WITH_TAIL}),
    (short_kernels.short_backward, {"BLOCK_M": 16, "TURNED": True, **WITH_TAIL, "CAUSAL": True}),
)


def compiled(kernel, absent, options):
    names = kernel.arg_names
    constants = {n: None for n in names if n in absent and "WIDTH" not in names}
    constants |= {n: x for n, x in (SIZES | options).items() if n in names}

    def kind(name):
        if name in constants:
            return "constexpr"
        if name in {"p", "i", "d", "beta", "scale", "share"}:
            return "fp32"
        if name in {"tokens", "heads", "rows"} or name[-2:] in {"_b", "_h", "_n"}:
            return "i32"
        return "*fp32" if name in WIDE or "PRECISION" in options else "*bf16"

    source = ASTSource(
        fn=kernel,
        signature={name: kind(name) for name in names},
        constexprs={(names.index(n),): x for n, x in constants.items()},
    )
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})


if __name__ == "__main__":
    for kernel, options in TILES:
        for absent in ({"gains"}, FIRST, PROPORTIONAL):
            found = compiled(kernel, absent, options).asm
            assert "cubin" in found
            assert ("prefetch.global.L2" in found["ptx"]) == options.get("PREFETCH", False)
            assert "pure = false" not in found["ttir"]  # for PyTorch it would write everywhere
            print(kernel.__name__, "without", *sorted(absent))
