"""The goals on one H200, and what is measured: all of `pidformer bench`, then a table of goals.

python -m benchmarks goals [--device cuda] [--rounds 7] [--out DIR] [--json]
python -m benchmarks goals --read DIR       # of rows that `pidformer bench --out DIR` has kept
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks._measure import measured
from pidformer import results
from pidformer.bench import SECTIONS, attack, generate, model, operator, train
from pidformer.bench.timing import Timing
from pidformer.cli.options import tables


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A limit and, where it was measured, the number next to it."""

    text: str
    limit: float
    is_most: bool
    """Whether the limit is the most, rather than the least."""
    measured: float | None

    @property
    def is_reached(self) -> bool | None:
        if self.measured is None:
            return None
        return self.measured <= self.limit if self.is_most else self.measured >= self.limit

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"is_reached": self.is_reached}


Finder = Callable[["_Rows"], float | None]


class _Rows:
    """Rows by what they are of."""

    def __init__(self, rows: Sequence[Timing]) -> None:
        self._rows = rows

    def find(self, what: str, label: str, mode: str = "", **sizes: int) -> Timing | None:
        for row in self._rows:
            is_same = row.what == what and row.label == label and mode in ("", row.mode)
            if is_same and sizes.items() <= row.sizes.items():
                return row
        return None

    def ratio(self, what: str, label: str, mode: str = "", **sizes: int) -> float | None:
        row = self.find(what, label, mode, **sizes)
        return row.ratio if row else None


def goals(rows: Sequence[Timing]) -> list[Goal]:
    """Every goal, measured or not."""
    found = _Rows(rows)
    return [
        Goal(text=text, limit=limit, is_most=is_most, measured=read(found))
        for text, limit, is_most, read in _goals()
    ]


def _goals() -> list[tuple[str, float, bool, Finder]]:
    """Text, limit, whether that is the most, and what finds the number."""
    long, wide = {"tokens": 4096, "head_dim": 64}, {"batch": 256, "tokens": 197}
    steps = [
        ("tiny", model.TRAINING, "graphs", 1.04, model.PID),
        ("tiny", model.INFERENCE, "graphs", 1.03, model.PID),
        ("small", model.TRAINING, "compiled", 1.03, model.PID),
        ("base", model.TRAINING, "compiled", 1.03, model.PID),
        ("tiny", model.INFERENCE, "graphs", 1.01, model.P),
    ]
    attacks = (("FGSM", ""), (_PGD, ""), (_PGD, ", early stop"), (_PGD, ", bfloat16"))
    return [
        *(_step(*step, twin) for step in steps for twin in (model.TWIN, model.SDPA_TWIN)),
        *(_peak(mode) for mode in ("compiled", "graphs")),
        *(_throughput(mode) for mode in ("compiled", "graphs")),
        (
            "64 pixels, patch 8: training loop with PID, images/s",
            80_000,
            False,
            lambda rows: _value(
                rows.find(f"DeiT-tiny, {train.LOOP}", model.PID, image=64, patch=8, depth=12)
            ),
        ),
        *(
            _ratio(
                f"language model, decoding, batch {batch}: tokens/s, PID / softmax twin",
                *(0.97, False, generate.DECODING, generate.PID, "compiled"),
                batch=batch,
                words=267735,
            )
            for batch in (1, 64)
        ),
        *(
            _ratio(f"{what}, {text}", limit, True, what, operator.PID, **sizes)
            for text, limit, sizes in (
                ("4096 tokens of 64: PID / attention", 1.05, long),
                ("256 x 3 heads of 197 tokens: PID / attention, eager", 1.6, wide),
            )
            for what in (operator.FORWARD, operator.BOTH)
        ),
        _ratio(
            f"{operator.BOTH}, batch 1, 16 heads of 256 tokens: PID / attention, recorded",
            *(1.1, True, operator.BOTH, operator.PID, "recorded"),
            **operator.FEW._asdict(),
        ),
        *(
            _ratio(
                f"{what}{way}, recorded: images/s, ours / a minimal loop in float32",
                *(1.5, False, f"DeiT-tiny, {what}", attack.OURS + way + attack.IN_A_ROW),
                **_IMAGES,
            )
            for what, way in attacks
        ),
        *(
            _ratio(
                f"{_PGD}{way}: images/s, PID / softmax twin",
                *(0.95, False, f"DeiT-tiny, {_PGD} of the twins{way}", model.PID),
                **_IMAGES,
            )
            for way in ("", attack.IN_A_ROW)
        ),
    ]


_PGD = f"PGD-{attack.LARGE.steps}"
_DEIT, _IMAGES = {"image": 224, "patch": 16}, {"batch": 64, "image": 224}
_TINY = f"DeiT-tiny, {model.TRAINING}"


def _ratio(
    text: str, limit: float, is_most: bool, what: str, label: str, mode: str = "", /, **sizes: int
) -> tuple[str, float, bool, Finder]:
    return text, limit, is_most, lambda rows: rows.ratio(what, label, mode, **sizes)


def _step(
    name: str, step: str, mode: str, limit: float, own: str, twin: str
) -> tuple[str, float, bool, Finder]:
    what = f"DeiT-{name}, {step}"
    text = f"DeiT-{name}/16-224 {step}, {own} / {twin}, {mode}"
    return (
        text,
        limit,
        True,
        lambda rows: _over(
            rows.ratio(what, own, mode, **_DEIT), rows.ratio(what, twin, mode, **_DEIT)
        ),
    )


def _peak(mode: str) -> tuple[str, float, bool, Finder]:
    def found(rows: _Rows) -> float | None:
        row = rows.find(_TINY, model.PID, mode, **_DEIT)
        return row.peak_ratio if row else None

    text = f"DeiT-tiny/16-224 peak training memory, PID / softmax twin, {mode}"
    return text, 1.01, True, found


def _throughput(mode: str) -> tuple[str, float, bool, Finder]:
    def found(rows: _Rows) -> float | None:
        theirs = rows.find(_TINY, model.TIMM, mode, **_DEIT)
        return _over(_value(theirs), _value(rows.find(_TINY, model.PID, "graphs", **_DEIT)))

    text = f"DeiT-tiny/16-224 training throughput, PID with CUDA graphs / timm's, {mode}"
    return text, 1.25, False, found


def _value(row: Timing | None) -> float | None:
    return row.value if row else None


def _over(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one / other


def goal_table(goals: Sequence[Goal]) -> Table:
    table = Table("goal")
    for heading in ("limit", "measured", "reached"):
        table.add_column(heading, justify="right", no_wrap=True)
    words = {True: "yes", False: "no", None: "not measured"}
    for goal in goals:
        sign = "<=" if goal.is_most else ">="
        measured = goal.measured
        number = "-" if measured is None else f"{measured:,.0f}" if measured > 100 else None
        table.add_row(
            goal.text,
            f"{sign} {goal.limit:,.0f}" if goal.limit > 100 else f"{sign} {goal.limit:.2f}",
            number or f"{measured:.3f}",
            words[goal.is_reached],
        )
    return table


def kept(folder: Path) -> list[Timing]:
    """Rows of a GPU that were kept in a folder; of those measured again the last."""
    names = {field.name for field in fields(Timing)}
    rows: dict[tuple[Any, ...], Timing] = {}
    for record in results.read(folder):
        if record.kind == "bench" and record.settings.get("device") != "CPU":
            found = {**record.settings, **record.metrics}
            row = Timing(**{name: value for name, value in found.items() if name in names})
            key = (row.section, row.what, row.label, row.mode, row.dtype, *row.sizes.items())
            rows[key] = row
    return list(rows.values())


def show(found: Sequence[Goal]) -> None:
    console = tables()
    console.print("\ngoals, one H200", style="bold")
    console.print(goal_table(found))


def main() -> None:
    if sys.argv[1:2] == ["--read"] and len(sys.argv) == 3:
        show(goals(kept(Path(sys.argv[2]))))
        return
    done, options = measured(__doc__, SECTIONS)
    # A CPU measures other sizes, which no goal is about.
    found = goals([] if done.header["device"] == "CPU" else done.rows)
    if options.json:
        print(json.dumps(done.to_dict() | {"goals": [goal.to_dict() for goal in found]}))
        return
    show(found)


if __name__ == "__main__":
    main()
