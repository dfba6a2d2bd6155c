import json

import numpy as np
import pytest
from PIL import Image

from pidformer.data.segmentation import open_segmentation
from pidformer.report.segment_pictures import overlay, with_legend
from pidformer.training.run import train
from tests.data.pairs import write_ade, write_parquet
from tests.training.test_segmentation import recipe

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("segment")
    data = write_parquet(root / "data")
    run = root / "run"
    given = recipe("schedule.epochs=1", "train.checkpoint_steps=100")
    train(given, run, data=data, device="cpu", is_shown=False)
    return run, data


@pytest.fixture
def photographs(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name, size in (("a.png", (40, 30)), ("b.jpg", (19, 53))):
        Image.fromarray(rng.integers(255, size=(*size[::-1], 3), dtype=np.uint8)).save(
            folder / name
        )
    return folder


def test_overlays_and_label_maps(run, trained, photographs, tmp_path):
    out = tmp_path / "out"
    code, text, _ = run("segment", trained[0], photographs, "--out", out, "--device", "cpu")
    assert code == 0 and text.count("->") == 2
    palette = open_segmentation(trained[1], "val").palette
    for name, size in (("a", (40, 30)), ("b", (19, 53))):
        labels = Image.open(out / f"{name}.classes.png")
        assert labels.mode == "P" and labels.size == size
        indices = np.array(labels)
        assert indices.max() < 4
        assert np.array_equal(np.array(labels.convert("RGB")), palette[indices])
        picture = Image.open(out / f"{name}.overlay.png")
        assert picture.width > size[0] and picture.height >= size[1]
    legend = json.loads((out / "legend.json").read_text())
    assert legend["classes"] == ["red", "green", "blue", "grey"]


def test_json_and_views(run, trained, photographs, tmp_path):
    arguments = ["segment", trained[0], photographs / "a.png", "--out", tmp_path / "out"]
    code, text, _ = run(
        *arguments, "--views", "multi", "--max-windows", 3, "--json", "--device", "cpu"
    )
    (entry,) = json.loads(text)
    assert code == 0 and sum(entry["shares"].values()) == pytest.approx(100)


def test_an_overlay_is_a_blend_with_darker_edges():
    image = Image.new("RGB", (4, 2), (100, 100, 100))
    labels = np.array([[0, 0, 1, 1]] * 2)
    palette = np.array([[200, 0, 0], [0, 0, 200]], dtype=np.uint8)
    found = np.array(overlay(image, labels, palette, opacity=0.5))
    assert found[0, 0].tolist() == [150, 50, 50] and found[0, 3].tolist() == [50, 50, 150]
    assert found[0, 1].tolist() == [90, 30, 30]
    page = with_legend(Image.fromarray(found), labels, ["left", "right"], palette)
    assert page.width > 40 and page.height >= 40


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["missing.png"], "no image at missing.png"),
        (["--views", "many"], "unknown views 'many'"),
        (["--opacity", "2"], "opacity must be in [0, 1]"),
        (["--max-windows", "0"], "max_windows must be a whole number"),
    ],
)
def test_bad_input_is_one_line_and_code_2(run, trained, photographs, tmp_path, change, words):
    image = [photographs / "a.png"]
    code, _, error = run(
        "segment", trained[0], *image, "--out", tmp_path, "--device", "cpu", *change
    )
    assert code == 2 and words in error and len(error.splitlines()) == 1


def test_runs_and_files_that_cannot_be_segmented(run, trained, photographs, tmp_path):
    broken = photographs / "broken.png"
    broken.write_bytes(b"no")
    code, _, error = run("segment", trained[0], broken, "--out", tmp_path / "o", "--device", "cpu")
    assert code == 2 and "cannot read" in error and "broken.png" in error
    code, _, error = run("segment", photographs, photographs / "a.png")
    assert code == 2 and "not a run folder" in error
    (tmp_path / "empty").mkdir()
    code, _, error = run("segment", trained[0], tmp_path / "empty")
    assert code == 2 and "holds no image" in error
    (tmp_path / "twin").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "twin" / "a.png")
    code, _, error = run("segment", trained[0], photographs / "a.png", tmp_path / "twin" / "a.png")
    assert code == 2 and "several images are called a_png" in error


def test_training_on_a_bad_tree_is_one_line_and_code_2(run, tmp_path):
    root = write_ade(tmp_path, train=4, val=2)
    small = [
        "model.options={patch_size: 4, embed_dim: 16, depth: 1, num_heads: 2}",
        "data.image_size=16",
        "data.batch_size=2",
        "data.workers=0",
        "schedule.epochs=1",
        "segmentation.stride=12",
    ]
    arguments = [
        "train",
        "ade20k/segmenter_tiny_pid.yaml",
        *small,
        "--data",
        root,
        "--device",
        "cpu",
    ]
    code, _, error = run(*arguments, "--out", tmp_path / "a", "segmentation.scale=[4, 4]")
    assert code == 2 and "a crop of 16 pixels is larger than any image" in error
    bad = np.full((24, 32), 200, dtype=np.uint8)
    Image.fromarray(bad).save(root / "annotations/training/ADE_training_00000003.png")
    code, _, error = run(*arguments, "--out", tmp_path / "b", "segmentation.scale=[64, 24]")
    assert code == 2 and "ADE_training_00000003.png: the mask holds label 200" in error
    (root / "images/training/ADE_training_00000003.jpg").unlink()
    code, _, error = run(*arguments, "--out", tmp_path / "c", "segmentation.scale=[64, 24]")
    assert code == 2 and "no partner" in error and len(error.splitlines()) == 1


def test_evaluate_gives_miou(run, trained):
    folder, data = trained
    code, text, err = run("evaluate", folder, "--data", data, "--device", "cpu", "--json")
    assert code == 0, err
    (rows,) = json.loads(text)["runs"].values()
    assert 0 <= rows["clean"]["miou_low"] <= rows["clean"]["miou"] <= 100
    code, text, _ = run(
        "evaluate", folder, "--data", data, "--device", "cpu", "--views", "multi", "--limit", 2
    )
    assert code == 0 and "mIoU" in text
    for arguments, words in [
        (["--data", data, "--suite", "paper"], "clean, robustness"),
        ([], "--data DIR"),
        (["--data", data, "--views", "many"], "single"),
    ]:
        code, _, err = run("evaluate", folder, *arguments, "--device", "cpu")
        assert code == 2 and words in err and err.count("\n") == 1, err


def test_analyze_looks_at_the_encoder(run, trained, tmp_path):
    folder, data = trained
    arguments = ["--data", data, "--device", "cpu", "--limit", 3, "--spectrum-limit", 2]
    code, text, err = run("analyze", folder, *arguments, "--out", tmp_path, "--json")
    assert code == 0, err
    (found,) = json.loads(text)["models"]
    assert len(found["similarity"]["blocks"]) == 2 and isinstance(found["certificate"], dict)
    code, _, err = run("analyze", folder, "--device", "cpu", "--out", tmp_path)
    assert code == 2 and "--data DIR" in err
