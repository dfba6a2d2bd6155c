"""`pidformer stability`: which gains are stable, and by how much."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pidformer.cli.options import Json, Seed, print_facts, print_json
from pidformer.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from pidformer.control import Derivative, PIDGains, StabilityReport


def stability(
    preset: Annotated[
        str | None,
        typer.Option(
            help="The paper's deit, segmenter or lm; default; or another method (laplacian, "
            "resformer, ...). Without gains: deit."
        ),
    ] = None,
    gains: Annotated[str | None, typer.Option(help="P,I,D or P,I,D,BETA.")] = None,
    design: Annotated[
        str | None, typer.Option(help="Fastest gains of this kind: P, PD, PI or PID.")
    ] = None,
    derivative: Annotated[
        str,
        typer.Option(help="explicit (Definition 1, the network) or implicit (paper's equations)."),
    ] = "explicit",
    kappa_min: Annotated[
        float, typer.Option(help="Smallest kernel eigenvalue to consider; 0 for causal attention.")
    ] = 0.0,
    kernel: Annotated[
        Path | None, typer.Option(help="A row-stochastic (N, N) matrix, .npy: use its spectrum.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write the figure here (.png .svg .pdf).")
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Judge the gains of a controller: poles, worst radius, stable region, settling depth.

    Example: pidformer stability --preset deit --plot deit.png

    Example: pidformer stability --design PI --kappa-min -0.2

    Example: pidformer stability --preset deit --derivative implicit
    """
    from pidformer.control import PIDGains, as_feedback, design_gains, stability_report

    if sum(option is not None for option in (preset, gains, design)) > 1:
        raise InputError("give one of --preset, --gains and --design, not several")
    form = _read_derivative(derivative, design, plot)
    matrix = _load_kernel(kernel) if kernel else None
    kappas = None
    if matrix is not None:
        from pidformer.analysis import eigenvalues

        kappas = eigenvalues(matrix)
        kappa_min = min(1.0, max(-1.0, float(kappas.real.min())))
    if design is not None:
        chosen = design_gains(design, kappa_min)
    else:
        chosen = PIDGains.parse(gains) if gains is not None else as_feedback(preset or "deit")
    report = stability_report(chosen, kappa_min, kappas=kappas, derivative=form)
    rows = _pole_rows(chosen, kappa_min, kappas, form)
    if plot is not None:
        from pidformer.report.stability import stability_figure

        stability_figure(chosen, plot, kappa_min=kappa_min, kernel=matrix, seed=seed)
    if as_json:
        print_json(report.to_dict() | {"poles": rows})
    else:
        _print(report, rows)
        if plot is not None:
            typer.echo(f"\nfigure: {plot}")


def _read_derivative(name: str, design: str | None, plot: Path | None) -> Derivative:
    """The derivative by its name; designs and figures are those of the network, so explicit."""
    from pidformer.control.stability import check_derivative

    form = check_derivative(name)
    for option, value in (("--design", design), ("--plot", plot)):
        if form == "implicit" and value is not None:
            raise InputError(
                f"{option} knows the network's explicit derivative only; "
                f"leave out {option} or --derivative implicit"
            )
    return form


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


def _pole_rows(
    gains: PIDGains, kappa_min: float, kappas: Tensor | None, derivative: Derivative
) -> list[dict[str, Any]]:
    """Poles at eleven kappa across the range, or at the eleven slowest eigenvalues."""
    import torch

    from pidformer.control import poles, spectral_radius

    if kappas is None:
        points = torch.linspace(kappa_min, 1, 11, dtype=torch.float64).to(torch.complex128)
    else:
        radii = spectral_radius(gains, kappas, derivative=derivative)
        points = kappas[radii.argsort(descending=True)[:11]]
    roots = poles(gains, points, derivative=derivative)
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
    text = f"{real:+.4f}"
    return text if abs(imaginary) < 5e-5 else f"{text}{imaginary:+.4f}i"
