"""One benchmark or all of them: rows as they come, kept as records."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pidformer import results
from pidformer.bench.attack import attack
from pidformer.bench.generate import generate
from pidformer.bench.model import model
from pidformer.bench.operator import operator
from pidformer.bench.timing import BenchSetting, Timing, header
from pidformer.bench.train import train
from pidformer.devices import as_device
from pidformer.errors import unknown
from pidformer.files import out_folder

Sections = Mapping[str, Callable[[BenchSetting], Iterator[list[Timing]]]]
SECTIONS: Sections = {
    "operator": operator,
    "model": model,
    "train": train,
    "attack": attack,
    "generate": generate,
}
ALL = "all"
GPU_ROUNDS, CPU_ROUNDS = 7, 3
STEADY = 0.01
"""Without a number of rounds: how close a table's quartiles lie when it has had enough."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    header: Mapping[str, Any]
    rows: list[Timing]

    def to_dict(self) -> dict[str, Any]:
        return {"header": dict(self.header), "rows": [row.to_dict() for row in self.rows]}


def bench(
    section: str = ALL,
    *,
    sections: Sections | None = None,
    device: str = "auto",
    seed: int = 0,
    rounds: int | None = None,
    out: str | Path | None = None,
    command: str | None = None,
    begin: Callable[[Mapping[str, Any]], None] = lambda _: None,
    watch: Callable[[list[Timing]], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> Bench:
    """Measure one of `sections` (`SECTIONS` by default), or "all" of them.

    Without `rounds` a table takes at most seven (three on a CPU), fewer once they agree.

    `begin` is given the header (device and versions), `watch` the rows of each table as it is done,
    `say` what is about to be measured. With `out` every row goes to OUT/results.jsonl at once, kind
    "bench"; what was measured before an error or an interrupt stays.
    """
    sections = SECTIONS if sections is None else sections
    if section != ALL and section not in sections:
        raise unknown("section", section, [*sections, ALL])
    place = as_device(device)
    if place.type == "cuda" and place.index is not None:
        torch.cuda.set_device(place)  # CUDA graphs are recorded on the current one
    default = GPU_ROUNDS if place.type == "cuda" else CPU_ROUNDS
    setting = BenchSetting(
        device=place,
        seed=seed,
        rounds=default if rounds is None else rounds,
        steady=STEADY if rounds is None else None,
        say=say,
    )
    folder = None if out is None else out_folder(out)
    found = header(setting)
    begin(found)
    settings = {"command": command, "machine": results.machine(), **found}
    rows: list[Timing] = []
    for name in sections if section == ALL else (section,):
        for group in sections[name](setting):
            rows += group
            if folder is not None:
                for row in group:
                    results.append(folder, row.to_record(settings))
            watch(group)
    return Bench(header=found, rows=rows)
