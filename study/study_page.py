"""The page of one study, docs/results/STUDY.md: all its tables, figures, runs and commands."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from pidformer.report.collect import PublishedRun
from pidformer.report.panels import Panel
from pidformer.report.rerun import train_command
from pidformer.report.table_view import NONE, machine_text
from study.classification import classification_sections
from study.language import language_sections
from study.pictures import differences_panel
from study.records import Study, training_length
from study.section import Section
from study.segmentation import segmentation_sections
from study.tables import table

IMAGES = Path("images") / "results"
MORE = "<!-- more -->"
"""In about.md: what is above it stands on results.md too."""
SECTIONS: Mapping[str, Callable[[Study], list[Section]]] = {
    "classification": classification_sections,
    "segmentation": segmentation_sections,
    "language": language_sections,
}
_SEED = "SEED"
_PICTURED = 6
"""Metrics in one picture, at most; of one variant, or if twice as many, all: a panel a variant."""


class Shown(NamedTuple):
    """A section with its picture: words, what is found, the picture, and then the tables."""

    section: Section
    picture: str = ""
    """Its name; empty: none."""
    panels: tuple[Panel, ...] = ()
    words: str = ""

    def parts(self, count: int | None = None) -> list[str]:
        """With a `count`, the first parts of the body alone, and no list of findings."""
        section = self.section
        first, *others = section.body[:count]
        found = [f"### {section.title}"] if section.title else []
        found.append(first)
        if section.findings and count is None:
            found.append("\n".join(f"- {line}" for line in section.findings))
        if self.picture:
            found.append(image(self.words, self.picture))
        return found + others


def image(words: str, name: str) -> str:
    return f"![{words}]({IMAGES.as_posix()}/{name}.png)"


def shown(study: Study) -> list[Shown]:
    """The sections of a study; pictures are numbered."""
    found: list[Shown] = []
    for section in SECTIONS[study.task](study):
        panels, words = _pictures(section)
        drawn = sum(bool(one.picture) for one in found)
        name = f"{study.name}-{drawn + 1}" if panels else ""
        found.append(Shown(section, name, tuple(panels), words))
    return found


def front(study: Study, sections: list[Shown]) -> list[str]:
    """What stands of it on results.md."""
    parts = [f"## {study.title}"]
    parts += [about] if (about := study.about.partition(MORE)[0].strip()) else []
    for one in sections:
        if one.section.front:
            parts += one.parts(one.section.front)
    parts.append(f"All tables, runs and commands: [{study.name}](results/{study.name}.md).")
    return parts


def study_page(study: Study, sections: list[Shown], command: str) -> str:
    """As if it lay beside results.md; see `relinked`."""
    made = f"Made from `results/{study.name}` by `{command}`. [How to read it](results.md"
    parts = [f"# {study.title}", f"{made}#how-to-read-it); [all results](results.md)."]
    parts += [study.about.replace(f"{MORE}\n\n", "")] if study.about else []
    parts.append(_what_was_trained(study))
    for one in sections:
        parts += one.parts()
    parts += _notes(study)
    parts += ["### Runs", *_runs(study), _commands(study)]
    return "\n\n".join(parts) + "\n"


def _pictures(section: Section) -> tuple[list[Panel], str]:
    panels = [panel for panel, _ in section.panels]
    words = [text for _, text in section.panels]
    if not panels:
        judged = [one for one in section.compared if one.metric.better]
        judged = [one for one in judged if not one.metric.table] or judged
        what = "Differences to the softmax twin with 95 % intervals: "
        titles = list(dict.fromkeys(one.metric.title for one in judged))
        names = list(dict.fromkeys(one.variant for one in judged))
        if len(titles) > _PICTURED and (len(names) == 1 or len(titles) > 2 * _PICTURED):
            for name in names:
                own = [one for one in judged if one.variant == name]
                panels.append(differences_panel(own, name, [one.metric.title for one in own]))
            return panels, what + ", ".join(titles)
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
    lengths = sorted({training_length(run) for run in study.runs})
    length = " or ".join(f"{number} {unit}" for number, unit in lengths)
    batch = f"batches of {data['batch_size']}"
    if recipe.get("text"):
        batch += f" x {recipe['text']['length']} tokens"
    else:
        batch += f" images of {data['image_size']} pixels"
    seeds = sorted({run.seed for run in study.runs})
    init = " from the weights of earlier runs" if model.get("init") else " from scratch"
    init = " from its published weights" if model.get("init") == model["name"] else init
    if any((run.recipe.get("segmentation") or {}).get("backbone") for run in study.runs):
        init += " or with an encoder that was trained first"
    return (
        f"Trained: `{model['name']}` ({options or 'as it is'}){_sizes(study)},{init}, "
        f"on {data['name']}, "
        f"{length}, {batch}, {recipe['optim']['name']} at {recipe['optim']['lr']:g}, "
        f"{recipe['train']['precision']}; {len(study.variants)} variants, {len(study.runs)} runs, "
        f"seeds {', '.join(map(str, seeds))}. {_time(study)}"
    )


def _sizes(study: Study) -> str:
    """Parameters of the smallest, and which variants have more."""
    by_size: dict[str, list[str]] = {}
    for variant in study.variants:
        if count := variant.header.metrics.get("parameters"):
            by_size.setdefault(f"{count / 1e6:.2f}", []).append(variant.name)
    if not by_size:
        return ""
    least, *more = sorted(by_size, key=float)
    others = "; ".join(f"{size} in {', '.join(by_size[size])}" for size in more)
    return f", {least} million parameters" + (f" ({others})" if others else "")


def _time(study: Study) -> str:
    """What a training took, by its length."""
    machines = dict.fromkeys(_machine(run) for run in study.runs)
    where = "; ".join(machines)
    seconds: dict[tuple[int, str], list[float]] = {}
    for run in study.runs:
        if spent := run.header.metrics.get("train_seconds"):
            seconds.setdefault(training_length(run), []).append(spent)
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
    """Where most of it was measured: a later look may have been taken elsewhere."""
    texts = [machine_text(record) for record in run.records or (run.header,)]
    return max(texts, key=texts.count)


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
        command = _command(run, _SEED)
        by_command.setdefault((run.variant, command), []).append(run)
    rows = []
    for (variant, command), own in by_command.items():
        runs = sorted(own, key=lambda run: run.seed)
        if len(runs) == 1:
            command = _command(runs[0], runs[0].seed)
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


def _command(run: PublishedRun, seed: int | str) -> str:
    """What trains it; a script of the study says so itself."""
    said = str(run.header.settings.get("command"))
    if said.startswith("python -m study."):
        return _with_seed(said, run, seed)
    return train_command({**run.recipe, "seed": seed})


def _with_seed(command: str, run: PublishedRun, seed: int | str) -> str:
    return command.replace(f"--seeds {run.seed}", f"--seeds {seed}")


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
            command = _with_seed(str(record.settings["command"]), run, _SEED)
            found.setdefault(command, set()).add(str(record.settings["data"]))
    lines = [
        f"- `{command}` (DATA: {', '.join(sorted(names))})"
        for command, names in sorted(found.items())
    ]
    return "Measured by:\n\n" + "\n".join(lines)
