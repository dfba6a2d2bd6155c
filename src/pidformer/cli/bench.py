"""`pidformer bench`: what the controller costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pidformer.cli.options import Device, Json, Seed, command_line, print_json, tables

if TYPE_CHECKING:
    from pidformer.bench import Bench, Timing


def bench(
    section: str = "all",
    rounds: int | None = None,
    out: Path | None = None,
    seed: Seed = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Measure what the controller costs, as ratios to the softmax twin, timm and flash attention.

    Contenders take turns in one process. A CPU gets small sizes, a GPU those of models in use. Stop
    it at any time: what was printed, and written, stays.

    Example: pidformer bench model --device cuda --json
    Example: pidformer bench all --out bench

    Options:
        section: operator, model, train, attack, generate, or all.
        --rounds: Turns of each contender; 7 on a GPU, 3 on a CPU.
        --out: Folder for results.jsonl.
    """
    how: Any = {"rounds": rounds, "out": out, "seed": seed, "device": device}
    done = show_bench(section, is_quiet=as_json, command=command_line(), **how)
    if as_json:
        print_json(done.to_dict())


def show_bench(section: str, *, is_quiet: bool, **options: Any) -> Bench:
    """Measure with the `options` of `bench`, and print each table as soon as it is done."""
    from pidformer.bench import bench as run_bench

    console = tables()
    console.quiet = is_quiet
    status = console.status("") if console.is_terminal and not is_quiet else None

    def say(text: str) -> None:
        if status is not None:
            status.update(text)
            status.start()

    def watch(rows: list[Timing]) -> None:
        if status is not None:
            status.stop()
        console.print(f"\n{_title(rows)}", style="bold", highlight=False)
        console.print(_table(rows))

    def begin(found: Mapping[str, Any]) -> None:
        console.print(_head(found), highlight=False)

    try:
        return run_bench(section, begin=begin, watch=watch, say=say, **options)
    finally:
        if status is not None:
            status.stop()


def _head(found: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    where = found["device"]
    if where == "CPU":
        where = f"CPU, {found['threads']} of {found['cores']} threads"
    rounds = f"{found['rounds']} round{'s' * (found['rounds'] != 1)}"
    return f"{where}; {found['dtype']}; {rounds}, seed {found['seed']}; {versions}"


def _title(rows: list[Timing]) -> str:
    first = rows[0]
    shared = first.sizes.keys() - set(_varying(rows))
    sizes = [f"{name} {number}" for name, number in first.sizes.items() if name in shared]
    return ", ".join(part for part in (first.what, *sizes, first.dtype, first.mode) if part)


def _varying(rows: list[Timing]) -> list[str]:
    return [name for name in rows[0].sizes if len({row.sizes[name] for row in rows}) > 1]


def _table(rows: list[Timing]) -> Any:
    from pidformer.display import plain_table

    table = plain_table()
    varying = _varying(rows)
    has_peak = any(row.peak_bytes is not None for row in rows)
    has_note = any(row.note for row in rows)
    peaks = ("peak memory", "ratio") if has_peak else ()
    for heading in (*varying, "", "median", "quartiles", "ratio", "quartiles", *peaks):
        side: Any = "right" if heading else "left"
        table.add_column(heading, justify=side, no_wrap=heading != "quartiles")
    if has_note:
        table.add_column("note")
    for row in rows:
        cells = [
            *(str(row.sizes[name]) for name in varying),
            row.label,
            shown(row.value, row.unit),
            _range(shown(row.low, row.unit), shown(row.high, row.unit)),
            _ratio(row.ratio),
            _range(_ratio(row.ratio_low), _ratio(row.ratio_high)),
        ]
        if has_peak:
            peak = row.peak_bytes
            cells += ["-" if peak is None else f"{peak / 1e6:,.1f} MB", _ratio(row.peak_ratio)]
        table.add_row(*cells, *([row.note] if has_note else []))
    return table


def shown(value: float | None, unit: str) -> str:
    """A time, a rate or bytes, as a person reads them."""
    if value is None:
        return "-"
    if unit == "bytes":
        return f"{value / 1e6:,.3f} MB"
    if unit != "s":
        return f"{value:,.1f} {unit}" if value < 100 else f"{value:,.0f} {unit}"
    scale, name = (1, "s") if value >= 1 else (1e3, "ms") if value >= 1e-3 else (1e6, "us")
    return f"{scale * value:.3g} {name}" if scale * value < 100 else f"{scale * value:.1f} {name}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _range(low: str, high: str) -> str:
    """Without the unit where both have the same: the median beside them shows it."""
    if low == "-":
        return "-"
    (first, _, unit), (last, _, other) = low.partition(" "), high.partition(" ")
    return f"{first} to {last}" if unit == other else f"{low} to {high}"
