"""The page says what the records say, and the repository's page is made of its records."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from scipy import stats

from pidformer import PIDGains, results
from pidformer.control import spectral_radius
from pidformer.data.segmentation.confusion import (
    miou_difference,
    pack_areas,
    segmentation_scores,
    unpack_areas,
)
from pidformer.errors import InputError
from pidformer.report.panels import save_panels
from pidformer.report.published import (
    classification,
    hypotheses,
    is_published,
    length,
    page,
    predict,
    publish,
    read_studies,
    write_results,
)
from pidformer.report.published.classification import classification_sections
from pidformer.report.published.course import control_curve, control_section
from pidformer.report.published.numbers import Metric, check_same, compare_all, findings
from pidformer.report.published.page import PAGE, results_page
from pidformer.report.published.predict import RADIUS, prediction_section, worst_radius
from pidformer.report.published.rerun import train_command
from pidformer.report.published.section import Section
from pidformer.report.published.segments import compare_miou, leave_one_out
from pidformer.report.published.studies import PublishedRun, Study
from pidformer.report.published.tables import differences_by_variant, gains_text
from pidformer.report.views import machine_text
from pidformer.results import Record
from pidformer.robustness.compare import hits
from pidformer.studies import load_study
from tests.data.pairs import write_parquet
from tests.report.published.fresh import GAINS, classifiers, segmenters

ROOT = Path(__file__).parents[3]


def test_the_page_of_the_repository_is_made_of_its_records():
    folder, made = ROOT / "results", ROOT / "docs" / PAGE
    if not is_published([folder]):
        assert not made.exists()
        pytest.skip("no records are published yet")
    text, pictures = results_page(read_studies([folder]))
    assert made.read_text(encoding="utf-8") == text, "run: pidformer report results --out docs"
    linked = set(re.findall(r"\]\(images/results/(.+?)\.png\)", text))
    assert linked == set(pictures)
    for name in linked:
        path = ROOT / "docs" / "images" / "results" / f"{name}.png"
        assert 0 < path.stat().st_size < 400_000


def test_the_repository_holds_no_large_record():
    sizes = [path.stat().st_size for path in (ROOT / "results").rglob("*.jsonl")]
    assert all(size < 1_000_000 for size in sizes) and sum(sizes) < 5_000_000


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
    return made.page.read_text(encoding="utf-8")


def cells(text, start):
    line = next(line for line in text.splitlines() if line.startswith(f"| {start} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def outcomes(runs, name, row):
    chosen = sorted(run for run in runs if run.name.startswith(f"{name}-"))
    found = [next(r for r in results.read(run) if r.settings.get("row") == row) for run in chosen]
    return np.stack([hits(record) for record in found])


def test_cells_are_means_over_seeds_with_student_intervals(images, text):
    shares = 100 * outcomes(images[1], "softmax", "clean").mean(1)
    low, high = stats.t.interval(0.95, 2, shares.mean(), stats.sem(shares))
    assert cells(text, "softmax")[3] == f"{shares.mean():.2f} [{low:.2f}, {high:.2f}]"


def test_differences_are_paired_by_seed_and_image(images, text):
    gain = 100.0 * outcomes(images[1], "pid", "clean") - 100.0 * outcomes(
        images[1], "softmax", "clean"
    )
    seeds, items = gain.mean(1).var(ddof=1) / 3, gain.mean(0).var(ddof=1) / 40
    freedom = (seeds + items) ** 2 / (seeds**2 / 2 + items**2 / 39)
    half = stats.t.ppf(0.975, freedom) * np.sqrt(seeds + items)
    mean = gain.mean()
    wanted = f"{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}]".replace("-", "−")  # noqa: RUF001
    assert cells(text, "pid less softmax")[1].strip("*") == wanted


def test_the_page_says_what_was_done_and_by_which_command(text):
    assert "## Digits\n\nDoes it help?" in text and "6 runs, seeds 0, 1, 2" in text
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
    other = replace(study.runs[0].header, settings=study.runs[0].header.settings | {"machine": {}})
    moved = study.only([replace(study.runs[0], header=other), *study.runs[1:]])
    listed = results_page([moved])[0].partition("### Runs")[2]
    assert cells(listed, "pid")[-1].split("<br>")[1:] == [machine] * 2 and "All on" not in listed
    single = results_page([study.only(study.runs[:1])])[0].partition("### Runs")[2]
    assert f"`{study.runs[0].header.settings['command']}`" in single


def test_the_same_records_make_the_same_text(images, text):
    assert (
        results_page(read_studies([images[0] / "results"]))[0].splitlines()[6:]
        == (text.splitlines()[6:])
    )


def study_of(values, seeds=(0, 1, 2), **more):
    """A study whose runs have these values by variant; softmax is the plain one."""
    runs = []
    for variant, numbers in values.items():
        for seed, number in zip(seeds, numbers, strict=True):
            about = {"study": "s", "run": f"{variant}-seed{seed}", "variant": variant, "seed": seed}
            about |= {"task": "classification", "twin": "t", "recipe": {"model": {}}}
            about |= {"gains": None if variant.startswith("softmax") else "PIDGains(p=1)"} | more
            header = Record(kind="run", metrics={}, settings=about)
            own = {"row": "a", "label": about["run"]}
            record = Record(kind="robustness", metrics={"x": number}, settings=own)
            runs.append(PublishedRun(study="s", header=header, records=(record,)))
    return Study(name="s", title="S", about="", runs=tuple(runs))


def metric(better=1):
    return Metric(
        title="x",
        find=lambda run: run.one("robustness", row="a"),
        read=lambda record: record.metrics["x"],
        better=better,
    )


def with_curves(study, curves):
    """The study, its runs (by name) with these curves of the control."""
    runs = [
        replace(run, header=replace(run.header, details={"control": curves[run.name]}))
        if run.name in curves
        else run
        for run in study.runs
    ]
    return study.only(runs)


def test_the_control_over_training_is_the_mean_of_the_seeds_that_have_it():
    study = study_of({"softmax": (5, 6, 7), "a": (6, 7, 8), "b": (5, 5, 5)})
    assert control_section(study) == []
    curves = {
        "a-seed0": [[0, 2.0], [1.5, 1.0], [3.0, 0.5]],
        "a-seed2": [[0, 3.0], [3.0, 1.5]],
    }
    study = with_curves(study, curves)
    assert [control_curve(v) for v in study.variants] == [[], [(0, 2.5), (3.0, 1.0)], []]
    (section,) = control_section(study)
    ((panel, words),) = section.panels
    assert words == "Control over attention's output by epoch: a"
    figure = Figure()
    panel.draw(figure)
    (axes,) = figure.axes
    (line,) = axes.lines
    assert line.get_label() == "a" and np.array_equal(line.get_xydata(), [[0, 2.5], [3, 1]])


def test_many_variants_share_a_picture_of_few_panels(tmp_path):
    names = [f"v{place:02}" for place in range(40)]
    study = study_of(dict.fromkeys(names, (5,)), seeds=(0,))
    curves = {f"{n}-seed0": [[0, 2.0], [20, 1.5 + k / 40]] for k, n in enumerate(names)}
    (section,) = control_section(with_curves(study, curves))
    drawn = ", ".join(words for _, words in section.panels)
    assert len(section.panels) == 6 and all(name in drawn for name in names)
    save_panels([panel for panel, _ in section.panels], tmp_path / "many.png")
    assert (tmp_path / "many.png").stat().st_size < 400_000


def test_a_page_with_curves_has_one_more_picture(images, tmp_path):
    root, _ = images
    folder = tmp_path / "results" / "digits"
    shutil.copytree(root / "results" / "digits", folder)
    path = folder / "pid-seed1.jsonl"
    first, *rest = path.read_text().splitlines()
    header = Record.from_json(first)
    curves = dict(header.details) | {"control": [[0.0, 2.0], [3.0, 1.0]]}
    path.write_text("\n".join([replace(header, details=curves).to_json(), *rest]) + "\n")
    made = write_results([tmp_path / "results"], tmp_path / "docs")
    assert [f.name for f in made.figures] == ["digits-1.png", "digits-2.png"]
    text = made.page.read_text(encoding="utf-8")
    assert "### Control during training" in text
    assert "by epoch: pid](images/results/digits-2.png)" in text


@pytest.mark.parametrize(
    ("gains", "better", "word"),
    [
        ((1.0, 1.1, 0.9), 1, "better"),
        ((1.0, 1.1, 0.9), -1, "worse"),
        ((1.0, 1.1, 0.9), 0, "more"),
        ((-1.0, -1.1, -0.9), -1, "better"),
        ((1.0, -1.0, 0.2), 1, "not resolved"),
    ],
)
def test_words_follow_from_the_interval(gains, better, word):
    study = study_of({"softmax": (5, 6, 7), "pid": tuple(5 + k + g for k, g in enumerate(gains))})
    (one,) = compare_all(study, [metric(better)])
    assert one.word == word
    assert f"{word.capitalize()}: x" in findings([one])[0]


def test_one_pair_of_runs_says_nothing_of_the_method():
    study = study_of({"softmax": (5,), "pid": (9,)}, seeds=(0,))
    (one,) = compare_all(study, [metric()])
    (said,) = findings([one])
    assert not one.is_resolved and said.startswith("One pair of runs, silent on other seeds: ")


def test_variants_with_one_pair_of_runs_share_a_line_without_their_numbers():
    single = study_of({"softmax": (5,), "pid": (9,), "p": (8,)}, seeds=(0,))
    (said,) = findings(compare_all(single, [metric()]))
    assert said.startswith("One pair of runs each, silent on other seeds") and "+4" not in said
    more = study_of({"softmax_b": (5, 6, 7), "pid_b": (6, 7.1, 7.9)}, seeds=(10, 11, 12), twin="u")
    both = single.only([*single.runs, *more.runs])
    first, last = findings(compare_all(both, [metric()]))
    assert first.startswith("**pid_b** less softmax_b (3 seeds). Better: x +1.00 [")
    assert last.startswith("**p**, **pid**: one pair of runs each, silent on other seeds: ")


def test_holm_counts_all_looks():
    study = study_of({"softmax": (5, 6, 7), "a": (6, 7.1, 7.9), "b": (5.1, 5.8, 7.3)})
    said = findings(compare_all(study, [metric()]))[-1]
    assert said.startswith("Of these 2 differences 1 has an interval without zero; after Holm's")
    assert "a better on x" in said and "b better" not in said


def test_pairs_of_different_data_are_refused():
    a, b = (
        Record(kind="x", metrics={}, settings={"row": "clean", "data_hash": h, "label": h})
        for h in "ab"
    )
    with pytest.raises(InputError, match="data_hash is a for a and b for b"):
        check_same(a, b)


def test_a_variant_of_another_recipe_is_compared_with_the_nearest_and_says_so():
    study = study_of({"softmax": (5, 6, 7)})
    other = study_of({"pid": (6, 7, 8)}, twin="u", recipe={"model": {}, "optim": {"lr": 1}})
    both = study.only([*study.runs, *other.runs])
    twin, lines = both.twin(both.variants[1])
    assert twin.name == "softmax" and lines == ["optim: None -> {'lr': 1}"]


def test_of_two_twins_of_one_recipe_the_one_with_the_same_seeds_is_taken():
    first = study_of({"softmax": (5, 6, 7)}, seeds=(0, 1, 2))
    second = study_of({"softmax_b": (5, 6), "pid_b": (7, 8)}, seeds=(15, 16))
    both = first.only([*first.runs, *second.runs])
    twins = {v.name: both.twin(v)[0] for v in both.variants}
    assert twins["pid_b"].name == "softmax_b" and twins["softmax_b"] is None


def test_seeds_kept_for_confirming_are_judged_on_the_other_half_of_the_images(
    tmp_path, monkeypatch
):
    runs = classifiers(tmp_path / "runs", seeds=(0, 10))
    for run in runs:  # as if all images had been taken
        kept = []
        for r in results.read(run):
            settings = dict(r.settings) | {"limit": None}
            kept.append(
                Record(
                    kind=r.kind,
                    metrics=r.metrics,
                    settings=settings,
                    details=r.details,
                    step=r.step,
                )
            )
        results.rewrite(run, kept)
    publish(runs, tmp_path / "results" / "digits")
    publish(runs, tmp_path / "results" / "tiny-imagenet-100")
    unregistered, study = read_studies([tmp_path / "results"])
    assert len(classification_sections(unregistered)) == 1
    first, asked, confirmed, searched = classification_sections(study)
    assert (first.title, asked.title, searched.title) == ("Reported", "Hypotheses", "Searched")
    plan = load_study("tiny-imagenet-100")
    other = replace(plan, halves=plan.halves | {"main": 0})
    monkeypatch.setattr(classification, "load_study", lambda _: other)
    even = classification_sections(study)[2]
    assert even.body[0].startswith("On the other half of the images")
    half = outcomes([r for r in runs if r.name.endswith("seed10")], "softmax", "clean")[0, 0::2]
    assert cells(even.body[1], "softmax")[3] == f"{100 * half.mean():.2f}"
    gain = outcomes([r for r in runs if r.name.endswith("seed10")], "pid", "clean")[0, 0::2]
    wanted = f"{100 * (gain.mean() - half.mean()):+.2f} [".replace("-", "−")  # noqa: RUF001
    assert cells(even.body[3], "pid less softmax")[1].startswith(wanted)
    late = outcomes([r for r in runs if r.name.endswith("seed10")], "softmax", "clean")
    early = outcomes([r for r in runs if r.name.endswith("seed0")], "softmax", "clean")
    assert cells(confirmed.body[0], "softmax")[3] == f"{100 * late[0, 1::2].mean():.2f}"
    assert cells(searched.body[1], "softmax")[3] == f"{100 * early[0, 0::2].mean():.2f}"


@pytest.fixture(scope="module")
def segments(tmp_path_factory):
    root = tmp_path_factory.mktemp("segments")
    data = write_parquet(root / "camvid")
    runs = segmenters(root / "runs", data)
    publish(runs, root / "results" / "camvid")
    return root, runs


def test_segmentation_is_reported_by_scale_and_threat(segments):
    root, runs = segments
    text, pictures = results_page(read_studies([root / "results"]))
    own = [
        r.metrics["miou"]
        for run in sorted(runs)
        if "softmax" in run.name
        for r in results.read(run)
        if r.kind == "segmentation" and r.settings["views"] == "multi"
    ]
    low, high = stats.t.interval(0.95, 1, np.mean(own), stats.sem(own))
    wanted = f"{np.mean(own):.2f} [{low:.2f}, {high:.2f}]"
    assert cells(text, "mIoU, multi-scale")[1] == wanted
    assert "### Under threats" in text and cells(text, "FGSM")[1] and len(pictures) == 2
    assert "evaluate_segmentation(RUN, data=DATA, threat=FGSM(eps=1/255), views='single')" in text


def test_leaving_out_an_image_equals_scoring_the_rest(segments):
    record = next(r for r in results.read(segments[1][0]) if r.kind == "segmentation")
    per_pair = unpack_areas(record.details["areas"], 4)
    whole, left = leave_one_out(per_pair)
    assert whole == pytest.approx(
        segmentation_scores(np.array(record.details["confusion"]))["miou"]
    )
    hits_, truth, predicted = np.delete(per_pair, 2, axis=0).sum(0)
    assert left[2] == pytest.approx(100 * np.mean(hits_ / (truth + predicted - hits_)))


def test_the_jackknife_agrees_with_the_bootstrap():
    """On enough images both estimate the same spread of one pair's difference."""
    rng = np.random.default_rng(0)
    truth = rng.integers(50, 400, size=(150, 5))
    sides = []
    for quality in (0.6, 0.65):
        right = rng.binomial(truth, np.clip(quality + rng.normal(0, 0.1, (150, 1)), 0, 1))
        predicted = right + rng.permuted(truth - right, axis=1)
        sides.append(np.stack([right, truth, predicted], axis=1))
    records = tuple(
        Record(kind="x", metrics={}, details={"areas": pack_areas(s), "num_classes": 5})
        for s in sides
    )
    mean, low, high = miou_difference(*sides, resamples=4000)
    found = compare_miou([records])
    assert found.mean == pytest.approx(mean)
    assert found.high - found.low == pytest.approx(high - low, rel=0.08)


def test_all_metrics_of_a_single_variant_are_drawn():
    """Six of many would be a choice."""
    study = study_of({"softmax": (5, 6, 7), "a": (6, 7.1, 7.9), "b": (5.1, 5.8, 7.3)})
    many = [replace(metric(), title=f"m{place}") for place in range(8)]
    both = compare_all(study, many)
    single = [one for one in both if one.variant == "a"]
    for compared, drawn in ((single, 8), (single[:6], 1), (both, 2)):
        panels, words = page._pictures(Section(title="", body=[], compared=compared))
        figure = Figure()
        panels[0].draw(figure)
        (axes,) = figure.axes
        assert len(axes.get_yticks()) == drawn and len(panels) == (1 if drawn == 8 else 6)
        assert ("m7" in words) == (drawn == 8)
    panels, _ = page._pictures(Section(title="", body=[], compared=single))
    figure = Figure()
    panels[0].draw(figure)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == [f"m{place}" for place in reversed(range(8))]


@pytest.mark.parametrize(
    ("acting", "said"),
    [
        (
            {2: "0.6,0,0,1", 3: "0.6,0,0,1"},
            "p 0.6, i 0.0, d 0.0, beta 1.0 in 2 of 4 layers (2 to 3)",
        ),
        ({0: "0.6,0,0,1", 3: "0.6,0,0,1"}, "p 0.6, i 0.0, d 0.0, beta 1.0 in 2 of 4 layers (0, 3)"),
        ({1: "0.6,0,0,1"}, "p 0.6, i 0.0, d 0.0, beta 1.0 in 1 of 4 layers (1)"),
        ({1: "0.4,0.1,0,1", 2: "0.4,0.05,0,1"}, "gains by layer"),
    ],
)
def test_the_table_says_in_which_layers_gains_act(acting, said):
    gains = [PIDGains.parse(acting.get(layer, "0,0,0,1")).to_dict() for layer in range(4)]
    study = study_of({"p": (5, 6, 7)}, recipe={"model": {"gains": gains}}, gains="(PIDGains(...")
    assert gains_text(study.variants[0]) == said


def test_what_no_difference_has_gets_no_column_and_bold_leaves_out_zero():
    study = study_of({"softmax": (5, 6, 7), "a": (6, 7.1, 7.9), "b": (5.1, 5.8, 7.3)})
    other = Metric(title="y", find=lambda run: None, read=len)
    made = differences_by_variant(compare_all(study, [metric(), other]), [metric(), other])
    assert made.splitlines()[0] == "|  | x |"
    assert cells(made, "a less softmax")[1].startswith("**+1.00 [")
    assert cells(made, "b less softmax")[1].startswith("+0.07 [")


@pytest.fixture
def clean(monkeypatch):
    """The one metric of a page."""
    found = Metric(title="Clean", find=metric().find, read=metric().read)
    for module in (classification, hypotheses, length, predict):
        monkeypatch.setattr(module, "classification_metrics", lambda *_: [found])
    return found


def test_a_registered_study_is_shown_by_group_and_its_claims_are_corrected_together(clean):
    values = {"softmax": (5, 6, 7), "p": (6, 7.1, 7.9), "pid": (5.1, 5.8, 7.3)}
    values |= {"pid_learned": (6.1, 7.0, 8.1), "pi": (4, 6, 8), "pi_leaky": (5, 7.1, 8.9)}
    values |= {"mine": (1, 2, 3)}
    study = replace(study_of(values, seeds=(10, 11, 12)), name="tiny-imagenet-100")
    first, asked, main, gains, integral, mine = classification_sections(study)
    assert [s.title.split(":")[0] for s in (main, gains, integral)] == [
        "`main`",
        "`gains`",
        "`integral`",
    ]
    assert mine.title == "Rows that are not registered"
    assert cells(integral.body[-1], "pi_leaky less pi")[1].strip("*").startswith("+1.00 [")
    assert cells(integral.body[0], "softmax") and "| p |" not in integral.body[0]  # with its twin
    said = {
        line.split(" |")[0]: cells(first.body[-1], line.split(" |")[0][2:])
        for line in first.body[-1].splitlines()[2:]
    }
    gain = [np.subtract(values[row], values["softmax"]) for row in ("p", "pid", "pid_learned")]
    ps = sorted(stats.ttest_1samp(one, 0).pvalue for one in gain)
    assert said["| p less softmax"][1:4] == ["Clean", "better", "+1.00 [+0.75, +1.25]"]
    assert {line[5] for line in said.values()} == {
        f"{k * p:.2g}" for k, p in zip((3, 2, 1), ps, strict=True)
    }
    assert first.findings[0].endswith("wins: p, pid_learned; losses: none.")
    assert (
        cells(asked.body[1], "H1, primary")[3]
        == "better: p on Clean, pid_learned on Clean; not resolved: 1"
    )
    assert ("pi_leaky", "pi") in load_study().contrasts


def test_rows_that_differ_in_length_alone_are_set_side_by_side(clean, tmp_path):
    def of(name, numbers, epochs, gains, seeds=(10, 11)):
        about = {"model": {"gains": gains}, "schedule": {"epochs": epochs, "warmup_epochs": 1}}
        return study_of({name: numbers}, seeds, recipe=about, twin=f"t{epochs}").runs

    runs = [
        *of("softmax", (5, 6), 100, None),
        *of("softmax_40", (3, 4), 40, None),
        *of("softmax_other", (3, 4, 5), 40, None, seeds=(15, 16, 17)),
        *of("p", (5.5, 6.4), 100, "0.6,0,0,1"),
        *of("p_40", (5, 7), 40, "0.6,0,0,1"),
        *of("p_other", (4, 5.2, 6.1), 40, "0.6,0,0,1", seeds=(15, 16, 17)),
        *of("alone", (9, 9), 100, "0.1,0,0,1"),
    ]
    study = study_of({"softmax": (5, 6)}, (10, 11)).only(runs)
    compared = compare_all(study, [clean])
    (found,) = length.length_section(study, compared)
    assert "alone" not in found.body[1]
    assert cells(found.body[1], "p_40")[1:4] == ["40", "10, 11", "+2.50 [−3.85, +8.85]"]  # noqa: RUF001
    assert cells(found.body[1], "p_other")[3].startswith("**+1.10 [")  # in the picture: more seeds
    panels = [panel for panel, _ in found.panels]
    save_panels(panels, tmp_path / "x.png", columns=2)
    figure = Figure()
    panels[0].draw(figure)
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    assert list(lines["softmax"].get_ydata()) == [4, 5.5]
    assert list(lines["p"].get_ydata()) == [pytest.approx(5.1), pytest.approx(5.95)]
    short = [run for run in runs if run.variant in ("softmax", "p")]
    assert length.length_section(study.only(short), compared) == []


def test_the_margin_is_set_beside_the_accuracy(clean):
    kappas = torch.linspace(0, 1, 2001, dtype=torch.float64)
    for text in ("0.6,0,0,1", "0.5,0.5,0,1", "0.8,0.5,0.05,0.1"):
        gains = PIDGains.parse(text)
        assert worst_radius(gains) == pytest.approx(
            float(spectral_radius(kappas, gains).max()), abs=2e-3
        )
    runs = list(study_of({"softmax": (5, 6, 7)}).runs)
    given = {"a": "0.2,0,0,1", "b": "0.6,0,0,1", "c": "0.5,0.5,0,1", "d": "0.8,0.5,0.05,0.1"}
    for place, (name, gains) in enumerate(given.items()):
        own = {name: (5 + place, 6 + place, 7 + place)}
        runs += study_of(own, recipe={"model": {"gains": gains}}).runs
    study = study_of({"softmax": (5, 6, 7)}).only(runs)
    compared = compare_all(study, [clean])
    (found,) = prediction_section(study, compared)
    radii = [worst_radius(PIDGains.parse(text)) for text in given.values()]
    rank = stats.spearmanr(radii, range(4))
    assert f"{RADIUS} and the difference in Clean, 4 rows with softmax" in found.findings[0]
    assert f"{rank.statistic:+.2f}" in found.findings[0]
    assert cells(found.body[1], "d")[2] == f"{radii[3]:.3f}"
    assert len(found.panels) == 1  # nothing is known of the control's size
    few = study.only(runs[:6])
    assert prediction_section(few, compare_all(few, [clean])) == []


def test_rows_of_each_twin_have_panels_of_their_own(clean, tmp_path):
    given = {"a": "0.2,0,0,1", "b": "0.6,0,0,1", "c": "0.5,0.5,0,1", "d": "0.8,0.5,0.05,0.1"}
    runs = []
    for twin, height in (("", 1), ("_bare", 20)):
        own = {f"softmax{twin}": (5, 6, 7)}
        runs += study_of(own, twin=f"t{twin}").runs
        for name, gains in given.items():
            own = {f"{name}{twin}": (5 + height, 6 + height, 7 + height)}
            runs += study_of(own, twin=f"t{twin}", recipe={"model": {"gains": gains}}).runs
    study = study_of({"softmax": (5, 6, 7)}).only(runs)
    (found,) = prediction_section(study, compare_all(study, [clean]))
    heights = []
    for panel, _ in found.panels:
        figure = Figure()
        panel.draw(figure)
        (axes,) = figure.axes
        points = next(line for line in axes.lines if len(line.get_xdata()) == 4)
        heights.append((axes.get_title(), set(points.get_ydata())))
    assert heights == [("less softmax", {1}), ("less softmax_bare", {20})]
    assert "level" in found.findings[0]
