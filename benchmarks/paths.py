"""Paths that have to be asked for until a GPU has run them: are they right, and do they pay?

    python -m benchmarks paths NAME [--device cuda] [--rounds 7] [--out DIR] [--json]

direct: launches past Triton's binding (PIDFORMER_LAUNCH=direct). prefetch: a program of attention's
kernel first asks for what its control reads (PIDFORMER_PREFETCH=1). exclude: the kernel of
exclusive self-attention. gelu: bias and GELU in one pass. recorded: attacks whose steps are CUDA
graphs.

Each is checked, then takes turns with the default. The verdict, also a line of DIR/verdicts.jsonl:

    make default    right, somewhere faster by more than 2 % (quartile), nowhere slower by as much
    keep            right, faster here and slower there: whoever asks for it knows why
    delete          wrong, or nowhere faster
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.nn.functional as F
from timm.layers import Mlp
from torch import Tensor

from benchmarks._measure import measured
from benchmarks.kernel_checks import check_law, relative
from pidformer.bench import attack as attacks
from pidformer.bench import model as models
from pidformer.bench import operator as operators
from pidformer.bench.timing import (
    GAINS,
    BenchSetting,
    Case,
    Timing,
    Workload,
    measure,
    name_of,
    recorded,
)
from pidformer.control import PIDGains, as_feedback
from pidformer.errors import unknown
from pidformer.nn.block import feed_forward
from pidformer.ops import kernels, launch, pid_attention, short
from pidformer.robustness import PGD

DEFAULT = "default"
NOISE = 0.02
Run = Callable[[], object]


class Path(NamedTuple):
    """What is wrong with a path on a device ("" if nothing), and its times beside the default's."""

    problem: Callable[[torch.device], str]
    rows: Callable[[BenchSetting], Iterator[list[Timing]]]


def main() -> None:
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in PATHS:
        raise unknown("path", name, PATHS)
    is_gpu = torch.cuda.is_available() and "cpu" not in sys.argv
    problem = _problem(PATHS[name], torch.device("cuda" if is_gpu else "cpu"))
    sections = {} if problem else {name: PATHS[name].rows}  # its times would say nothing
    done, options = measured(__doc__, sections, name=f"paths {name}")
    found, why = verdict(problem, done.rows) if is_gpu or problem else ("none", "a CPU cannot say")
    line = {"path": name, "verdict": found, "why": why, "device": done.header["device"]}
    if options.out is not None:
        with (options.out / "verdicts.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
    if options.json:
        print(json.dumps(done.to_dict() | line))
    else:
        print(f"\nverdict on {name}: {found} ({why})", flush=True)
    sys.exit(bool(problem))


def _problem(path: Path, device: torch.device) -> str:
    """What is wrong with a path; what it raises is."""
    try:
        return path.problem(device)
    except Exception as error:  # a kernel that does not compile, or ends the device's work
        return f"{type(error).__name__}: {str(error).strip()[:200]}"


def verdict(problem: str, rows: Sequence[Timing]) -> tuple[str, str]:
    """What to do with a path, and why; rows of times, each table's first the default's."""
    if problem:
        return "delete", f"wrong: {problem}"
    own = [row for row in rows if row.label != DEFAULT and row.ratio is not None]
    if not own:
        return "keep", "not measured"
    best, worst = (pick(own, key=lambda row: row.ratio or 0.0) for pick in (min, max))
    why = f"times of the default's, best {_shown(best)}, worst {_shown(worst)}"
    is_faster = any((row.ratio_high or 1.0) < 1 - NOISE for row in own)
    is_slower = any((row.ratio_low or 1.0) > 1 + NOISE for row in own)
    return ("delete" if not is_faster else "keep" if is_slower else "make default"), why


def _shown(row: Timing) -> str:
    quartiles = f"[{row.ratio_low:.3f}, {row.ratio_high:.3f}]"
    return f"{row.ratio:.3f} {quartiles} ({row.what}, {row.mode}, {dict(row.sizes)})"


def _group(what: str, sizes: dict[str, int], setting: BenchSetting, **more: Any) -> Workload:
    fields: dict[str, Any] = {"dtype": name_of(setting.dtype), **more}
    return Workload(section="paths", what=what, sizes=sizes, **fields)


def _pair(name: str, make: Callable[[bool], Run], **more: Any) -> list[Case]:
    """The default and the path; `make` is told whether it is the path."""
    labels = {DEFAULT: False, name: True}
    return [Case(label=label, make=partial(make, on), **more) for label, on in labels.items()]


# Direct launches


def _switched(switch: tuple[Any, str], run: Run, is_on: bool) -> Run:
    def switched() -> object:  # not by the environment: to set it takes the host a while each time
        with mock.patch.object(*switch, partial(bool, is_on)):
            return run()

    return switched


DIRECT, PREFETCHED = (launch, "is_direct"), (short, "is_prefetched")


def _bits(device: torch.device, tokens: int, kv: int, gains: Any, **options: Any) -> list[Tensor]:
    """Outputs and gradients of three layers, the same numbers each time."""
    generator = torch.Generator(device).manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    state, outs, leaves = None, [], []
    for _ in range(3):
        layer = [
            torch.randn(2, heads, tokens, 64, generator=generator, device=device).to(dtype)
            for heads in (4, kv, kv)
        ]
        leaves += [x.requires_grad_() for x in layer]
        with kernels("triton"):
            out, state = pid_attention(layer[0], layer[1], layer[2], state, gains, **options)
        outs.append(out)
    return [*outs, *torch.autograd.grad([out.sum() for out in outs], leaves)]


def _direct_problem(device: torch.device) -> str:
    gains = PIDGains.parse(GAINS)
    launch._compiled.clear()
    cases = (
        ((65, 4, False), (197, 2, True), (600, 4, False))
        if device.type == "cuda"
        else ((7, 2, True),)
    )
    for tokens, kv, is_causal in cases:
        run = partial(_bits, device, tokens, kv, gains, is_causal=is_causal)
        expected = _switched(DIRECT, run, False)()
        for _ in range(3):  # compiled, then launched directly
            found: Any = _switched(DIRECT, run, True)()
            if not all(map(torch.equal, found, expected)):  # type: ignore[call-overload]
                return f"other bits at {tokens} tokens, {kv} value heads"
    return "no launch was direct" if device.type == "cuda" and not launch._compiled else ""


def _direct(setting: BenchSetting) -> Iterator[list[Timing]]:
    large = [operators.OperatorSize(batch, 3, 197, 64) for batch in (256, 4)]
    sizes = large if setting.is_gpu else [operators.OperatorSize(1, 2, 5, 16, 2)]
    attend = partial(operators.controlled, pid_attention, PIDGains.parse(GAINS))
    for size, is_training in product(sizes, (False, True)):

        def make(
            is_direct: bool, size: operators.OperatorSize = size, is_training: bool = is_training
        ) -> Run:
            run = operators.chain(size, setting, is_training, attend=attend)
            return _switched(DIRECT, run, is_direct)

        what = operators.BOTH if is_training else operators.FORWARD
        group = _group(what, size._asdict(), setting, amount=size.layers)
        yield measure(group, _pair("direct", make), setting)


# Prefetch


def _prefetch_problem(device: torch.device) -> str:
    gains = PIDGains.parse(GAINS)
    for tokens, kv, is_causal in ((7, 4, False), (65, 2, True), (197, 4, False)):
        if device.type == "cpu":
            break  # the interpreter knows no such instruction
        run = partial(_bits, device, tokens, kv, gains, is_causal=is_causal)
        found, expected = (_switched(PREFETCHED, run, is_on)() for is_on in (True, False))
        if not all(map(torch.equal, found, expected)):  # type: ignore[call-overload]
            return f"other bits at {tokens} tokens, {kv} value heads"
    return ""


def _prefetch(setting: BenchSetting) -> Iterator[list[Timing]]:
    large = [operators.OperatorSize(256, 3, 197, 64), operators.OperatorSize(512, 3, 65, 64)]
    sizes = large if setting.is_gpu else [operators.OperatorSize(1, 2, 5, 16, 2)]
    attend = partial(operators.controlled, pid_attention, PIDGains.parse(GAINS))
    for size, is_training in product(sizes, (False, True)):

        def make(
            is_on: bool, size: operators.OperatorSize = size, is_training: bool = is_training
        ) -> Run:
            run = operators.chain(size, setting, is_training, attend=attend)
            return _switched(PREFETCHED, run, is_on)

        what = operators.BOTH if is_training else operators.FORWARD
        mode = "recorded" if setting.is_gpu else "eager"
        group = _group(what, size._asdict(), setting, amount=size.layers, mode=mode)
        wrap = recorded if setting.is_gpu else None
        yield measure(group, _pair("prefetch", make, wrap=wrap), setting)


# Exclusion's kernel


def _on(name: Any, run: Run) -> Run:
    def on() -> object:
        with kernels(name):
            return run()

    return on


def _exclude_problem(device: torch.device) -> str:
    sizes = ((7, 3, False), (65, 1, True), (197, 3, False), (1025, 1, True))
    for size in sizes if device.type == "cuda" else sizes[:1]:
        if check_law("xsa", *size):
            return f"off float64 at {size[0]} tokens"
    return ""


def _exclude(setting: BenchSetting) -> Iterator[list[Timing]]:
    large, small = operators.OperatorSize(256, 3, 197, 64), operators.OperatorSize(1, 2, 5, 16, 2)
    size = large if setting.is_gpu else small
    law = as_feedback("xsa")
    for mode, is_training in product(("eager", "compiled")[: 1 + setting.is_gpu], (False, True)):
        attention: Any = pid_attention
        if mode == "compiled":
            torch.compiler.reset()
            attention = torch.compile(pid_attention, dynamic=False)
        attend = partial(operators.controlled, attention, law)

        def make(is_ours: bool, attend: Any = attend, is_training: bool = is_training) -> Run:
            run = operators.chain(size, setting, is_training, attend=attend)
            return _on("triton" if is_ours else "auto", run)

        what = f"xsa, {operators.BOTH if is_training else operators.FORWARD}"
        group = _group(what, size._asdict(), setting, amount=size.layers, mode=mode)
        # Compiled, it may not be; that leaves the eager times.
        yield measure(group, _pair("exclude", make, is_optional=mode == "compiled"), setting)


# Bias and GELU


def _mlp(shape: tuple[int, ...], device: torch.device) -> tuple[Mlp, Tensor, Tensor]:
    torch.manual_seed(0)
    mlp = Mlp(shape[-1], 4 * shape[-1]).to(device)
    x, grad = (torch.randn(shape, device=device).bfloat16() for _ in range(2))
    return mlp, x.requires_grad_(), grad


def _stepped(mlp: Mlp, x: Tensor, grad: Tensor, run: Any) -> list[Tensor]:
    with torch.autocast(x.device.type, torch.bfloat16):
        out = run(mlp, x)
    return [out, *torch.autograd.grad(out, (x, *mlp.parameters()), grad)]


def _gelu_problem(device: torch.device) -> str:
    shape = (64, 65, 192) if device.type == "cuda" else (2, 5, 16)
    mlp, x, grad = _mlp(shape, device)
    with kernels("triton"):
        found = _stepped(mlp, x, grad, feed_forward)
    wide = Mlp(shape[-1], 4 * shape[-1]).to(device, torch.float64)
    wide.load_state_dict(mlp.state_dict())
    exact = _stepped(wide, x.detach().double().requires_grad_(), grad.double(), _by_definition)
    off = max(map(relative, found, exact))
    return "" if off < 2e-2 else f"off float64 by {off:.1e}"


def _by_definition(mlp: Mlp, x: Tensor) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):
        return F.linear(
            F.gelu(F.linear(x, mlp.fc1.weight, mlp.fc1.bias)), mlp.fc2.weight, mlp.fc2.bias
        )


def _gelu(setting: BenchSetting) -> Iterator[list[Timing]]:
    shape = (512, 65, 192) if setting.is_gpu else (2, 5, 16)

    def make(is_ours: bool) -> Run:
        given = _mlp(shape, setting.device)
        run = torch.compile(feed_forward, dynamic=False) if setting.is_gpu else feed_forward
        return _on("triton" if is_ours else "auto", partial(_stepped, *given, run))

    sizes = dict(zip(("batch", "tokens", "width"), shape, strict=True))
    mode = "compiled" if setting.is_gpu else "eager"
    group = _group("MLP of a block, forward and backward", sizes, setting, mode=mode)
    wrap = recorded if setting.is_gpu else None
    yield measure(group, _pair("gelu", make, wrap=wrap), setting)


# Recorded attacks


def _attacked(setting: BenchSetting, size: attacks.AttackSize, gains: str | None) -> Any:
    kind = models.ModelSize("tiny", size.batch, size.image, size.patch)
    network = models.deit(kind, setting, gains).eval()
    images = models.pixels(size.batch, size.image, setting)
    return network, images, attacks.predictions(network, images)


def _recorded_problem(device: torch.device) -> str:
    """Replays may differ from eager steps only where two eager runs differ as well."""
    setting, said = BenchSetting(device=device), []
    size = attacks.LARGE if setting.is_gpu else attacks.SMALL
    for gains in (None, "0.4,0,0", GAINS):
        network, *given = _attacked(setting, size, gains)
        threat = PGD(eps=attacks.EPS, step_size=size.step, steps=size.steps, random_start=False)
        replayed = attacks.in_a_row(threat, network)
        first, again = (threat(network, *given) for _ in range(2))
        found = [replayed(*given) for _ in range(3)][-1]
        eager, own = (int((first != other).sum()) for other in (again, found))
        print(f"gains {gains}: pixels that differ, two eager runs {eager}, recorded {own}")
        if own > 2 * eager:
            said.append(f"gains {gains}: {own} pixels differ, {eager} between eager runs")
    return "; ".join(said)


def _recorded(setting: BenchSetting) -> Iterator[list[Timing]]:
    large = [attacks.LARGE, attacks.LARGE._replace(image=64, patch=8)]
    precisions: tuple[Any, ...] = ("float32", "bfloat16") if setting.is_gpu else ("float32",)
    sizes = large if setting.is_gpu else [attacks.SMALL]
    for size, precision, gains in product(sizes, precisions, (None, GAINS)):
        pgd = PGD(eps=attacks.EPS, step_size=size.step, steps=size.steps, random_start=False)
        threat = replace(pgd, precision=precision)

        def make(
            is_recorded: bool,
            threat: PGD = threat,
            size: attacks.AttackSize = size,
            gains: str | None = gains,
        ) -> Run:
            network, *given = _attacked(setting, size, gains)
            run = (
                attacks.in_a_row
                if is_recorded
                else (lambda threat, network: partial(threat, network))
            )
            return partial(run(threat, network), *given)

        group = _group(
            f"PGD-{size.steps}, {'PID' if gains else 'softmax twin'}",
            {"batch": size.batch, "image": size.image},
            setting,
            dtype=precision,
        )
        yield measure(group, _pair("recorded", make), setting)


PATHS = {
    "direct": Path(_direct_problem, _direct),
    "prefetch": Path(_prefetch_problem, _prefetch),
    "exclude": Path(_exclude_problem, _exclude),
    "gelu": Path(_gelu_problem, _gelu),
    "recorded": Path(_recorded_problem, _recorded),
}

if __name__ == "__main__":
    main()
