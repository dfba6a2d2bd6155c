"""`pidformer stability`: which gains are stable, and by how much."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pidformer.cli.options import Json, Seed, print_facts, print_json
from pidformer.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from pidformer.control import PIDGains, StabilityReport


def stability(
    preset: str | None = None,
    gains: str | None = None,
    design: str | None = None,
    derivative: str = "explicit",
    step: float = 1.0,
    kappa_min: float = 0.0,
    kernel: Path | None = None,
    disc: bool = False,
    plot: Path | None = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Judge the gains of a controller: poles, worst radius, stable region, settling depth.

    Example: pidformer stability --preset deit --plot deit.png
    Example: pidformer stability --design PI --kappa-min -0.2
    Example: pidformer stability --preset deit --derivative implicit
    Example: pidformer stability --design PI --disc --step 0.5

    Options:
        --preset: The paper's deit, segmenter or lm; default; or another method (laplacian,
            resformer, ...). Without gains: deit.
        --gains: P,I,D or P,I,D,BETA; behind them implicit, step=0.5.
        --design: Fastest gains of this kind: P, PD, PI or PID.
        --derivative: explicit (Definition 1, the network) or implicit (paper's equations).
        --step: Depth that a layer stands for, in (0, 1]; 1 is the paper's.
        --kappa-min: Smallest kernel eigenvalue to consider; 0 for causal attention.
        --kernel: A row-stochastic (N, N) matrix, .npy: use its spectrum.
        --disc: Judge, or design, for all attention: the unit disc.
        --plot: Write the figure here (.png .svg .pdf).
    """
    from pidformer.control import PIDGains, as_spectrum, design_gains, discretised, stability_report
    from pidformer.control.feedback import is_linear
    from pidformer.control.stability import check_range

    if sum(option is not None for option in (preset, gains, design)) > 1:
        raise InputError("give one of --preset, --gains and --design, not several")
    if sum(map(bool, (kernel, disc, kappa_min))) > 1:
        raise InputError("give one of --kappa-min, --kernel and --disc, not several")
    check_range(kappa_min)
    matrix = _load_kernel(kernel) if kernel else None
    kappas: Any = "disc" if disc else None
    if matrix is not None:
        from pidformer.analysis import eigenvalues

        kappas = eigenvalues(matrix)
        kappa_min = min(1.0, max(-1.0, float(kappas.real.min())))
    form: Any = {"derivative": derivative, "step": step}
    if design is not None:
        chosen = design_gains(design, kappa_min, kappas=kappas, **form)
    else:
        if gains is not None and "," not in gains:
            PIDGains.parse(gains)  # a name is a preset
        named = "deit" if preset is None else preset
        chosen = discretised(named if gains is None else gains, **form)
    if plot is not None and type(chosen) is not PIDGains:
        raise InputError(f"--plot draws the loop of PID gains; leave it out for {chosen!r}")
    if not is_linear(chosen):
        _print_bound(chosen, as_json)
        return
    report = stability_report(chosen, kappa_min, kappas=kappas)
    rows = _pole_rows(chosen, kappa_min, None if kappas is None else as_spectrum(kappas)[0])
    if plot is not None:
        from pidformer.report.stability import stability_figure

        stability_figure(chosen, plot, kappa_min=kappa_min, kernel=matrix, seed=seed)
    if as_json:
        print_json(report.to_dict() | {"poles": rows})
    else:
        _print(report, rows)
        if plot is not None:
            typer.echo(f"\nfigure: {plot}")


def _print_bound(law: Any, as_json: bool) -> None:
    """What holds for a law that depends on the values, and so has no poles."""
    from rich.console import Console

    from pidformer.control.feedback import token_bound

    bound = token_bound(law)
    verdict = "not linear, so without poles: measured only, by pidformer analyze of a trained model"
    if as_json:
        facts = {"gains": law.to_dict(), "kind": law.kind, "stable": None, "verdict": verdict}
        print_json(facts | {"token_bound": bound})
        return
    times = "" if bound == 1 else f"{bound:g} times "
    within = f"no output token is longer than {times}the longest value"
    lines = {"gains": f"{law!r} ({law.kind})", "verdict": verdict}
    lines["bound"] = "none" if bound is None else within
    print_facts(Console(), "\n".join(f"{name:<15} {text}" for name, text in lines.items()))


def _load_kernel(path: Path) -> Tensor:
    import numpy as np

    from pidformer.control import as_kernel

    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise InputError(f"{path} is not a readable .npy file ({error})") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu":
        raise InputError(f"{path} must hold one array of real numbers; save it with numpy.save")
    return as_kernel(array)


def _pole_rows(gains: PIDGains, kappa_min: float, kappas: Tensor | None) -> list[dict[str, Any]]:
    """Poles at eleven kappa across the range, or at the eleven slowest eigenvalues."""
    import torch

    from pidformer.control import poles, spectral_radius

    if kappas is None:
        points = torch.linspace(kappa_min, 1, 11, dtype=torch.float64).to(torch.complex128)
    else:
        radii = spectral_radius(gains, kappas)
        points = kappas[radii.argsort(descending=True)[:11]]
    roots = poles(gains, points)
    return [
        {
            "kappa": [float(kappa.real), float(kappa.imag)],
            "poles": [[float(z.real), float(z.imag)] for z in row],
            "radius": float(row.abs().max()),
        }
        for kappa, row in zip(points, roots, strict=True)
    ]


def _print(report: StabilityReport, rows: list[dict[str, Any]]) -> None:
    from rich.console import Console

    from pidformer.display import plain_table

    console = Console()
    print_facts(console, str(report))
    table = plain_table(numbers=("kappa", "radius", "poles"), title="poles of a layer")
    for row in rows:
        style = "red" if row["radius"] >= 1 else None
        shown = "  ".join(_complex(*z) for z in row["poles"])
        table.add_row(_complex(*row["kappa"]), f"{row['radius']:.4f}", shown, style=style)
    console.print()
    console.print(table)


def _complex(real: float, imaginary: float) -> str:
    text = f"{round(real, 4) + 0.0:+.4f}"  # no -0.0000
    return text if abs(imaginary) < 5e-5 else f"{text}{imaginary:+.4f}i"
