"""docs/results.md: every number and figure of the published records, and nothing else."""

from __future__ import annotations

import glob
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pidformer.errors import InputError
from pidformer.files import atomic_path
from pidformer.report.panels import Panel, save_panels
from pidformer.report.published.classification import classification_sections
from pidformer.report.published.draw import differences_panel
from pidformer.report.published.numbers import NONE
from pidformer.report.published.section import Section
from pidformer.report.published.segments import segmentation_sections
from pidformer.report.published.studies import PublishedRun, Study, find_studies, read_studies
from pidformer.report.published.tables import table
from pidformer.report.published.texts import language_sections
from pidformer.report.rerun import train_command
from pidformer.report.views import machine_text

PAGE = "results.md"
IMAGES = Path("images") / "results"
SECTIONS: Mapping[str, Callable[[Study], list[Section]]] = {
    "classification": classification_sections,
    "segmentation": segmentation_sections,
    "language": language_sections,
}
_SEED = "SEED"
_PICTURED = 6
"""Metrics in one picture, at most; of one variant all, in one panel."""
_WIDE = 9.4
"""A picture, in inches: two panels beside each other, or three narrow ones."""
_OPENING = """\
Every number and figure here is made from the records in `results/` by

    {command}

and a test makes the text again and compares. All published runs of a study are listed with the \
command that trains them, however they came out.

How to read it:

"""
_READING = (
    "A cell is the mean over training seeds with its 95 % interval (Student's t over seeds). With "
    "few seeds that interval is wide.",
    "A difference is variant minus softmax twin: the same recipe, the same seed (so the same "
    "initialisation, data order and draws of the threats), the same images or blocks of text. Its "
    "95 % interval is for new seeds *and* new images: the variance between seeds over the number "
    "of seeds, plus the variance over images or blocks; Student's t with Satterthwaite's degrees "
    "of freedom. Differences of numbers that are kept without their items (Top-5, AUPR, "
    "similarity, perplexity of known words) have intervals over seeds alone. A p-value is that "
    "t's, and never below that of the t test over seeds alone. **Bold**, in pictures green "
    "(better) or red (worse): the interval leaves out zero and p is below 0.05.",
    "With one pair of runs (one seed) an interval is for new images and these two trained "
    "networks, whatever it leaves out: it is silent on other seeds, never bold, and grey in "
    "pictures.",
    '"Not resolved" means that the interval holds zero, or that p is not below 0.05 because the '
    "seeds disagree: neither an effect nor its absence is shown. The interval says how large an "
    "effect may still be.",
    "A run can be made again by its command (RUN: a folder of your choice, DATA: the folder of the "
    "set, SEED: one of the seeds beside it). On the same kind of GPU it may come out with the same "
    "weights; where it rounds differently, as on another kind, it is another run of the same "
    "distribution, also with the same seed: expect its number near the row's interval.",
)


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was written."""

    page: Path
    figures: tuple[Path, ...]
    studies: int
    runs: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "page": str(self.page),
            "figures": [str(path) for path in self.figures],
            "studies": self.studies,
            "runs": self.runs,
        }


def is_published(folders: Sequence[str | Path]) -> bool:
    """Whether the folders hold published records, rather than run folders."""
    return bool(find_studies(folders))


def write_results(folders: Sequence[str | Path], out: str | Path = "docs") -> Written:
    """Write results.md and images/results/*.png into `out` from published records."""
    studies, out = read_studies(folders), Path(out)
    try:
        (out / IMAGES).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot write to {out} ({error.strerror}); choose another --out"
        ) from None
    command = shlex.join(["pidformer", "report", *map(str, folders), "--out", str(out)])
    text, pictures = results_page(studies, command)
    figures = []
    for study in studies:  # pictures of an earlier page, which may have had more
        for path in (out / IMAGES).glob(f"{glob.escape(study.name)}-[0-9]*.png"):
            if path.stem not in pictures:
                path.unlink()
    for name, panels in pictures.items():
        path = out / IMAGES / f"{name}.png"
        save_panels(panels, path, columns=int(_WIDE // panels[0].width))
        figures.append(path)
    with atomic_path(out / PAGE) as temporary:
        temporary.write_text(text, encoding="utf-8")
    runs = sum(len(study.runs) for study in studies)
    return Written(page=out / PAGE, figures=tuple(figures), studies=len(studies), runs=runs)


def results_page(
    studies: Sequence[Study], command: str = "pidformer report results --out docs"
) -> tuple[str, dict[str, list[Panel]]]:
    """The text, and the panels of each picture it links, by name."""
    parts = ["# Results", _opening(command)]
    if len(studies) > 1:
        links = "\n".join(f"- [{s.title}](#{_anchor(s.title)})" for s in studies)
        parts += ["Studies:", links]
    pictures: dict[str, list[Panel]] = {}
    for study in studies:
        parts += _study(study, pictures)
    return "\n\n".join(parts) + "\n", pictures


def _opening(command: str) -> str:
    return _OPENING.format(command=command) + "\n".join(f"- {line}" for line in _READING)


def _study(study: Study, pictures: dict[str, list[Panel]]) -> list[str]:
    parts = [f"## {study.title}"]
    parts += [study.about] if study.about else []
    parts.append(_what_was_trained(study))
    drawn = 0
    for section in SECTIONS[study.task](study):
        parts += [f"### {section.title}"] if section.title else []
        parts += section.body
        if section.findings:
            parts.append("\n".join(f"- {line}" for line in section.findings))
        panels, words = _pictures(section)
        if panels:
            drawn += 1
            name = f"{study.name}-{drawn}"
            pictures[name] = panels
            parts.append(f"![{words}]({IMAGES.as_posix()}/{name}.png)")
    parts += _notes(study)
    parts += ["### Runs", *_runs(study), _commands(study)]
    return parts


def _pictures(section: Section) -> tuple[list[Panel], str]:
    panels = [panel for panel, _ in section.panels]
    words = [text for _, text in section.panels]
    if not panels:
        judged = [one for one in section.compared if one.metric.better]
        what = "Differences to the softmax twin with 95 % intervals: "
        titles = list(dict.fromkeys(one.metric.title for one in judged))
        if len(titles) > _PICTURED and len({one.variant for one in judged}) == 1:
            title = f"{judged[0].variant} minus {judged[0].twin}"
            return [differences_panel(judged, title, titles)], what + ", ".join(titles)
        for title in titles[:_PICTURED]:
            own = [one for one in judged if one.metric.title == title]
            panels.append(differences_panel(own, title, [one.variant for one in own]))
            words.append(title)
    else:
        what = ""
    return panels, what + ", ".join(words)


def _what_was_trained(study: Study) -> str:
    """From the recipes: what all runs share, and how long one takes."""
    first = study.runs[0]
    recipe = first.recipe
    model, data = recipe["model"], recipe["data"]
    options = ", ".join(f"{key} {value}" for key, value in model.get("options", {}).items())
    sizes = [run.header.metrics.get("parameters") for run in study.runs]
    known = [size for size in sizes if size]
    count = f", {min(known) / 1e6:.2f} million parameters" if known else ""
    lengths = sorted({_length(run) for run in study.runs})
    length = " or ".join(f"{number} {unit}" for number, unit in lengths)
    batch = f"batches of {data['batch_size']}"
    if recipe.get("text"):
        batch += f" x {recipe['text']['length']} tokens"
    else:
        batch += f" images of {data['image_size']} pixels"
    seeds = sorted({run.seed for run in study.runs})
    init = " from the weights of earlier runs" if model.get("init") else " from scratch"
    return (
        f"Trained: `{model['name']}` ({options or 'as it is'}){count},{init}, on {data['name']}, "
        f"{length}, {batch}, {recipe['optim']['name']} at {recipe['optim']['lr']:g}, "
        f"{recipe['train']['precision']}; {len(study.variants)} variants, {len(study.runs)} runs, "
        f"seeds {', '.join(map(str, seeds))}. {_time(study)}"
    )


def _length(run: PublishedRun) -> tuple[int, str]:
    """Of its training, in steps or epochs."""
    schedule = run.recipe["schedule"]
    steps = schedule.get("steps")
    return (steps, "steps") if steps else (schedule["epochs"], "epochs")


def _time(study: Study) -> str:
    """What a training took, by its length."""
    machines = dict.fromkeys(_machine(run) for run in study.runs)
    where = "; ".join(machines)
    seconds: dict[tuple[int, str], list[float]] = {}
    for run in study.runs:
        if spent := run.header.metrics.get("train_seconds"):
            seconds.setdefault(_length(run), []).append(spent)
    if not seconds:
        return f"Machine: {where}."
    spreads: list[str] = []
    for (number, unit), took in sorted(seconds.items()):
        low, high = f"{min(took):.0f}", f"{max(took):.0f}"
        of = f" ({number} {unit})" if len(seconds) > 1 else ""
        spreads.append((low if low == high else f"{low} to {high}") + f" s{of}")
    return (
        f"Expect {', '.join(spreads)} of training per run on {where} (as logged here, evaluation "
        "aside; runs that share a GPU take longer)."
    )


def _machine(run: PublishedRun) -> str:
    return machine_text(run.header)


def _notes(study: Study) -> list[str]:
    """Runs whose recipes differ in more than the controller."""
    found = []
    for variant in study.variants:
        twin, lines = study.twin(variant)
        if twin is not None and lines:
            found.append(
                f"- {variant.name} is compared with {twin.name}, whose recipe differs in more than "
                f"control: {'; '.join(lines)}."
            )
        if twin is None and not variant.is_plain:
            found.append(f"- {variant.name} has no softmax twin among the published runs.")
    return ["\n".join(found)] if found else []


def _runs(study: Study) -> list[str]:
    """Every run, those of one command in one line."""
    machines = dict.fromkeys(_machine(run) for run in study.runs)
    by_command: dict[tuple[str, str], list[PublishedRun]] = {}
    for run in study.runs:
        command = train_command({**run.recipe, "seed": _SEED})
        by_command.setdefault((run.variant, command), []).append(run)
    rows = []
    for (variant, command), own in by_command.items():
        runs = sorted(own, key=lambda run: run.seed)
        if len(runs) == 1:
            command = train_command(runs[0].recipe)
        about = [[str(run.seed), _trained(run), _measured(run), _weights(run)] for run in runs]
        if len(machines) > 1:
            about = [[*cells, _machine(run)] for cells, run in zip(about, runs, strict=True)]
        cells = ["<br>".join(column) for column in zip(*about, strict=True)]
        rows.append([variant, f"`{command}`", *cells])
    heads = ["", "trained by", "seed", "training, s", "measuring, s", "weights"]
    heads += ["machine"] if len(machines) > 1 else []
    where = "" if len(machines) > 1 else f" All on {next(iter(machines))}."
    words = f"Every run. {_SEED} in a command stands for one of the seeds beside it.{where}"
    return [words, table(heads, rows, left=2)]


def _trained(run: PublishedRun) -> str:
    """Seconds of training."""
    spent = run.header.metrics.get("train_seconds")
    return NONE if spent is None else f"{spent:.0f}"


def _measured(run: PublishedRun) -> str:
    """Seconds of what was measured of a run."""
    return f"{sum(record.metrics.get('seconds', 0.0) for record in run.records):.0f}"


def _weights(run: PublishedRun) -> str:
    return f"`{run.header.settings['weights']}`"


def _commands(study: Study) -> str:
    """What measured them, once each."""
    found: dict[str, set[str]] = {}
    for run in study.runs:
        for record in run.records:
            command = str(record.settings["command"])
            found.setdefault(command, set()).add(str(record.settings["data"]))
    lines = [
        f"- `{command}` (DATA: {', '.join(sorted(names))})"
        for command, names in sorted(found.items())
    ]
    return "Measured by:\n\n" + "\n".join(lines)


def _anchor(title: str) -> str:
    """As GitHub makes it of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
