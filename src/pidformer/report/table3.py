"""The paper's Table 3 from records: perplexity of language models, twins side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pidformer import results
from pidformer.errors import InputError
from pidformer.statistics import mean_over_seeds

Newest = Mapping[tuple[str, str], results.Record]
"""By (text, row), the newest record of a run."""


@dataclass(frozen=True)
class Column:
    """Runs that differ in their seed alone."""

    label: str
    runs: tuple[Newest, ...]

    def ppl(self, key: tuple[str, str]) -> tuple[float, float, float] | None:
        """Mean perplexity with its 95 % interval: over seeds, of one run over blocks of text."""
        records = [run[key] for run in self.runs if key in run]
        if not records:
            return None
        if len(records) == 1:
            m = records[0].metrics
            return m["ppl"], m["ppl_low"], m["ppl_high"]
        found = mean_over_seeds([r.metrics["ppl"] for r in records])
        return found.mean, found.low, found.high

    def blocks(self, key: tuple[str, str]) -> np.ndarray | None:
        """Loss of each block of the text, averaged over seeds."""
        found = [run[key].details.get("block_nll") for run in self.runs if key in run]
        same = len({len(blocks) for blocks in found if blocks}) == 1
        return np.mean([b for b in found if b], axis=0) if same else None


def language_table(runs: Sequence[str | Path]) -> str:
    """Markdown: a row for each text and protocol, a column for each controller.

    Seeds of one recipe and controller share a column. The last columns compare with the first one
    on the same blocks of text: change of the loss in nats, with a 95 % interval over blocks; below
    zero is better.
    """
    columns = _columns(runs)
    keys = list(dict.fromkeys(key for c in columns for run in c.runs for key in run))
    if not keys:
        raise InputError("none of these runs has been evaluated; use evaluate_language first")
    others = [f"{c.label} less {columns[0].label}, nats" for c in columns[1:]]
    heads = ["text", "protocol", *(f"{c.label} ({len(c.runs)})" for c in columns), *others]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for key in keys:
        cells = [_cell(column.ppl(key)) for column in columns]
        cells += [_change(columns[0].blocks(key), column.blocks(key)) for column in columns[1:]]
        lines.append("| " + " | ".join([*key, *cells]) + " |")
    return "\n".join(lines) + "\n"


def _columns(runs: Sequence[str | Path]) -> list[Column]:
    grouped: dict[tuple[Any, Any], list[Newest]] = {}
    for run in runs:
        newest: dict[tuple[str, str], results.Record] = {}
        for record in results.read(run):
            if record.kind == "language":
                s = record.settings
                name = f"{s['row']}/first {s['limit']}" if s["limit"] else s["row"]
                newest[Path(s["data"]).name, name] = record
        if newest:
            s = next(iter(newest.values())).settings
            grouped.setdefault((s["recipe"], s["gains"]), []).append(newest)
    return [
        Column("softmax" if gains is None else str(gains), tuple(found))
        for (_, gains), found in grouped.items()
    ]


def _cell(found: tuple[float, float, float] | None) -> str:
    if found is None:
        return "-"
    ppl, low, high = found
    return f"{ppl:.2f}" if math.isnan(low) else f"{ppl:.2f} [{low:.2f}, {high:.2f}]"


def _change(first: np.ndarray | None, second: np.ndarray | None) -> str:
    if first is None or second is None or len(first) != len(second):
        return "-"
    change = second - first
    if len(change) < 2:
        return f"{change.mean():+.4f}"
    half = 1.96 * change.std(ddof=1) / math.sqrt(len(change))
    return f"{change.mean():+.4f} [{change.mean() - half:+.4f}, {change.mean() + half:+.4f}]"
