"""One image under attack, and pictures from visitors."""

import base64
import io
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pidformer.errors import InputError
from pidformer.evaluation.suite import curve_suite, read_budgets
from pidformer.lab.attack import (
    ATTACKS,
    LADDER,
    Answer,
    Attacked,
    AttackKnobs,
    amplification,
    as_input,
    attack,
    opening,
)
from pidformer.lab.pictures import (
    HANDFUL,
    MOST_BYTES,
    LabelledPicture,
    PictureSets,
    read_upload,
    take_upload,
)
from pidformer.lab.runs import DEMO, EXAMPLES, Catalogue, example_runs, labels
from pidformer.report.collect import Run
from pidformer.runs.open import Subject, open_subject

pytestmark = pytest.mark.slow


def png(width=30, height=20, kind="PNG"):
    kept = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(kept, kind)
    return kept.getvalue()


def digit(number):
    return PictureSets({}).picture("digits", number)


@pytest.fixture(scope="module")
def subject(home):
    return Catalogue([], home).subject("digits example, PID")


def test_the_examples_are_as_accurate_as_their_readme_says():
    """Accuracy by predictions counted one by one, against the numbers in README.md."""
    from pidformer.data import EvalImages, open_images

    told = (EXAMPLES / "README.md").read_text()
    (batch,) = EvalImages(open_images("digits", "val"), image_size=8, batch_size=360)
    for folder in DEMO.values():
        guesses = open_subject(EXAMPLES / folder).model(batch.images).argmax(-1).tolist()
        right = sum(a == b for a, b in zip(guesses, batch.targets.tolist(), strict=True))
        assert f"| `{folder}` | {100 * right / 360:.2f} % |" in told
    assert sum(path.stat().st_size for path in EXAMPLES.rglob("*") if path.is_file()) < 1e6


def test_examples_are_copied_once_and_keep_new_records(tmp_path):
    first = example_runs(tmp_path / "home")
    assert all(folder.parent == tmp_path / "home" for folder in first.values())
    mine = first["digits example, PID"] / "results.jsonl"
    mine.write_text("")
    assert example_runs(tmp_path / "home") == first and mine.read_text() == ""
    (first["digits example, PID"] / "model.safetensors").write_bytes(b"of an earlier version")
    example_runs(tmp_path / "home")
    assert mine.read_text() != ""  # copied anew, whole


def test_where_nothing_can_be_written_the_examples_themselves_are_shown(tmp_path):
    (tmp_path / "file").write_text("")
    assert set(example_runs(tmp_path / "file").values()) == {EXAMPLES / f for f in DEMO.values()}


def test_the_view_opens_on_the_weakest_attack_of_the_ladder_that_changes_an_answer(home):
    catalogue = Catalogue([], home)
    subjects = [catalogue.subject(name) for name in DEMO]
    found = opening(subjects, map(digit, range(8)), AttackKnobs())
    assert found.strength in LADDER

    def held(number, strength):
        knobs = AttackKnobs(strength=strength)
        return [attack(s, digit(number), knobs).after.chances for s in subjects], digit(
            number
        ).label

    after, truth = held(found.number, found.strength)
    assert any(np.argmax(each) != truth for each in after)
    for weaker in (0, *LADDER[: LADDER.index(found.strength)]):
        after, truth = held(found.number, weaker)
        assert all(np.argmax(each) == truth for each in after)


def test_where_no_attack_changes_an_answer_the_view_opens_on_its_defaults():
    class Sure(torch.nn.Module):
        def forward(self, x):
            return x.flatten(1) @ torch.zeros(192, 2) + torch.tensor([0.0, 1.0])

    sure = Subject(name="sure", label="sure", model=Sure(), image_size=8)
    pictures = [LabelledPicture(Image.new("RGB", (8, 8)))] * 2
    assert opening([sure], pictures, AttackKnobs()) == AttackKnobs()


def test_every_picture_has_a_thumbnail_of_its_own(tmp_path):
    folder = write_set(tmp_path / "pets", count=2)
    (folder / "val" / "cat" / "00.png").write_bytes(b"nonsense")
    sets = PictureSets.of([], folder)
    assert sets.count("digits") == len(sets.thumbnails("digits")) == HANDFUL
    names, uris = zip(*sets.thumbnails("pets"), strict=True)
    assert sorted(names) == ["cannot be read", "cat", "dog", "dog"] and sets.count("pets") == 4
    assert sorted(uri[:22] for uri in uris) == ["", *["data:image/png;base64,"] * 3]
    small = Image.open(io.BytesIO(base64.b64decode(sets.thumbnails("digits")[3][1][22:])))
    assert np.array_equal(np.array(small)[..., 0], np.array(digit(3).image.convert("L")))


def test_a_picture_becomes_what_the_model_was_evaluated_with(subject):
    picture = digit(7)
    image = as_input(subject, picture.image)
    from pidformer.data import EvalImages, open_images

    (batch,) = EvalImages(open_images("digits", "val"), image_size=8, batch_size=360)
    torch.testing.assert_close(image[0], batch.images[7])
    assert picture.truth(subject.classes) == int(batch.targets[7])


@pytest.mark.parametrize("kind", ["fgsm", "pgd", "apgd"])
def test_an_attack_stays_in_its_budget_and_hurts(subject, kind):
    picture = next(
        each
        for each in map(digit, range(360))
        if int(subject.model(as_input(subject, each.image)).argmax()) == each.label
    )
    truth = picture.label
    found = attack(subject, picture, AttackKnobs(attack=kind, strength=48))  # apgd: all or nothing
    assert 0 < float(found.change.abs().max()) <= 48 / 255 + 1e-6
    after = found.after.chances
    assert after[truth] < found.before.chances[truth]
    assert sum(after) == pytest.approx(1, abs=1e-5)
    assert len(found.after.similarity) == 8
    assert f"{after[truth]:.1%}" in found.verdict
    assert 0.25 <= amplification([found]) * float(found.change.abs().max()) <= 0.5


def test_an_answer_shows_the_likeliest_classes_before_or_after_and_says_what_changed():
    image = torch.zeros(1, 2, 2)
    before, after = [0.3, 0.02, 0.4, 0.08, 0.2, 0.0], [0.1, 0.6, 0.05, 0.2, 0.0, 0.05]
    answers = {"before": Answer(image, before, []), "after": Answer(image, after, [])}
    names = tuple("abcdef")
    found = Attacked(label="it", classes=names, truth=2, is_controlled=False, **answers)
    assert found.likeliest(3) == [0, 1, 2]  # 0.3 before, 0.6 after, 0.4 before
    assert found.likeliest(5) == [0, 1, 2, 3, 4]  # not f
    assert found.verdict.startswith("it now says b: c falls from 40.0% to 5.0%")
    assert "took it for c even before" in replace(found, truth=0).verdict


def test_without_strength_nothing_changes(subject):
    found = attack(subject, digit(0), AttackKnobs(strength=0))
    assert float(found.change.abs().max()) == 0 and found.before.chances == found.after.chances


def test_what_a_visitor_uploads_is_judged_by_what_the_model_said_before(subject):
    found = attack(subject, LabelledPicture(read_upload(png())), AttackKnobs())
    assert found.truth == int(np.argmax(found.before.chances)) and not found.is_known


def write_set(folder, classes=("cat", "dog"), count=30):
    for split in ("train", "val"):
        for k, name in enumerate(classes):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                color = (7 * number % 256, 40 * k, 200)
                Image.new("RGB", (9, 9), color).save(folder / split / name / f"{number:02}.png")
    return folder


def run_on(name, task="classification"):
    return Run(folder=Path("run"), records=(), recipe={"task": task, "data": {"name": name}})


def test_pictures_of_a_runs_own_data_are_found_where_they_are(tmp_path, monkeypatch):
    folder = write_set(tmp_path / "pets")
    assert PictureSets.of([run_on("pets")]).names == ["digits"]
    monkeypatch.setenv("PIDFORMER_DATA", str(tmp_path))
    for name in ("..", "../" + tmp_path.name, str(folder), "absent", ""):  # sets, not places
        assert PictureSets.of([run_on(name)]).names == ["digits"]
    assert PictureSets.of([run_on("pets", "segmentation")]).names == ["digits"]
    sets = PictureSets.of([run_on("pets"), run_on("digits"), run_on("pets")])
    assert sets.names == ["digits", "pets"] and sets.folders["pets"] == folder
    shown = [sets.picture("pets", number) for number in range(HANDFUL)]
    assert len({each.image.tobytes() for each in shown}) == HANDFUL
    for each in shown:
        assert each.image.getpixel((0, 0))[1] == 40 * each.label
        assert each.truth(("cat", "dog")) == each.label and each.truth(("dog", "cat")) is None
    with pytest.raises(InputError, match="not among the pictures"):
        sets.picture(str(folder), 0)


def test_a_data_folder_is_offered_by_its_name_and_refused_if_it_is_none(tmp_path):
    write_set(tmp_path / "pets", count=3)
    sets = PictureSets.of([], tmp_path / "pets")
    assert sets.names == ["digits", "pets"]
    assert sets.picture("pets", 7).label == sets.picture("pets", 1).label  # six of them
    with pytest.raises(InputError, match="no folder at"):
        PictureSets.of([], tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no image set in"):
        PictureSets.of([], tmp_path / "empty").picture("empty", 0)


def test_a_data_folder_called_as_the_digits_is_not_taken_for_them(tmp_path, home):
    folder = write_set(tmp_path / "digits", count=3)
    catalogue = Catalogue([], home, folder)
    name = catalogue.first_pictures("digits example, PID")
    assert catalogue.pictures.names == ["digits", name] == ["digits", str(folder)]
    assert catalogue.pictures.picture(name, 0).classes == ("cat", "dog")
    assert catalogue.pictures.picture("digits", 0).classes == tuple("0123456789")


def test_a_damaged_picture_of_a_set_is_named(tmp_path):
    folder = write_set(tmp_path / "pets", count=1)
    for path in (folder / "val").rglob("*.png"):
        path.write_bytes(b"nonsense")
    with pytest.raises(InputError, match=r"val/cat/00.png cannot be read"):
        PictureSets.of([], folder).picture("pets", 0)


def test_the_class_of_a_picture_counts_only_for_models_that_have_it(subject, tmp_path):
    pet = PictureSets.of([], write_set(tmp_path / "pets", count=1)).picture("pets", 1)
    assert not attack(subject, pet, AttackKnobs(strength=4)).is_known
    assert attack(subject, digit(3), AttackKnobs(strength=4)).is_known


def test_the_python_of_a_view_says_what_the_view_says(home, subject, tmp_path, capsys, monkeypatch):
    where = str(home / "digits-pid")
    write_set(tmp_path / "pets", count=1)
    (tmp_path / "mine.png").write_bytes(png())
    monkeypatch.chdir(tmp_path)
    sets = PictureSets.of([], tmp_path / "pets")
    shown = (
        (AttackKnobs(number=7, attack="fgsm", strength=9), Path("digits"), digit(7)),
        (
            AttackKnobs(images="pets", number=1, attack="fgsm"),
            sets.folders["pets"],
            sets.picture("pets", 1),
        ),
        (AttackKnobs(attack="noise", strength=3), None, LabelledPicture(read_upload(png()))),
    )
    for knobs, folder, picture in shown:
        exec(knobs.python(where, folder), {})
        assert capsys.readouterr().out.strip() == attack(subject, picture, knobs).verdict


@pytest.mark.parametrize("kind", ATTACKS)
def test_the_command_of_a_view_measures_the_attack_that_it_shows(kind):
    knobs = AttackKnobs(attack=kind, strength=9)
    words = shlex.split(knobs.command(["a run"], "digits"))
    named, eps = (words[words.index(option) + 1] for option in ("--curve", "--eps"))
    _, row = curve_suite([named], read_budgets(eps)).rows
    assert row.threat == knobs.threat


def test_the_command_of_a_view_runs(home, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(home / "digits-pid", "a run")
    _, *words = shlex.split(AttackKnobs(attack="fgsm", strength=9).command(["a run"], "digits"))
    code, out, _ = run(*words, "--limit", 20)
    assert code == 0 and "9/255" in out


def test_only_models_of_the_lab_can_be_chosen(home):
    with pytest.raises(InputError, match="not among the models"):
        Catalogue([], home).subject("/etc")


def test_runs_of_one_name_keep_their_paths(home):
    (run,) = [run for run in Catalogue([home], home).runs if run.label == "digits-pid"]
    assert list(labels([run])) == ["digits-pid"]
    assert list(labels([run, run])) == [str(run.folder)]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no PNG, JPEG or WebP"),
        (b"\x89PNG\r\n\x1a\n" + b"nonsense" * 9, "no PNG, JPEG or WebP"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no PNG, JPEG or WebP"),
        (png(kind="GIF"), "no PNG, JPEG or WebP"),
        (png(200, 200, "JPEG")[:-200], "damaged"),
        (png(8000, 6000), "8000 x 6000 pixels; at most 40 million"),
    ],
    ids=["empty", "nonsense", "svg", "gif", "cut", "huge"],
)
def test_a_bad_upload_is_refused_in_one_line(data, said):
    with pytest.raises(InputError, match=said):
        read_upload(data)


def test_an_upload_is_removed_when_it_is_good(tmp_path):
    path = tmp_path / "upload.png"
    path.write_bytes(png())
    assert take_upload(path).size == (30, 20)
    assert not path.exists()


@pytest.mark.parametrize(
    ("data", "said"), [(b"nonsense", "no PNG"), (bytes(MOST_BYTES + 1), "8.0 MB; at most 8 MB")]
)
def test_an_upload_is_removed_when_it_is_bad(tmp_path, data, said):
    path = tmp_path / "upload.png"
    path.write_bytes(data)
    with pytest.raises(InputError, match=said):
        take_upload(path)
    assert not path.exists()


def test_the_similarity_chart_has_every_layer_before_and_after(subject):
    pytest.importorskip("gradio")
    from pidformer.lab.attack_view import attack_html

    found = attack(subject, digit(7), AttackKnobs())
    text = attack_html([found])
    for layer, (before, after) in enumerate(
        zip(found.before.similarity, found.after.similarity, strict=True), start=1
    ):
        assert f'data-tip="{subject.label}, before, layer {layer}: {before:.4g}"' in text
        assert f'data-tip="{subject.label}, after, layer {layer}: {after:.4g}"' in text
