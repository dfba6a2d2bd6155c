import html
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from scipy import stats

import pidformer as pf
from pidformer import results
from pidformer.report.publish import publish
from pidformer.report.stability import LEAST_I
from pidformer.report.table1_view import TABLE1
from pidformer.report.table_view import Entry
from pidformer.report.write import entry_text, is_current, write_report
from pidformer.results import Record
from pidformer.training.nonfinite import describe_stability
from tests.report.fresh import classifiers
from tests.report.records import MACHINE, analysis, robustness, twins, write_run

pytestmark = pytest.mark.slow


class Page(HTMLParser):
    """Ids, links, images, tags, and the text of table rows."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.images, self.tags, self.rows = [], [], [], [], []
        self.cell = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append(tag)
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.links += [attributes["href"]] if tag == "a" else []
        if tag in ("img", "source"):
            self.images.append(attributes)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.cell = True
        if tag == "small" and self.cell:
            self.rows[-1][-1] += " | "

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.cell = None

    def handle_data(self, data):
        if self.cell:
            self.rows[-1][-1] += data.strip()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("report")
    twins(root / "runs")
    return write_report([root / "runs"], root / "out")


@pytest.fixture(scope="module")
def page(made):
    return Page(made.page.read_text(encoding="utf-8"))


def row(page, start):
    return next(cells for cells in page.rows if cells and cells[0].startswith(start))


def test_the_page_stands_alone(made, page):
    text = made.page.read_text(encoding="utf-8")
    assert not re.search(r"(src|href|srcset)=\"(?!#|data:)", text) and "script" not in page.tags
    assert "url(" not in text and "prefers-color-scheme: dark" in text and "@media print" in text
    assert page.images and all(i.get("alt", "-") for i in page.images)
    sources = [i.get("src") or i["srcset"] for i in page.images]
    assert all(s.startswith("data:image/svg+xml;base64,") for s in sources)


def test_numbers_are_means_over_seeds_with_student_intervals(made, page):
    cells = row(page, "Clean")
    softmax = np.array([round(40 * 0.5), round(40 * 0.55)]) / 40 * 100
    low, high = stats.t.interval(0.95, 1, softmax.mean(), stats.sem(softmax))
    assert cells[1] == f"{softmax.mean():.2f} | {low:.1f} to {high:.1f}"
    assert cells[2].startswith("62.50") and cells[3].startswith("+10.00")
    lines = made.tables[0]["lines"]
    assert lines[0]["models"]["pid"]["value"] == pytest.approx(62.5)


def test_every_number_leads_to_its_records_and_commands(page):
    assert len(page.ids) == len(set(page.ids))
    targets = {link.removeprefix("#") for link in page.links}
    assert len(page.links) > 15 and targets <= set(page.ids)
    shown = [cells for cells in page.rows if "pidformer" not in str(cells) and "top1 50" in cells]
    assert shown and "softmax-seed0" in shown[0][2]


def test_the_papers_numbers_are_marked_as_such(page):
    heading = next(cells for cells in page.rows if cells[0] == "Row")
    assert heading[-1] == "The paper | ImageNet, softmax / PID"
    assert row(page, "Clean")[-1] == "72.17 / 73.13"


def test_what_is_not_measured_says_so(made, page):
    for (name, metric), title in {
        ("spsa", "top-1"): "SPSA",
        ("imagenet-c", "mCE"): "ImageNet-C",
    }.items():
        cells = row(page, title)
        softmax, pid = TABLE1[name, metric]
        assert "not measured" in cells[1] and cells[-1] == f"{softmax:.2f} / {pid:.2f}"
    text = made.page.read_text(encoding="utf-8")
    assert "--suite paper" in text and "need a model of ImageNet" in text
    assert "--only table2" in text and "--only table3" in text


def test_figures_are_written_as_png_and_svg(made):
    names = {path.name for path in made.figures}
    stems = ("differences", "similarity", "attacks", "training", "stability")
    assert names == {f"{stem}.{end}" for stem in stems for end in ("png", "svg")}
    for path in made.figures:
        assert path.read_bytes().startswith(b"\x89PNG" if path.suffix == ".png" else b"<?xml")


def test_points_of_the_charts_say_their_numbers(made):
    text = html.unescape(made.page.read_text(encoding="utf-8"))
    tips = re.findall(
        r'<i class="tip[^"]*" style="left:([\d.]+)%;top:([\d.]+)%" data-tip="(.*?)"', text
    )
    said = {words: (float(left), float(top)) for left, top, words in tips}
    clean = made.tables[0]["lines"][0]["differences"]["pid"]
    word = next(words for words in said if words.startswith("Clean: +10.00 ["))
    assert f"[{clean['low']:+.1f}, {clean['high']:+.1f}]".replace("-", "\u2212") in word
    low, high = said["pid, layer 1: 0.1"], said["softmax, layer 1: 0.1"]
    last, other = said["pid, layer 3: 0.3"], said["softmax, layer 3: 0.4"]
    assert low[0] == high[0] < last[0] == other[0]  # by layer from the left
    assert other[1] < last[1] < low[1]  # the more alike, the higher


def test_the_words_of_a_figure_hold_its_numbers(page):
    words = [image["alt"] for image in page.images if "alt" in image]
    assert "softmax 0.400; pid 0.300" in next(w for w in words if w.startswith("Token similarity"))
    attack = next(w for w in words if w.startswith("Accuracy by budget"))
    assert "at 16/255" in attack and "softmax 22.5 %" in attack  # seeds: 20 and 25
    assert "-0.200" in next(w for w in words if w.startswith("Stable gains"))


def test_the_markdown_says_the_same(made):
    text = made.markdown.read_text(encoding="utf-8")
    assert "62.50" in text and "![Token similarity" in text and "pidformer analyze" in text
    widths = {}
    for line in text.splitlines():
        if line.startswith("|"):
            widths.setdefault(len(re.findall(r"(?<!\\)\|", line)), 0)
    assert all(width > 2 for width in widths)
    for finding in made.findings:
        assert finding in text


def test_similarity_and_rank_of_the_tokens_stand_side_by_side(made):
    lines = made.markdown.read_text(encoding="utf-8").splitlines()
    at = next(k for k, line in enumerate(lines) if "Effective rank" in line)
    assert re.split(r" ?\| ?", lines[at + 2])[2:4] == [
        "0.400 (0.400 to 0.400)",
        "4.0 (4.0 to 4.0)",
    ]


def test_findings_are_chosen_by_the_numbers(made):
    clean, threats, similarity = made.findings
    assert "pid 62.5 %, softmax 52.5 %" in clean and "+10.0 points" in clean
    assert threats.startswith("Under 1 threat, pid is")
    assert "softmax 0.400, pid 0.300" in similarity


def test_a_report_knows_whether_it_is_current(made):
    runs = made.out.parent / "runs"
    assert is_current([runs], made.out)
    assert not is_current([runs], made.out.parent)
    folder = runs / "pid-seed0"
    before = (folder / "results.jsonl").read_text()
    results.append(folder, robustness(folder, "noise", 0.5))
    assert not is_current([runs], made.out)
    (folder / "results.jsonl").write_text(before)
    assert is_current([runs], made.out)


@pytest.mark.usefixtures("undrawn")
def test_a_report_says_when_its_newest_record_was_made_and_not_when_it_was_printed(made, tmp_path):
    """So that the same records give the same bytes, whenever they are reported."""
    folder = tmp_path / "pid-seed0"
    shutil.copytree(made.out.parent / "runs" / "pid-seed0", folder)
    results.rewrite(folder, [replace(each, time=1e9) for each in results.read(folder)])
    publish([folder], tmp_path / "published")
    for source in (folder, tmp_path / "published"):
        found = write_report([source], tmp_path / "out")
        for path in (found.page, found.markdown):
            text = path.read_text(encoding="utf-8")
            assert "from records up to 2001-09-09 01:46 UTC." in text
            assert not re.search(r"\b20[2-9]\d-\d\d-\d\d\b", text)


@pytest.mark.usefixtures("undrawn")
def test_without_records_it_says_what_would_make_them(tmp_path):
    write_run(tmp_path / "runs" / "pid-seed0", "pid", 0)
    found = write_report([tmp_path / "runs"], tmp_path / "out")
    text = found.page.read_text(encoding="utf-8")
    for command in ("pidformer analyze", "--curve fgsm,pgd", "--suite quick"):
        assert command in text
    assert {p.stem for p in found.figures} == {"training", "stability"} and not found.findings


def other(folder, kind, place, value, metric, **more):
    names = {"segmentation": "views", "language": "split"}
    about = {names[kind]: place, "data": "set", "machine": MACHINE, "command": "pidformer evaluate"}
    results.append(folder, Record(kind=kind, metrics={metric: value}, settings=about | more))


@pytest.mark.usefixtures("undrawn")
def test_tables_2_and_3_have_the_papers_layout(tmp_path):
    for model, gap in (("softmax", 0.0), ("pid", 1.0)):
        folder = write_run(tmp_path / "runs" / f"{model}-seed0", model, 0)
        for place, value in (("single", 30.0), ("multi", 31.0)):
            other(folder, "segmentation", place, value + gap, "miou", row="clean")
            other(folder, "segmentation", place, 1.0, "miou", row="corruption/fog/3")
        for protocol, value in (("sliding", 35.0), ("segments", 99.0)):
            other(folder, "language", "valid", value - gap, "ppl", protocol=protocol)
            other(folder, "language", "valid", 88.0, "ppl", protocol=protocol, noise="Swap(0.1)")
    found = write_report([tmp_path / "runs"], tmp_path / "out")
    page = Page(found.page.read_text(encoding="utf-8"))
    tables = [cells for cells in page.rows if cells[0].startswith("pid-seed0")]
    assert tables[0][1:] == ["31.00", "+1.00", "32.00", "+1.00"] and tables[1][1] == "34.00"
    assert tables[1][2].startswith("\u22120.029") and "not measured" in tables[1][3]
    papers = [cells for cells in page.rows if cells[0].startswith("the paper, PID")]
    assert [cells[1::2] for cells in papers] == [["37.42", "38.28"], ["32.44", "33.45"]]


@pytest.mark.usefixtures("undrawn")
def test_mixed_runs_are_reported_when_asked_for(tmp_path):
    write_run(tmp_path / "runs" / "a", "softmax", 0, rows={"clean": 0.9})
    rows = {"clean": 0.8}
    lr = ["optim.lr=0.5"]
    write_run(tmp_path / "runs" / "b", "pid", 0, rows=rows, overrides=lr, data_hash="e" * 16)
    with pytest.raises(pf.InputError, match=r"optim.lr"):
        write_report([tmp_path / "runs"], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    found = write_report([tmp_path / "runs"], tmp_path / "out", mixed=True)
    assert len(found.tables) == 2  # other images: a table each
    assert "(--mixed)" in found.page.read_text(encoding="utf-8")


@pytest.mark.usefixtures("undrawn")
def test_the_same_row_with_two_threats_is_two_lines(tmp_path):
    folder = write_run(tmp_path / "runs" / "a", "pid", 0, rows={"clean": 0.9})
    for eps, share in (("1/255", 0.8), ("3/255", 0.6)):
        threat = f"PGD(eps={eps}, steps=2, step_size=0.1/255)"
        results.append(folder, robustness(folder, "pgd", share, threat=threat))
    found = write_report([tmp_path / "runs"], tmp_path / "out")
    values = [line["models"]["a"]["value"] for line in found.tables[0]["lines"]]
    assert values == [90, 80, 60]


@pytest.mark.usefixtures("undrawn")
def test_a_figure_of_an_earlier_report_does_not_stay(tmp_path):
    folder = write_run(tmp_path / "runs" / "a", "pid", 0)
    analysis(folder, [0.1, 0.2])
    out = tmp_path / "out"
    write_report([folder], out)
    assert (out / "figures" / "similarity.png").exists()
    kept = [r for r in results.read(folder) if r.kind != "analysis"]
    results.rewrite(folder, kept)
    write_report([folder], out)
    assert not (out / "figures" / "similarity.png").exists()


def test_bad_places_get_one_line(run, tmp_path):
    write_run(tmp_path / "runs" / "a", "pid", 0)
    (tmp_path / "file").write_text("")
    for arguments, words in [
        ([tmp_path / "gone"], "no folder"),
        ([tmp_path / "runs", "--out", tmp_path / "file"], "is a file"),
        ([tmp_path / "runs", "--out", "/proc/nowhere"], "choose another --out"),
    ]:
        code, out, err = run("report", *arguments)
        assert code == 2 and out == "" and words in err and err.count("\n") == 1


def test_the_command_as_json(run, tmp_path):
    twins(tmp_path / "runs", seeds=1)
    code, out, _ = run("report", tmp_path / "runs", "--out", tmp_path / "out", "--json")
    found = json.loads(out)
    assert code == 0 and found["runs"] == 2 and (tmp_path / "out" / "report.html").exists()
    assert found["tables"][0]["lines"][0]["models"]["pid-seed0"]["value"] == 60


def test_shades_of_controllers_with_an_integral_have_its_slow_mode_down_to_the_axis():
    from pidformer.report.stability import radii_map

    *_, radii = radii_map(0.05, 1.15, 2.1, LEAST_I)
    assert radii[0].min() > radii[1].min() > 0.85  # the smaller the integral, the slower
    *_, plain = radii_map(0.05, 1.15, 2.1, 0.0)
    assert plain[0].min() < 0.6 and (plain[1:] == radii[1:]).all()


def test_the_appendix_shows_the_similarity_that_the_table_does():
    layers = {f"similarity_layer_{k}": 0.1 * k for k in range(1, 13)}
    record = Record(kind="analysis", metrics=layers)
    found = entry_text(Entry(anchor="a", row="token_similarity", record=record, command=1))
    assert found["value"] == "similarity_layer_12 1.2"


@pytest.mark.usefixtures("undrawn")
def test_runs_of_other_methods_are_reported_without_a_map_of_gains(tmp_path):
    """They have no place in the plane of p and i."""
    runs = classifiers(tmp_path / "runs", seeds=(0,), variants={"softmax": "null", "xsa": "xsa"})
    write_report(runs, tmp_path / "report")
    page = (tmp_path / "report" / "report.md").read_text()
    assert "exclude 1.0" in page and "Feedback(" not in page
    assert "no run has PID gains" in page


def test_a_loss_that_breaks_under_another_method_names_it():
    assert describe_stability(pf.control.as_feedback("xsa")) == "control Feedback(exclude=1.0)"
    assert describe_stability(None) == "no controller"
