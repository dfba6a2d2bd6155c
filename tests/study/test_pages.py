"""The page says what the records say, and the repository's page is made of its records."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

from pidformer.errors import InputError
from pidformer.report.panels import save_panels
from pidformer.report.publish import ALL_BYTES, FILE_BYTES, publish
from pidformer.report.rerun import train_command
from pidformer.report.table_view import machine_text, minus
from pidformer.results import Record
from study import study_page
from study.__main__ import main
from study.claims import read_claims
from study.comparisons import compare_all
from study.control_size import control_section, mean_curve
from study.pages import BEGIN, PAGE, filled, relinked, results_pages, write_results
from study.records import read_studies
from study.section import Section
from tests.report.fresh import GAINS, classifiers
from tests.study.made import cells, metric, outcomes, page_of, study_of, with_curves

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


COMMAND = "run: python -m study"


@pytest.fixture(scope="module")
def repository():
    """The repository's pages, made anew."""
    folders = [ROOT / "results"]
    return results_pages(read_studies(folders), read_claims(folders))


def test_the_pages_of_the_repository_are_made_of_its_records(repository):
    for name, text in repository.texts.items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == text, COMMAND
    there = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/results/*")}
    assert there == {*repository.texts} - {PAGE}, f"old pages; {COMMAND}"


def test_the_readme_has_the_short_table(repository):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert BEGIN in readme and filled(readme, relinked(repository.short, "docs/")) == readme, (
        COMMAND
    )


def test_every_picture_is_linked_from_the_page_of_its_study_and_no_other_is_there(repository):
    linked = set()
    for name, text in repository.texts.items():
        found = re.findall(r"\]\((.*?images/results/.+?\.png)\)", text)
        linked |= {(ROOT / "docs" / name).parent.joinpath(link).resolve() for link in found}
    folder = ROOT / "docs" / "images" / "results"
    assert linked == {folder / f"{name}.png" for name in repository.pictures}
    assert linked == {*folder.iterdir()}, f"pictures that nothing links; {COMMAND}"
    assert all(0 < path.stat().st_size < 400_000 for path in linked)


def test_the_first_page_is_short_and_answers_first(repository):
    text = repository.texts[PAGE]
    assert len(text.splitlines()) <= 50 * (len(repository.texts) - 1)  # a screen for each study
    assert text.index("| the paper's claim |") < 3000 and text.index("length.png") < 8000
    assert text.index("## Length") < text.index("| Clean, Top-1 |") < text.index("## Still to run")
    for name in repository.texts:
        assert name == PAGE or f"]({name})" in text


def test_the_repository_holds_no_large_record():
    sizes = [path.stat().st_size for path in (ROOT / "results").rglob("*.jsonl")]
    assert all(size < FILE_BYTES for size in sizes) and sum(sizes) < ALL_BYTES


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    runs = classifiers(root / "runs", seeds=(0, 1, 2))
    publish(runs, root / "results" / "digits")
    return root, runs


@pytest.fixture(scope="module")
def text(images):
    root, _ = images
    (root / "results" / "digits" / "about.md").write_text("# Digits\n\nDoes it help?\n")
    made = write_results([root / "results"], root / "docs")
    assert made.runs == 6 and made.studies == 1
    assert all(path.stat().st_size < 200_000 for path in made.figures)
    assert made.page.name == PAGE
    (page,) = made.others
    return page.read_text(encoding="utf-8")


def test_cells_are_means_over_seeds_with_student_intervals(images, text):
    shares = 100 * outcomes(images[1], "softmax", "clean").mean(1)
    low, high = stats.t.interval(0.95, 2, shares.mean(), stats.sem(shares))
    assert cells(text, "softmax")[3] == minus(f"{shares.mean():.2f} [{low:.2f}, {high:.2f}]")


def test_differences_are_paired_by_seed_and_image(images, text):
    gain = 100.0 * outcomes(images[1], "pid", "clean") - 100.0 * outcomes(
        images[1], "softmax", "clean"
    )
    seeds, items = gain.mean(1).var(ddof=1) / 3, gain.mean(0).var(ddof=1) / 40
    freedom = (seeds + items) ** 2 / (seeds**2 / 2 + items**2 / 39)
    half = stats.t.ppf(0.975, freedom) * np.sqrt(seeds + items)
    mean = gain.mean()
    wanted = f"{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}]"
    assert cells(text, "pid minus softmax")[1].strip("*") == minus(wanted)


def test_the_page_says_what_was_done_and_by_which_command(text):
    assert (
        text.startswith("# Digits\n\n")
        and "Does it help?" in text
        and "6 runs, seeds 0, 1, 2" in text
    )
    assert "`FGSM(eps=0.05)`" in text and "40 images" in text
    for name in GAINS:
        assert sum(line.startswith(f"| {name}-seed") for line in text.splitlines()) == 3
    assert "pidformer train digits/" in text and "pidformer evaluate RUN --data DATA" in text
    assert "![Differences to the softmax twin" in text


def test_every_run_is_listed_with_its_seed_seconds_weights_and_machine(images, text):
    (study,) = read_studies([images[0] / "results"])
    (machine,) = {machine_text(run.header) for run in study.runs}
    listed = text.partition("### Runs")[2].partition("Measured by")[0]
    assert f"All on {machine}." in listed
    for name in GAINS:
        _, command, *columns = cells(listed, name)
        runs = [run for run in study.runs if run.variant == name]
        rows = list(zip(*(column.split("<br>") for column in columns), strict=True))
        for run, (seed, trained, measured, weights) in zip(runs, rows, strict=True):
            assert (int(seed), weights.strip("`")) == (run.seed, run.header.settings["weights"])
            assert trained == f"{run.header.metrics['train_seconds']:.0f}" and int(measured) >= 0
            wanted = f"`{train_command(run.recipe)}`"
            assert command.replace("seed=SEED", f"seed={seed}") == wanted
    elsewhere = [replace(r, settings=r.settings | {"machine": {}}) for r in study.runs[0].records]
    late = (*study.runs[0].records[:-1], elsewhere[-1])
    for records, is_one in ((elsewhere, False), (late, True)):
        moved = study.only([replace(study.runs[0], records=tuple(records)), *study.runs[1:]])
        listed = page_of(moved).partition("### Runs")[2]
        assert (f"All on {machine}." in listed) == is_one
    moved = study.only([replace(study.runs[0], records=tuple(elsewhere)), *study.runs[1:]])
    listed = page_of(moved).partition("### Runs")[2]
    assert cells(listed, "pid")[-1].split("<br>")[1:] == [machine] * 2 and "All on" not in listed
    single = page_of(study.only(study.runs[:1])).partition("### Runs")[2]
    assert f"`{study.runs[0].header.settings['command']}`" in single


def test_a_number_in_about_is_made_from_the_records(images, tmp_path, text):
    shutil.copytree(images[0] / "results" / "digits", tmp_path / "results" / "digits")
    path = tmp_path / "results" / "digits" / "about.md"
    path.write_text("# Digits\n\nBy {digits/pid/Clean, 40 images}.\n")
    made = write_results([tmp_path / "results"], tmp_path / "docs")
    wanted = cells(text, "pid minus softmax")[1].strip("*")
    assert (
        f"By {wanted}." in made.page.read_text() and f"By {wanted}." in made.others[0].read_text()
    )
    path.write_text("# Digits\n\nBy {digits/pdi/Clean}.\n")
    with pytest.raises(InputError, match="did you mean 'pid'"):
        write_results([tmp_path / "results"], tmp_path / "docs")


def test_the_same_records_make_the_same_text(images, text):
    (study,) = read_studies([images[0] / "results"])
    assert page_of(study).splitlines()[4:] == text.splitlines()[4:]


def test_the_control_over_training_is_the_mean_of_the_seeds_that_have_it():
    study = study_of({"softmax": (5, 6, 7), "a": (6, 7, 8), "b": (5, 5, 5)})
    assert control_section(study) == []
    curves = {
        "a-seed0": [[0, 2.0], [1.5, 1.0], [2.0, 1.0], [3.0, 0.5]],
        "a-seed2": [[0, 3.0], [2.0, 2.0], [3.0, 1.5]],
        "b-seed0": [[0, 2.0], [3.0, 1.0]],
    }
    study = with_curves(study, curves)
    points = [(0, 2.5), (2.0, 1.5), (3.0, 1.0)]
    assert [mean_curve(v, "control") for v in study.variants] == [
        [],
        points,
        [(0, 2.0), (3.0, 1.0)],
    ]
    (section,) = control_section(study)
    ((panel, words),) = section.panels
    assert words == "Control over attention's output by epoch: a"
    figure = Figure()
    panel.draw(figure)
    (axes,) = figure.axes
    (line,) = axes.lines
    assert line.get_label() == "a" and np.array_equal(line.get_xydata(), points)


def test_many_variants_share_a_picture_of_few_panels(tmp_path):
    names = [f"v{place:02}" for place in range(40)]
    study = study_of(dict.fromkeys(names, (5,)), seeds=(0,))
    curves = {f"{n}-seed0": [[0, 2.0], [20, 1.5 + k / 40], [40, 1.5]] for k, n in enumerate(names)}
    (section,) = control_section(with_curves(study, curves))
    drawn = ", ".join(words for _, words in section.panels)
    assert len(section.panels) == 6 and all(name in drawn for name in names)
    save_panels([panel for panel, _ in section.panels], tmp_path / "many.png")
    assert (tmp_path / "many.png").stat().st_size < 400_000
    groups = {"one": names[:2], "two": ["not run"], None: names[2:3]}
    (section,) = control_section(with_curves(study, curves), groups)
    drawn = [words.split(": ")[-1] for _, words in section.panels]
    assert drawn == ["v00, v01", "v02"]


def test_a_page_with_curves_has_one_more_picture(images, tmp_path):
    root, _ = images
    folder = tmp_path / "results" / "digits"
    shutil.copytree(root / "results" / "digits", folder)
    path = folder / "pid-seed1.jsonl"
    first, *rest = path.read_text().splitlines()
    header = Record.from_json(first)
    curves = dict(header.details) | {"control": [[0.0, 2.0], [1.0, 1.5], [3.0, 1.0]]}
    path.write_text("\n".join([replace(header, details=curves).to_json(), *rest]) + "\n")
    made = write_results([tmp_path / "results"], tmp_path / "docs")
    assert [f.name for f in made.figures] == ["digits-1.png", "digits-2.png"]
    text = made.others[0].read_text(encoding="utf-8")
    assert "### Control during training" in text
    assert "by epoch: pid](../images/results/digits-2.png)" in text


def test_pages_and_pictures_of_an_earlier_report_are_removed_and_nothing_else(images, tmp_path):
    root, docs = images[0], tmp_path / "docs"
    shutil.copytree(root / "results" / "digits", tmp_path / "results" / "old")
    shutil.copytree(root / "results" / "digits", tmp_path / "results" / "kept")
    write_results([tmp_path / "results"], docs)
    (docs / "results" / "notes.md").write_text("mine")
    (docs / "images" / "results" / "kept-7.png").write_bytes(b"more than now")
    shutil.rmtree(tmp_path / "results" / "old")
    write_results([tmp_path / "results"], docs)
    assert {path.name for path in (docs / "results").iterdir()} == {"kept.md", "notes.md"}
    assert not (docs / "images" / "results" / "kept-7.png").exists()


def test_what_about_says_above_the_line_stands_on_both_pages(images, tmp_path):
    shutil.copytree(images[0] / "results" / "digits", tmp_path / "results" / "digits")
    about = "# Digits\n\nShort, see [study](study.md).\n\n<!-- more -->\n\nLong.\n"
    (tmp_path / "results" / "digits" / "about.md").write_text(about)
    made = write_results([tmp_path / "results"], tmp_path / "docs")
    first, own = made.page.read_text(), made.others[0].read_text()
    assert "see [study](study.md)." in first and "Long." not in first
    assert "see [study](../study.md).\n\nLong." in own and "<!--" not in own
    assert "[How to read it](../results.md#how-to-read-it)" in own
    assert "(results/digits.md)" in first and "### Runs" not in first


def test_all_metrics_of_a_single_variant_or_of_very_many_are_drawn():
    """Six of many would be a choice."""
    study = study_of({"softmax": (5, 6, 7), "a": (6, 7.1, 7.9), "b": (5.1, 5.8, 7.3)})
    many = [replace(metric(), title=f"m{place}") for place in range(8)]
    both = compare_all(study, many)
    single = [one for one in both if one.variant == "a"]
    for compared, drawn in ((single, 8), (single[:6], 1), (both, 2)):
        panels, words = study_page._pictures(Section(title="", body=[], compared=compared))
        figure = Figure()
        panels[0].draw(figure)
        (axes,) = figure.axes
        assert len(axes.get_yticks()) == drawn and len(panels) == (1 if drawn == 8 else 6)
        assert ("m7" in words) == (drawn == 8)
    panels, _ = study_page._pictures(Section(title="", body=[], compared=single))
    figure = Figure()
    panels[0].draw(figure)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == [f"m{place}" for place in reversed(range(8))]
    more = [replace(metric(), title=f"m{place}") for place in range(13)]
    section = Section(title="", body=[], compared=compare_all(study, more))
    panels, _ = study_page._pictures(section)  # more than pictures have room for: by variant
    figure = Figure()
    panels[1].draw(figure)
    assert len(panels) == 2 and len(figure.axes[0].get_yticks()) == 13


def test_the_command_writes_the_pages_and_refuses_what_it_cannot_read(images, tmp_path, capsys):
    given = ["--records", str(images[0] / "results"), "--out", str(tmp_path / "docs")]
    assert main(given) == 0 and (tmp_path / "docs" / "results" / "digits.md").exists()
    assert "6 runs of 1 studies" in capsys.readouterr().out
    assert main(["--records", str(tmp_path), "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: no published records in") and said.count("\n") == 1
