"""docs/results.md, the answers, and docs/results/STUDY.md, all that is behind them."""

import glob
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pidformer.errors import InputError
from pidformer.files import write_whole
from pidformer.report.panels import Panel, save_panels
from study import rehearsals
from study.claims import Claims, read_claims
from study.missing import lacking_text, missing_text, progress
from study.records import Study, read_studies, registered_studies
from study.study_page import IMAGES, front, image, shown, study_page
from study.training_length import length_figure
from study.verdicts import Answers, claims_table, told

PAGE = "results.md"
LENGTH = "length"
"""The picture on top of the page."""
BEGIN, END = "<!-- results: made by python -m study -->", "<!-- end of results -->"
"""In README.md: what is between them is made again."""
COMMAND = "python -m study"
_MADE = "Made from `results/"
_WIDE = 9.4
"""A picture, in inches: two panels beside each other, or three narrow ones."""
_OPENING = """\
Every number and figure here is made from the records in `results/` by

    {command}

and a test makes the text again and compares. Each study has a page with all its tables, runs and \
commands, however they came out: {links}."""
_ALL_CLAIMS = (
    "Differences to the softmax twin with 95 % intervals, in points unless said. "
    "[Every claim](#every-claim) of the paper's tables and figures, and what the verdicts mean, "
    "is below."
)
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
    "(better) or red (worse): the interval leaves out zero, p is below 0.05, and all registered "
    "seeds are in.",
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
    others: tuple[Path, ...]
    """The pages of the studies, and README.md and reproduce.md where they have a place for it."""
    figures: tuple[Path, ...]
    studies: int
    runs: int


@dataclass(frozen=True, kw_only=True)
class Made:
    """The texts by their place in the folder, and the panels of each picture they link, by name."""

    texts: Mapping[str, str]
    pictures: Mapping[str, Sequence[Panel]]
    short: str = ""
    """The short table and the advice, for README.md; links as on results.md."""


def write_results(folders: Sequence[str | Path], out: str | Path = "docs") -> Written:
    """Write results.md, results/*.md and images/results/*.png into `out` from published records.

    README.md beside `out` gets the short table where it has a place for it, and reproduce.md in it
    the rehearsals.
    """
    studies, out = read_studies(folders), Path(out)
    made = results_pages(studies, read_claims(folders))
    try:
        for folder in (IMAGES, Path(PAGE).stem):
            (out / folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot write to {out} ({error.strerror}); choose another --out"
        ) from None
    _remove_old(out, studies, made)
    figures = []
    for name, panels in made.pictures.items():
        path = out / IMAGES / f"{name}.png"
        save_panels(panels, path, columns=int(_WIDE // panels[0].width))
        figures.append(path)
    texts = {out / name: text for name, text in made.texts.items()}
    readme, guide = out.parent / "README.md", out / rehearsals.PAGE
    if made.short and (text := _marked(readme, BEGIN)):
        texts[readme] = filled(text, relinked(made.short, f"{out.name}/"))
    if text := _marked(guide, rehearsals.BEGIN):
        texts[guide] = filled(
            text, rehearsals.rehearsals_text(folders), rehearsals.BEGIN, rehearsals.END
        )
    for path, text in texts.items():
        write_whole(path, text)
    page, *others = texts
    runs = sum(len(study.runs) for study in studies)
    return Written(
        page=page, others=(*others,), figures=(*figures,), studies=len(studies), runs=runs
    )


def _remove_old(out: Path, studies: Sequence[Study], made: Made) -> None:
    """Pictures of an earlier page, which may have had more, and pages of studies that are gone."""
    for study in studies:
        for path in (out / IMAGES).glob(f"{glob.escape(study.name)}-[0-9]*.png"):
            if path.stem not in made.pictures:
                path.unlink()
    for path in (out / Path(PAGE).stem).glob("*.md"):
        is_ours = _MADE in path.read_text(encoding="utf-8", errors="replace")
        if is_ours and path.relative_to(out).as_posix() not in made.texts:
            path.unlink()


def results_pages(studies: Sequence[Study], claims: Claims | None = None) -> Made:
    """The answers first: advice, main claims, the length of training; then study by study, and
    every claim."""
    answers, runs = Answers(studies), progress(studies)
    named = {
        study.name: replace(study, about=_about(study, answers, lacking_text(runs, study.name)))
        for study in studies
    }
    order = [named[name] for name in answers.ordered(claims.order if claims else ())]
    panels, caption = length_figure(studies)
    links = ", ".join(f"[{s.title}](results/{s.name}.md)" for s in order)
    parts, short = ["# Results"], ""
    if claims:
        advice = told(claims.advice, answers)
        few = claims_table(claims, answers, is_short=True)
        parts += [advice, few, _ALL_CLAIMS]
        short = f"{few}\n\n{advice}"
    pictures: dict[str, Sequence[Panel]] = {}
    if panels:
        pictures[LENGTH] = panels
        words = "Differences to softmax over the length of training, clean and under PGD"
        parts += ["## Length of training", image(words, LENGTH), caption]
        parts += [told(claims.length, answers)] if claims else []
    texts: dict[str, str] = {PAGE: ""}
    for study in order:
        sections = shown(study)
        pictures |= {one.picture: one.panels for one in sections if one.picture}
        parts += front(study, sections)
        texts[f"results/{study.name}.md"] = relinked(study_page(study, sections, COMMAND), "../")
    if claims:
        parts += ["## Every claim", told(claims.words, answers), claims_table(claims, answers)]
    if any(study.name in registered_studies() for study in studies):
        parts += ["## Still to run", missing_text(runs)]
    reading = "\n".join(f"- {line}" for line in _READING)
    parts += ["## How to read it", _OPENING.format(command=COMMAND, links=links), reading]
    texts[PAGE] = "\n\n".join(parts) + "\n"
    return Made(texts=texts, pictures=pictures, short=short)


def _about(study: Study, answers: Answers, lacking: str) -> str:
    """Its words with their numbers; behind the first paragraph, which runs it lacks."""
    first, *rest = told(study.about, answers).split("\n\n")
    return "\n\n".join(part for part in (first, lacking, *rest) if part)


def relinked(text: str, begin: str) -> str:
    """The same text for a page in another folder: links to files begin with `begin`."""
    return re.sub(r"\]\((?!#|\w+:)", f"]({begin}", text)


def _marked(path: Path, mark: str) -> str:
    """The text of a file that has the mark; "" for any other."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return text if mark in text else ""


def filled(text: str, short: str, begin: str = BEGIN, end: str = END) -> str:
    """A page with `short` between its marks."""
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not closed:
        raise InputError(f"{begin} is without {end}; put it where the table ends")
    between = f"\n\n{short}\n\n" if short else "\n"
    return f"{before}{found}{between}{end}{after}"
