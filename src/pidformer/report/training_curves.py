"""Training loss and validation score over epochs, from the log of each run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pidformer.report.run import Run
from pidformer.robustness.compare import Group, Rows, group_runs, named_apart

HEADLINES = {"top1": "top-1, per cent", "miou": "mIoU, per cent", "ppl": "perplexity"}


class Curves(NamedTuple):
    """Lines of one model: one for each run, as (x, y)."""

    label: str
    is_controlled: bool
    runs: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...]
    is_dashed: bool = False
    band: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """Of a single run: the ends of its intervals."""


def training_groups(runs: Sequence[Run], task: str) -> list[Group]:
    """Models of a task by their training: rows "train" (the last record)."""
    models: list[Rows] = [
        {"train": run.of("train")[-1]} for run in runs if run.task == task and run.of("train")
    ]
    return named_apart(group_runs(models))


def training_curves(
    runs: Sequence[Run], task: str
) -> tuple[list[Curves], list[Curves], str | None]:
    """Training loss and validation score over epochs, and which score it is."""
    by_folder = {str(run.folder): run for run in runs}
    losses, scores = [], []
    headline: str | None = None
    for group in training_groups(runs, task):
        members = [by_folder[str(row["train"].settings["model"])] for row in group.runs]
        loss_lines, score_lines = [], []
        for run in members:
            logged = [r for r in run.of("train") if "epoch" in r.metrics]
            epochs = {r.step: r.metrics["epoch"] for r in logged}
            loss_lines.append(_line([(r.metrics["epoch"], r.metrics["loss"]) for r in logged]))
            scored = [r for r in run.of("evaluate") if r.step in epochs]
            names = [n for n in HEADLINES if all(n in r.metrics for r in scored)]
            if scored and names:
                headline = headline or names[0]
                points = [(epochs[r.step], r.metrics[headline]) for r in scored]
                score_lines.append(_line(points))
        held = group.is_controlled
        losses.append(Curves(group.label, held, tuple(loss_lines)))
        if score_lines:
            scores.append(Curves(group.label, held, tuple(score_lines)))
    return losses, scores, headline


def _line(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return tuple(x for x, _ in points), tuple(y for _, y in points)
