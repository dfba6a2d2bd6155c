"""Windows and views against a direct, slow reading of the protocol."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pidformer.errors import InputError
from pidformer.models.sliding import MULTI_RATIOS, Sliding, View

CLASSES = 3


class Local(torch.nn.Module):
    """A model whose answer at a pixel depends on where the pixel stands in its window."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(3, CLASSES, 3, padding=1)
        self.sizes: list[int] = []

    def forward(self, x):
        self.sizes.append(len(x))
        ramp = torch.linspace(0, 1, x.shape[-1]) + torch.linspace(0, 2, x.shape[-2])[:, None]
        return self.conv(x) * (1 + ramp)


def resized(image, height, width):
    return F.interpolate(image, size=(height, width), mode="bilinear", align_corners=False)


def slow_view(model, image, scale, window, stride, ratio, flip):
    """Logits (K, H, W) of one image (3, H, W) by the protocol's sentences, pixel by pixel."""
    height, width = image.shape[-2:]
    long, short = int(scale[0] * ratio), int(scale[1] * ratio)
    factor = min(long / max(height, width), short / min(height, width))
    h, w = int(height * factor + 0.5), int(width * factor + 0.5)
    view = resized(image[None], h, w)
    if min(h, w) < window:
        new = (window, int(w / h * window)) if h < w else (int(h / w * window), window)
        view = resized(view, *new)
    if flip:
        view = torch.flip(view, (3,))
    h, w = view.shape[-2:]
    tops = [t for t in range(0, h, stride) if t < h - window] + [h - window]
    lefts = [t for t in range(0, w, stride) if t < w - window] + [w - window]
    total, count = torch.zeros(CLASSES, h, w), torch.zeros(h, w)
    for top in tops:
        for left in lefts:
            crop = view[..., top : top + window, left : left + window]
            total[:, top : top + window, left : left + window] += model(crop)[0]
            count[top : top + window, left : left + window] += 1
    logits = resized((total / count)[None], height, width)[0]
    return torch.flip(logits, (2,)) if flip else logits


@pytest.mark.parametrize("size", [(24, 24), (24, 37), (50, 31), (7, 9), (61, 20)])
@pytest.mark.parametrize("stride", [16, 11, 5])
def test_single_scale_equals_the_slow_reading(size, stride):
    model = Local()
    images = torch.rand(2, 3, *size)
    sliding = Sliding(scale=(96, 24), window=16, stride=stride, max_windows=5)
    with torch.no_grad():
        found = sliding.logits(model, images)
        for image, logits in zip(images, found, strict=True):
            expected = slow_view(model, image, (96, 24), 16, stride, 1.0, False)
            torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


def test_one_window_that_covers_the_image_is_the_model_itself():
    model = Local()
    images = torch.rand(2, 3, 16, 16)
    sliding = Sliding(scale=(64, 16), window=16, stride=15)
    with torch.no_grad():
        assert torch.equal(sliding.logits(model, images), model(images))


@pytest.mark.parametrize("size", [(24, 37), (40, 30)])
def test_multi_scale_is_the_mean_of_its_twelve_views(size):
    model = Local()
    images = torch.rand(2, 3, *size)
    sliding = Sliding(scale=(96, 24), window=16, stride=14, max_windows=7).multi()
    assert len(sliding.views) == 12
    with torch.no_grad():
        found = sliding.probabilities(model, images)
        labels, scores = sliding.labels(model, images), sliding.logits(model, images)
        for image, probabilities, logits in zip(images, found, scores, strict=True):
            views = [
                slow_view(model, image, (96, 24), 16, 14, ratio, flip)
                for ratio in MULTI_RATIOS
                for flip in (False, True)
            ]
            expected = torch.stack(views).softmax(1).mean(0)
            torch.testing.assert_close(probabilities, expected, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(logits, torch.stack(views).mean(0), atol=1e-5, rtol=1e-4)
    assert torch.equal(labels, found.argmax(1).to(torch.uint8))


def test_the_bound_on_windows_holds_and_changes_nothing():
    images = torch.rand(3, 3, 40, 30)
    found = []
    for bound in (1, 2, 7, 1000):
        model = Local()
        sliding = Sliding(scale=(96, 24), window=16, stride=8, max_windows=bound).multi()
        with torch.no_grad():
            found.append(sliding.probabilities(model, images))
        assert max(model.sizes) <= bound
        assert sum(model.sizes) == 3 * sliding.count(40, 30)
    for other in found[1:]:
        torch.testing.assert_close(found[0], other, atol=1e-6, rtol=1e-5)


def test_strips_change_nothing(monkeypatch):
    images = torch.rand(2, 3, 33, 21)
    sliding = Sliding(scale=(96, 24), window=16, stride=8).multi()
    model = Local()
    with torch.no_grad():
        whole = sliding.probabilities(model, images)
        monkeypatch.setattr("pidformer.models.sliding.STRIP", {False: 500})
        torch.testing.assert_close(sliding.probabilities(model, images), whole)
        assert torch.equal(sliding.labels(model, images), whole.argmax(1).to(torch.uint8))


def test_gradients_reach_the_pixels():
    images = torch.rand(1, 3, 20, 28, dtype=torch.float64, requires_grad=True)
    model = torch.nn.Conv2d(3, CLASSES, 3, padding=1).double()
    sliding = Sliding(scale=(64, 16), window=8, stride=6, max_windows=3)
    (gradient,) = torch.autograd.grad(sliding.logits(model, images).square().sum(), images)
    step = 1e-3 * torch.randn_like(images)
    with torch.no_grad():
        up, down = (
            sliding.logits(model, images + sign * step).double().square().sum() for sign in (1, -1)
        )
    assert float(up - down) / 2 == pytest.approx(float((gradient * step).sum()), rel=1e-3)


@given(length=st.integers(1, 400), window=st.integers(1, 200), stride=st.integers(1, 200))
@settings(max_examples=200, deadline=None)
def test_windows_cover_every_pixel_and_stay_inside(length, window, stride):
    length, stride = max(length, window), min(stride, window)
    starts = Sliding(scale=(8, 8), window=window, stride=stride).starts(length)
    covered = np.zeros(length, dtype=int)
    for start in starts:
        assert 0 <= start <= length - window
        covered[start : start + window] += 1
    assert covered.min() >= 1 and len(set(starts)) == len(starts)


def test_published_numbers_of_windows():
    """A 683 x 512 image at ADE20K's scale: two windows, one behind the other."""
    sliding = Sliding(scale=(2048, 512), window=512, stride=480)
    assert sliding.sizes(480, 640, 1.0) == [(512, 683)]
    assert sliding.sizes(480, 640, 0.5) == [(256, 341), (512, 682)]
    assert sliding.starts(683) == [0, 171] and sliding.starts(512) == [0]
    assert sliding.starts(1195) == [0, 480, 683]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"window": 0, "stride": 1}, "window must be a whole number"),
        ({"window": 8, "stride": 9}, "stride 9 is larger than the window of 8"),
        ({"window": 8, "stride": 8, "max_windows": 0}, "max_windows"),
        ({"window": 8, "stride": 8, "views": ()}, "at least one view"),
    ],
)
def test_what_cannot_be_gets_one_clear_line(fields, words):
    with pytest.raises(InputError, match=words):
        Sliding(scale=(8, 8), **fields)


def test_views_by_name():
    fields = {"scale": [64, 16], "window": 16, "stride": 15}
    assert Sliding.of(fields).views == (View(1.0, False),)
    assert len(Sliding.of(fields, "multi").views) == 12
    with pytest.raises(InputError, match="unknown views 'multy'; did you mean 'multi'"):
        Sliding.of(fields, "multy")
    with pytest.raises(InputError, match=r"floats \(B, channels"):
        Sliding.of(fields).labels(Local(), torch.zeros(3, 8, 8))


def test_no_images_have_no_labels():
    sliding = Sliding(scale=(48, 24), window=16, stride=12).multi()
    assert sliding.labels(Local(), torch.rand(0, 3, 24, 37)).shape == (0, 24, 37)
    with pytest.raises(InputError, match=r"\(1, 3, 0, 37\)"):
        sliding.labels(Local(), torch.rand(1, 3, 0, 37))


@pytest.mark.parametrize("classes", [255, 256])
def test_a_class_that_a_byte_cannot_name_is_refused(classes):
    def last(x):
        scores = torch.zeros(len(x), classes, *x.shape[-2:])
        scores[:, -1] = 1
        return scores

    sliding, image = Sliding(scale=(16, 16), window=16, stride=16), torch.rand(1, 3, 16, 16)
    if classes == 255:
        assert sliding.labels(last, image).unique().item() == 254
        return
    with pytest.raises(InputError, match=r"probabilities\(...\)\.argmax"):
        sliding.labels(last, image)
