from __future__ import annotations

import numpy as np
import pytest
import timm.data.mixup as timm_mixup
import torch
from hypothesis import given
from hypothesis import strategies as st

from pidformer.data import Augment
from pidformer.data.augment import Mix, draw_mix, mix_images, soft_targets


@given(st.floats(0, 1), st.floats(0, 0.9), st.integers(0, 2**31))
def test_targets_equal_timms_on_each_pair(share, smoothing, seed):
    labels = torch.randint(5, (6,), generator=torch.Generator().manual_seed(seed))
    found = soft_targets(labels, 5, Mix(share, None), smoothing)
    # timm pairs with the flipped batch; of two images that is the neighbour
    pairs = [timm_mixup.mixup_target(pair, 5, share, smoothing) for pair in labels.split(2)]
    torch.testing.assert_close(found, torch.cat(pairs))
    torch.testing.assert_close(found.sum(1), torch.ones(6))


def test_smoothed_targets_give_the_loss_of_label_smoothing():
    labels, logits = torch.tensor([0, 3, 1, 1]), torch.randn(4, 5)
    found = soft_targets(labels, 5, Mix(1.0, None), 0.1)
    expected = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=0.1)
    torch.testing.assert_close(torch.nn.functional.cross_entropy(logits, found), expected)


def test_mixup_equals_timm_on_each_pair():
    images = torch.rand(6, 3, 5, 5)
    found = mix_images(images, Mix(0.3, None))
    expected = torch.cat([pair * 0.3 + pair.flip(0) * 0.7 for pair in images.split(2)])
    torch.testing.assert_close(found, expected)


def test_cutmix_takes_the_box_from_the_neighbour():
    images = torch.rand(4, 3, 6, 6)
    found = mix_images(images, Mix(0.5, (1, 4, 2, 6)))
    expected = images.clone()
    expected[:, :, 1:4, 2:6] = images[[1, 0, 3, 2], :, 1:4, 2:6]
    assert torch.equal(found, expected)


def test_unmixed_batch_is_left_alone():
    images = torch.rand(3, 3, 2, 2)
    assert mix_images(images, Mix(1.0, None)) is images


@pytest.mark.parametrize("seed", range(8))
def test_cutmix_box_and_share_equal_timms(seed, monkeypatch):
    augment = Augment(cutmix=1.0)
    mix = draw_mix(np.random.default_rng(seed), augment, 20, 32)
    rng = np.random.default_rng(seed)
    rng.random()  # whether the batch is mixed
    centre = [rng.integers(20), rng.integers(32)]
    monkeypatch.setattr(np.random, "randint", lambda *_, **__: centre.pop(0))
    share = rng.beta(1.0, 1.0)
    (top, bottom, left, right), corrected = timm_mixup.cutmix_bbox_and_lam((3, 20, 32), share)
    assert mix.box == (top, bottom, left, right)
    assert mix.share == pytest.approx(corrected)


def drawn(count: int = 3000, **fields: float) -> list[Mix]:
    return [
        draw_mix(np.random.default_rng(seed), Augment(**fields), 16, 16) for seed in range(count)
    ]


def test_mixup_shares_follow_the_beta_distribution():
    shares = np.array([mix.share for mix in drawn(mixup=0.8)])
    assert shares.mean() == pytest.approx(0.5, abs=0.03)
    assert shares.var() == pytest.approx(1 / (4 * (2 * 0.8 + 1)), abs=0.01)


def test_switch_and_mix_probabilities():
    mixes = drawn(mixup=0.8, cutmix=1.0, mix_prob=0.6, switch_prob=0.25)
    unmixed = np.mean([mix == Mix(1.0, None) for mix in mixes])
    cut = np.mean([mix.box is not None for mix in mixes])
    assert unmixed == pytest.approx(0.4, abs=0.04)
    assert cut == pytest.approx(0.6 * 0.25, abs=0.03)
    assert all(mix.box is None for mix in drawn(50, mixup=0.8, switch_prob=1.0))
    assert all(mix.box is not None for mix in drawn(50, cutmix=1.0, switch_prob=0.0))
