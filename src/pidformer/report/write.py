"""One report from any number of run folders: HTML that needs nothing else, Markdown, figures."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pidformer.control import PIDGains
from pidformer.fields import as_plain
from pidformer.files import out_folder, write_whole
from pidformer.report import details, figures, stability
from pidformer.report.collect import (
    MAIN_TASK,
    PublishedRun,
    Run,
    check_twins,
    collect,
    folders_text,
    inputs_hash,
    trained,
)
from pidformer.report.details import other_table
from pidformer.report.panels import picture, save_panels
from pidformer.report.rerun import data_option
from pidformer.report.table1 import as_data
from pidformer.report.table1_view import (
    Robustness,
    difference_panels,
    findings,
    robustness,
    robustness_views,
)
from pidformer.report.table_view import Entry, Note, Sources
from pidformer.report.templates import TEXTS, page_template
from pidformer.robustness.compare import Group

DATA_FILE = "report.json"


class FigureView(NamedTuple):
    """A figure: its panels with words, or the command that would make it."""

    name: str
    title: str
    caption: str
    panels: list[figures.Drawn]
    missing: Note | None = None


@dataclass(frozen=True, kw_only=True)
class Report:
    out: Path
    page: Path
    markdown: Path
    figures: tuple[Path, ...]
    runs: int
    findings: tuple[str, ...]
    tables: tuple[dict[str, Any], ...]

    def to_dict(self) -> dict[str, Any]:
        fields = as_plain({name: value for name, value in vars(self).items() if name != "out"})
        return {"report": fields.pop("page"), **fields}


def write_report(
    folders: Sequence[str | Path],
    out: str | Path = "report",
    *,
    mixed: bool = False,
    command: str | None = None,
) -> Report:
    """Read the records of all runs at and below `folders`; write report.html, report.md, figures.

    Runs of one task must be twins, that is differ in gains and seed alone, and must have been
    measured on the same images; `mixed` puts others into one report too, those that saw other
    images into tables of their own.
    """
    runs = collect(folders)
    if not mixed:
        check_twins(runs)
    out = out_folder(out)
    out_folder(out / "figures")
    sources = Sources()
    tables = robustness(runs)
    groups = details.analysed(runs)
    similarity = figures.similarity_curves(groups)
    drawn = report_figures(runs, tables)
    views = robustness_views(tables, runs, sources)
    others = [other_table(runs, sources, kind=kind) for kind in ("segmentation", "language")]
    inside = [details.certificate_view(groups, sources), details.cost_view(runs, sources)]
    for table in tables:
        for group in table.curves:
            for row in dict.fromkeys(row for run in group.runs for row in run):
                records = [run[row] for run in group.runs if row in run]
                sources.add(f"Attack curves, {group.label}", row, records)
    said = findings(tables[0] if tables else None, similarity)
    written = _save_figures(drawn, out)
    command = command or shlex.join(["pidformer", "report", *map(str, folders), "--out", str(out)])
    content = {
        "findings": said,
        "tables": [*views, *filter(None, others)],
        "details": [*filter(None, inside)],
        "figures": drawn,
        "verdicts": details.certificate_verdicts(groups),
        "sources": sources,
        "runs": runs,
        "command": command,
        "newest": max((r.made for run in runs for r in run.records), default=None),
        "left_out": sum(run.left_out for run in runs),
        "mixed": mixed,
        "missing_tables": _missing_tables(runs),
        "entry_text": entry_text,
    }
    page, text = out / "report.html", out / "report.md"
    pictures = {f.name: [picture(panel, alt) for panel, alt in f.panels] for f in drawn}
    for path, template in ((page, "page.html.j2"), (text, "page.md.j2")):
        write_whole(path, page_template("report", template).render(**content, pictures=pictures))
    report = Report(
        out=out,
        page=page,
        markdown=text,
        figures=tuple(written),
        runs=len(runs),
        findings=tuple(said),
        tables=tuple(
            {"domain": t.condition.domain, "lines": as_data(t.lines, t.groups)} for t in tables
        ),
    )
    fields = {"inputs": inputs_hash(folders)} | report.to_dict()
    write_whole(out / DATA_FILE, json.dumps(fields, indent=1))
    return report


def is_current(folders: Sequence[str | Path], out: str | Path) -> bool:
    """Whether `out` holds the report of exactly these records."""
    path = Path(out) / DATA_FILE
    try:
        known = json.loads(path.read_text())["inputs"]
    except (OSError, ValueError, KeyError):
        return False
    return known == inputs_hash(folders) and (Path(out) / "report.html").exists()


def _missing_tables(runs: Sequence[Run]) -> list[Note]:
    """Tables without a single record, and what would make them."""
    notes = []
    folders, place = _named(runs)
    if not any(run.of("robustness") for run in runs):
        command = f"pidformer evaluate {folders} --suite quick{place}"
        notes.append(Note("Table 1: no record of robustness. This makes one:", command))
    for kind, number, part in (("segmentation", 2, "table2"), ("language", 3, "table3")):
        if not any(run.of(kind) for run in runs):
            command = f"pidformer reproduce --scale small --only {part} --data DIR"
            notes.append(Note(f"Table {number}: no record of {kind}. This makes some:", command))
    return notes


def _named(runs: Sequence[Run]) -> tuple[str, str]:
    """The classifiers' folders, and the option that says where their data are."""
    own = [run for run in runs if run.task == MAIN_TASK and not isinstance(run, PublishedRun)]
    return folders_text(runs), data_option(run.folder for run in own)


def report_figures(runs: Sequence[Run], tables: Sequence[Robustness]) -> list[FigureView]:
    groups = details.analysed(runs)
    similarity = figures.similarity_curves(groups)
    folders, place = _named(runs)
    curves = next((table.curves for table in tables if table.curves), [])
    found = []
    if tables and (differences := difference_panels(tables[0])):
        count = len(tables[0].groups)
        more = f" Drawn: the first {len(differences)} of {count} models."
        more = more if count > len(differences) + 1 else ""
        found.append(_figure("differences", differences, more=more))
    drawn = [figures.similarity_panel(similarity)] if similarity else []
    found.append(_figure("similarity", drawn, f"pidformer analyze {folders}{place}"))
    evaluate = f"pidformer evaluate {folders} --curve fgsm,pgd{place}"
    found.append(_figure("attacks", figures.attack_panels(curves), evaluate))
    trained_panels = {
        task: panels
        for task in dict.fromkeys(run.task for run in runs)
        if (panels := figures.training_panels(runs, task))
    }
    for task, panels in trained_panels.items():
        figure = _figure("training", panels)
        if task != MAIN_TASK:
            figure = figure._replace(name=f"training_{task}", title=f"{figure.title}, {task}")
        found.append(figure)
    if not trained_panels:
        found.append(_figure("training", [], "pidformer train RECIPE --out FOLDER"))
    return [*found, _stability_figure(runs, groups)]


def _figure(
    name: str, panels: list[figures.Drawn], command: str | None = None, **more: str
) -> FigureView:
    """The figure, or the command that would make it."""
    text = TEXTS["figures"][name]
    missing = None if panels else Note(text["missing"], command)
    return FigureView(name, text["title"], text["caption"].format(**more), panels, missing)


def _stability_figure(runs: Sequence[Run], groups: Sequence[Group]) -> FigureView:
    found = {group.label: own[0].gains for group, own in trained(runs) if own[0].gains}
    marked = {name: own for name, own in found.items() if all(type(g) is PIDGains for g in own)}
    if not marked:
        return _figure("stability", [], "pidformer stability --plot map.png", how="")
    measured = [
        run["spectrum"].metrics["min_real"]
        for group in groups
        if group.is_controlled
        for run in group.runs
        if "spectrum" in run and "min_real" in run["spectrum"].metrics
    ]
    smallest = max(-1.0, min(measured)) if measured else None
    how = (
        "; dashed: the limit for the smallest real part that was measured in the controlled runs"
        if measured
        else " (pidformer analyze measures where they really are)"
    )
    return _figure("stability", [stability.stability_panel(marked, smallest)], how=how)


def _save_figures(drawn: Sequence[FigureView], out: Path) -> list[Path]:
    written = []
    for figure in drawn:
        paths = [out / "figures" / f"{figure.name}.{suffix}" for suffix in ("png", "svg")]
        if figure.panels:
            save_panels([panel for panel, _ in figure.panels], *paths)
            written += paths
        else:  # of an earlier report: nothing here would have made it
            for path in paths:
                path.unlink(missing_ok=True)
    return written


_METRICS = ("top1", "aupr", "miou", "ppl", "min_real", "worst_radius", "loss")


def entry_text(entry: Entry) -> dict[str, str]:
    """A record of the appendix in words."""
    record, settings = entry.record, entry.record.settings
    layers = [name for name in record.metrics if name.startswith("similarity_layer_")]
    name = next((n for n in (*layers[-1:], *_METRICS) if n in record.metrics), None)
    return {
        "value": "" if name is None else f"{name} {record.metrics[name]:.4g}",
        "run": str(settings.get("model", "")),
        "threat": record.measurement.threat or "",
        "seconds": f"{record.metrics['seconds']:.1f} s" if "seconds" in record.metrics else "",
        "settings": ", ".join(
            f"{key} {settings[key]}"
            for key in ("data", "data_hash", "weights", "recipe", "seed", "limit", "domain")
            if settings.get(key) is not None
        ),
    }
