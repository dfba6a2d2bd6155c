"""`pidformer tune`: the best gains of a frozen model."""

from pathlib import Path
from typing import Annotated, Any

import typer

from pidformer.cli.options import Data, Device, Json, Seed, command_line, print_json, tables
from pidformer.display import plain_table
from pidformer.errors import InputError

METRICS = ("clean", "pgd", "noise", "ppl")
Levels = Annotated[str | None, typer.Option(help="Levels to try, as 0:0.8:0.2 or 0,0.1,0.3.")]


def tune(
    run: str,
    metric: str | None = None,
    data: Data = None,
    out: Path | None = None,
    search: str = "grid",
    trials: int | None = None,
    p: Levels = None,
    i: Levels = None,
    d: Levels = None,
    beta: Levels = None,
    kappa_min: float = 0.0,
    split: str = "valid",
    limit: int | None = None,
    batch_size: int = 128,
    plot: Path | None = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Try stable gains on a frozen model: nothing is trained, no weight changes.

    Plain attention, gains of zero, is always tried; the others are compared with it on the same
    images or text. Every trial is recorded in results.jsonl; a stopped search goes on.

    Example: pidformer tune runs/softmax --metric pgd --data DIR --limit 500
    Example: pidformer tune runs/novels --data DIR --search optuna --trials 40
    Example: pidformer tune hf:FOLDER --data TEXTS --p 0.01,0.03,0.1 --limit 2048 --out DIR

    Options:
        run: Folder of a run, or hf:FOLDER (of a language model or image classifier) or timm:NAME.
        --metric: What to seek: clean (images, the default), pgd, noise, or ppl (text, the default).
        --out: For records and figure of models that are no run folder.
        --search: grid, or optuna (pip install 'pidformer[search]').
        --trials: Gains to try; the whole grid, or 32 by optuna.
        --kappa-min: Gains must be stable for kernel eigenvalues from here to 1.
        --split: Split of the data: valid, train, test or another that the set has.
        --limit: Images, or tokens, to try them on.
        --batch-size: Images at a time.
        --plot: Clean against robust; tune-METRIC.png beside the records by default.
    """
    from pidformer import ranks
    from pidformer.files import check_place
    from pidformer.report.panels import check_format
    from pidformer.report.table_view import number_text
    from pidformer.tune import Space, read_levels
    from pidformer.tune import tune as run_search
    from pidformer.tune.figure import pareto_figure
    from pidformer.tune.run import trials_folder

    given = {"p": p, "i": i, "d": d, "beta": beta}
    levels: Any = {
        name: read_levels(text, name) for name, text in given.items() if text is not None
    }
    figure = None
    if metric in ("pgd", "noise"):
        figure = plot or trials_folder(run, out, data) / f"tune-{metric}.png"
        check_format(figure)
        check_place(figure)
    elif plot is not None:
        raise InputError("--plot shows clean against robust; it needs --metric pgd or noise")
    kinds: Any = {"metric": metric, "search": search}
    device = ranks.join(device)
    is_shown = not as_json and ranks.is_main()
    found = run_search(
        run,
        data=data,
        out=out,
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
        pareto_figure(found, str(metric), figure)
    if as_json:
        print_json(found.to_dict() | {"figure": figure and str(figure)})
        return
    names = [name for name in METRICS if name in found.best.metrics]
    unit, digits = ("nats", 4) if "ppl" in names else ("points", 2)
    table = plain_table("gains", numbers=[*names, f"minus plain, {unit}"])
    rows: Any = {"front": found.front} if figure else {"tried": found.trials[1:]}
    rows |= {"plain": found.trials[:1], "best": [found.best]}
    for title, record in ((name, one) for name in rows for one in rows[name]):
        numbers = (f"{record.metrics[name]:.2f}" for name in names)
        minus = found.difference(record)
        shown = number_text(minus, digits, sign="+") if minus else "-"
        table.add_row(f"{title}: {record.settings['gains']}", *numbers, shown)
    tables().print(table)
    typer.echo(found.verdict)
    if figure:
        typer.echo(f"figure {figure}")


def _say(record: Any, is_old: bool) -> None:
    names = [name for name in METRICS if name in record.metrics]
    numbers = ", ".join(f"{name} {record.metrics[name]:.2f}" for name in names)
    typer.echo(f"{record.settings['gains']}: {numbers}{' (recorded)' if is_old else ''}", err=True)
