"""One image under attack, and pictures from visitors."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from pidformer.errors import InputError
from pidformer.lab.attack import AttackKnobs, amplification, as_input, attack, digit
from pidformer.lab.runs import Shelf, labels, train_demo
from pidformer.lab.uploads import MOST_BYTES, read_upload, take_upload
from pidformer.training import load_recipe


def png(width=30, height=20, kind="PNG"):
    kept = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(kept, kind)
    return kept.getvalue()


@pytest.fixture(scope="module")
def subject(home):
    return Shelf.of([], home).subject("digits demo, PID")


def test_the_demo_is_trained_once_and_tells_how_far_it_is(tmp_path):
    told = []
    options = {"overrides": ["schedule.epochs=2"], "told": lambda *words: told.append(words)}
    train_demo("softmax", tmp_path / "run", **options)
    assert told[-1][0] <= 1 and "epoch" in told[-1][1]
    before = (tmp_path / "run" / "model.safetensors").stat().st_mtime_ns
    train_demo("softmax", tmp_path / "run", **options)
    assert (tmp_path / "run" / "model.safetensors").stat().st_mtime_ns == before
    assert load_recipe("digits/softmax.yaml").schedule.epochs > 2  # what a visitor gets


def test_a_picture_becomes_what_the_model_was_evaluated_with(subject):
    picture, label = digit(7)
    image = as_input(subject, picture)
    from pidformer.data import EvalImages, open_images

    (batch,) = EvalImages(open_images("digits", "val"), image_size=8, batch_size=360)
    torch.testing.assert_close(image[0], batch.images[7])
    assert label == int(batch.targets[7])


@pytest.mark.parametrize("kind", ["fgsm", "pgd", "apgd"])
def test_an_attack_stays_in_its_budget_and_hurts(subject, kind):
    picture, truth = next(
        (picture, truth)
        for picture, truth in map(digit, range(360))
        if int(subject.model(as_input(subject, picture)).argmax()) == truth
    )
    found = attack(subject, picture, AttackKnobs(attack=kind, strength=20), truth)
    assert 0 < float(found.change.abs().max()) <= 20 / 255 + 1e-6
    assert found.after[truth] < found.before[truth]
    assert sum(found.after) == pytest.approx(1, abs=1e-5)
    assert len(found.similarity_after) == 8
    assert f"{found.after[truth]:.1%}" in found.verdict
    assert 0.25 <= amplification([found]) * float(found.change.abs().max()) <= 0.5


def test_without_strength_nothing_changes(subject):
    found = attack(subject, digit(0)[0], AttackKnobs(strength=0), 0)
    assert float(found.change.abs().max()) == 0 and found.before == found.after


def test_what_a_visitor_uploads_is_judged_by_what_the_model_said_before(subject):
    found = attack(subject, read_upload(png()), AttackKnobs(), None)
    assert found.truth == int(np.argmax(found.before)) and not found.is_known


def test_only_models_of_the_lab_can_be_chosen(home):
    with pytest.raises(InputError, match="not among the models"):
        Shelf.of([], home).subject("/etc")


def test_runs_of_one_name_keep_their_paths(home):
    (run,) = [run for run in Shelf.of([home], home).runs if run.label == "digits-pid"]
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


def test_the_similarity_chart_is_valid_plotly(subject):
    go = pytest.importorskip("plotly.graph_objects")
    pytest.importorskip("gradio")
    from pidformer.lab.attack_view import similarity_figure

    picture, label = digit(7)
    figure = similarity_figure([attack(subject, picture, AttackKnobs(), label)])
    go.Figure(figure.to_dict())  # checks every property
    with pytest.raises(ValueError):
        go.Figure(figure.to_dict() | {"frames": 3})
