"""`pidformer tune`: the best gains of a frozen model."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pidformer.cli.options import Data, Device, Json, Seed, command_line, print_json
from pidformer.display import plain_table

Levels = Annotated[str | None, typer.Option(help="Levels to try, as 0:0.8:0.2 or 0,0.1,0.3.")]


def tune(
    run: Annotated[Path, typer.Argument(help="Folder of a run, trained or converted.")],
    metric: Annotated[str, typer.Option(help="What to seek: clean, pgd, noise or ppl.")] = "clean",
    data: Data = None,
    search: Annotated[
        str, typer.Option(help=r"grid, or optuna (pip install 'pidformer\[search]').")
    ] = "grid",
    trials: Annotated[
        int | None, typer.Option(help="Gains to try; the whole grid, or 32 by optuna.")
    ] = None,
    p: Levels = None,
    i: Levels = None,
    d: Levels = None,
    beta: Levels = None,
    kappa_min: Annotated[
        float, typer.Option(help="Gains must be stable for kernel eigenvalues from here to 1.")
    ] = 0.0,
    split: Annotated[
        str, typer.Option(help="Split of the data: valid, train, test or another that the set has.")
    ] = "valid",
    limit: Annotated[int | None, typer.Option(help="Images, or tokens, to try them on.")] = None,
    batch_size: Annotated[int, typer.Option(help="Images at a time.")] = 128,
    plot: Annotated[
        Path | None, typer.Option(help="Clean against robust; RUN/tune-METRIC.png by default.")
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Try stable gains on a frozen model: nothing is trained, no weight changes.

    Every trial is recorded in the run's results.jsonl; a stopped search goes on where it was.

    Example: pidformer tune runs/softmax --metric pgd --data DIR --limit 500

    Example: pidformer tune runs/novels --metric ppl --data DIR --search optuna --trials 40
    """
    from pidformer import ranks
    from pidformer.files import check_place
    from pidformer.report.panels import check_format
    from pidformer.tune import Space, read_levels
    from pidformer.tune import tune as run_search
    from pidformer.tune.figure import pareto_figure

    given = {"p": p, "i": i, "d": d, "beta": beta}
    levels: Any = {
        name: read_levels(text, name) for name, text in given.items() if text is not None
    }
    figure = None
    if metric in ("pgd", "noise"):
        figure = plot or run / f"tune-{metric}.png"
        check_format(figure)
        check_place(figure)
    kinds: Any = {"metric": metric, "search": search}
    device = ranks.join(device)
    is_shown = not as_json and ranks.is_main()
    found = run_search(
        run,
        data=data,
        space=Space(kappa_min=kappa_min, **levels),
        trials=trials,
        split=split,
        limit=limit,
        batch_size=batch_size,
        seed=seed,
        device=device,
        command=command_line(),
        watch=lambda record, is_old: _say(record, is_old) if is_shown else None,
        **kinds,
    )
    if not ranks.is_main():
        return
    if figure is not None:
        pareto_figure(found, metric, figure)
    if as_json:
        print_json(found.to_dict() | {"figure": figure and str(figure)})
        return
    names = [n for n in dict.fromkeys(("clean", metric)) if n in found.best.metrics]
    table = plain_table("gains", numbers=names)
    for title, record in (
        *(("front", r) for r in found.front),
        ("plain", found.trials[0]),
        ("best", found.best),
    ):
        table.add_row(
            f"{title}: {record.settings['gains']}", *[f"{record.metrics[n]:.2f}" for n in names]
        )
    Console().print(table)
    if figure:
        typer.echo(f"figure {figure}")


def _say(record: Any, is_old: bool) -> None:
    names = [name for name in ("clean", "pgd", "noise", "ppl") if name in record.metrics]
    numbers = ", ".join(f"{name} {record.metrics[name]:.2f}" for name in names)
    typer.echo(f"{record.settings['gains']}: {numbers}{' (recorded)' if is_old else ''}", err=True)
