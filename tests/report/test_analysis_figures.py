import pytest
import torch
from matplotlib.colors import to_rgb
from PIL import Image

import pidformer as pf
from pidformer.analysis import certify, joint_trajectories, token_trajectory
from pidformer.report.analysis_figures import similarity_figure, spectrum_figure
from pidformer.report.panels import GOOD, PID, SOFTMAX, run_colors
from pidformer.report.trajectory import FRAMES, trajectory_plot
from tests.report.runs import small_vit


@pytest.fixture
def images():
    return torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def is_picture(path):
    with Image.open(path) as picture:
        return picture.format == "PNG" and len(set(picture.convert("L").getdata())) > 20


def curves(depth):
    numbers = [0.1 * k for k in range(depth)]
    return dict.fromkeys(("similarity", "effective_rank", "mean_token_residual"), numbers)


@pytest.mark.slow
def test_similarity_of_models_of_different_depths(tmp_path):
    models = {f"run {k}": curves(3 + k) for k in range(9)}
    models["run 1"] |= {"attention_rank": [2.0, 1.5, 1.2, 1.1], "attention_second": [0.5] * 4}
    flags = {label: k % 2 == 1 for k, label in enumerate(models)}
    similarity_figure(models, tmp_path / "a.png", is_controlled=flags)
    assert is_picture(tmp_path / "a.png") and len(list(tmp_path.iterdir())) == 1


@pytest.mark.slow
def test_spectra_of_controlled_and_free_models(tmp_path, images):
    models = {
        "softmax": certify(small_vit(), images),
        "pid": certify(small_vit("deit", depth=8), images),
    }
    spectrum_figure(models, tmp_path / "a.png")
    assert is_picture(tmp_path / "a.png")


def test_green_is_where_every_head_is_stable(tmp_path, images):
    """One head is stable in the whole picture, the other nearly nowhere."""
    model, greens = small_vit({"skip": 0.1, "own": 0.8}, learn_gains=True), []
    light = tuple(round(255 - 0.15 * (255 - 255 * c)) for c in to_rgb(GOOD))
    for skip in (0.1, -3.0):
        for block in model.blocks:
            block.attn.gains.raw_terms.data[0, 1] = skip
        spectrum_figure({"skip": certify(model, images)}, tmp_path / "a.png")
        with Image.open(tmp_path / "a.png") as picture:
            near = (abs(a - b) < 3 for pixel in picture.convert("RGB").getdata()
                    for a, b in [(sum(pixel), sum(light))] if pixel[1] > pixel[0])  # fmt: skip
            greens.append(sum(near))
    assert greens[0] > 10_000 and greens[1] < greens[0] / 100


@pytest.mark.slow
def test_the_tokens_as_picture_and_film(tmp_path, images):
    models = {"softmax": small_vit(), "pid": small_vit("0.4,0.1,0.05")}
    drawn = trajectory_plot(models, images[0], tmp_path / "t.png", is_controlled={"pid": True})
    assert is_picture(drawn.picture)
    with Image.open(drawn.film) as film:
        assert film.format == "GIF" and film.n_frames == 3 * FRAMES + 1
    assert drawn.film.stat().st_size < 1_000_000 and len(list(tmp_path.iterdir())) == 2


def test_one_plane_for_models_of_one_width(images):
    models = [small_vit(), small_vit("0.8,0.5,0.05")]
    joint = joint_trajectories(models, images[0])
    own = [token_trajectory(model, images[0]) for model in models]
    # a model's own plane shows the most of it, the common plane the most of both
    assert all(j.explained <= o.explained + 1e-9 for j, o in zip(joint, own, strict=True))
    assert [tuple(j.points.shape) for j in joint] == [(4, 5, 2)] * 2
    (alone,) = joint_trajectories(models[:1], images[0])
    torch.testing.assert_close(alone.points, own[0].points)


def test_the_common_plane_keeps_the_most_of_all(images):
    models = [small_vit(), small_vit("0.8,0.5,0.05")]
    groups = []
    for model in models:
        seen = [model.embed(images[:1])[0]]
        taken = model.forward_intermediates(
            images[:1], output_fmt="NLC", return_prefix_tokens=True, intermediates_only=True
        )
        seen += [torch.cat([prefix[0], rest[0]]) for rest, prefix in taken]
        unit = torch.nn.functional.normalize(torch.stack(seen).double(), dim=-1).detach()
        groups.append((unit - unit.mean((0, 1))).flatten(0, 1))
    together = torch.cat(groups)
    best = torch.linalg.eigvalsh(together.T @ together)[-2:].sum()
    found = sum(j.points.double().square().sum() for j in joint_trajectories(models, images[0]))
    torch.testing.assert_close(found, best, rtol=1e-5, atol=1e-6)


def test_different_widths_have_planes_of_their_own(images):
    narrow, wide = small_vit(), small_vit(embed_dim=32)
    joint = joint_trajectories([narrow, wide], images[0])
    torch.testing.assert_close(joint[1].points, token_trajectory(wide, images[0]).points)


def test_the_first_of_each_kind_has_its_colour():
    assert len({*run_colors([False, *[True] * 9])}) == 10  # the rows of `family`, and one more
    colors = run_colors([True, False, True, False, *[True] * 12])
    assert colors[:2] == [PID, SOFTMAX] and len(colors) == 16
    assert len(set(colors[:8])) == 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: similarity_figure({}, "a.png"), "at least one"),
        (lambda x: similarity_figure({"a": curves(2)}, "a.bmp"), "must end in"),
        (lambda x: spectrum_figure({}, "a.png"), "at least one"),
        (lambda x: trajectory_plot({}, x[0], "a.png"), "at least one"),
        (lambda x: trajectory_plot({"a": small_vit()}, x[0], "a.svg"), "must end in"),
        (lambda x: trajectory_plot({"a": small_vit()}, x, "a.png"), "one image"),
        (lambda x: joint_trajectories([], x[0]), "at least one"),
    ],
)
def test_bad_input_gets_one_line(images, call, words):
    with pytest.raises(pf.InputError, match=words) as refused:
        call(images)
    assert "\n" not in str(refused.value)
