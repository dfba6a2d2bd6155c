"""What training and measuring took, from records."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from pidformer.report.published import PublishedRun
from pidformer.report.run import Run
from pidformer.report.table_view import NOTHING, CellView, Column, LineView, Sources, TableView
from pidformer.report.training_curves import training_groups
from pidformer.results import Record


def cost_view(runs: Sequence[Run], sources: Sources) -> TableView | None:
    """What training and measuring took."""
    lines = []
    for task in dict.fromkeys(run.task for run in runs):
        by_folder = {str(run.folder): run for run in runs}
        for group in training_groups(runs, task):
            members = [by_folder[str(row["train"].settings["model"])] for row in group.runs]
            lasts = [row["train"] for row in group.runs]
            source = sources.add(f"Training, {group.label}", "train", lasts)
            speeds = [_speed(run) for run in members]
            spent = [seconds for run in members if (seconds := training_seconds(run)) is not None]
            measuring = [
                sum(r.metrics.get("seconds", 0.0) for r in run.records if r.kind != "train")
                for run in members
            ]
            cells = (
                _plain([s for s in speeds if s is not None], "{:,.0f}", source),
                _plain(spent, "{:,.0f} s", source),
                _plain(measuring, "{:,.0f} s", None) if any(measuring) else NOTHING,
            )
            lines.append(LineView(group.label, _machines(members), cells))
    if not lines:
        return None
    return TableView(
        title="What it cost",
        caption="Mean over runs. Training speed is the median over the log; training time is "
        "computed from it and leaves out evaluation and start. Measuring is the sum over the "
        "run's rows.",
        columns=(
            Column("Model"),
            Column("Training", "images or tokens per second"),
            Column("Training time", "per run"),
            Column("Measuring", "per run"),
        ),
        lines=tuple(lines),
    )


def _plain(values: Sequence[float], shape: str, source: str | None) -> CellView:
    if not values:
        return NOTHING
    return CellView(shape.format(sum(values) / len(values)), "", source)


def _speed(run: Run) -> float | None:
    found = [speed for record in run.of("train") if (speed := _logged_speed(record)) is not None]
    return median(found) if found else None


def training_seconds(run: Run) -> float | None:
    """Time in training steps, from the speeds that the log holds; evaluation aside."""
    if isinstance(run, PublishedRun):
        return run.header.metrics.get("train_seconds")
    recipe = run.recipe or {}
    size, last, total = recipe.get("data", {}).get("batch_size"), 0, 0.0
    for record in run.of("train"):
        speed = _logged_speed(record)
        is_text = "images_per_second" not in record.metrics
        length = (recipe.get("text") or {}).get("length", 1) if is_text else 1
        if not size or not speed or record.step is None:
            return None
        total += (record.step - last) * size * length / speed
        last = record.step
    return total or None


def _logged_speed(record: Record) -> float | None:
    """Images or tokens per second."""
    return record.metrics.get("images_per_second", record.metrics.get("tokens_per_second"))


def _machines(runs: Sequence[Run]) -> str:
    names = dict.fromkeys(
        str(machine.get("gpu") or f"{machine.get('cores')} cores")
        for run in runs
        for r in run.records
        if isinstance(machine := r.settings.get("machine"), dict)
    )
    return ", ".join(names)
