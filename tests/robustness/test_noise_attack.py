"""The laws of the random corruptions, and the hash that drives them."""

import numpy as np
import pytest
import torch
from scipy import stats

from pidformer.data.noise import indexed_keys, random_bits, uniform_noise
from pidformer.robustness.corruptions import Corruption
from pidformer.robustness.corruptions.corruption import severity_constants
from pidformer.robustness.corruptions.filters import RandomFields
from pidformer.robustness.corruptions.noise import shot_noise
from pidformer.robustness.threat import Draws as AttackDraws

GREY = torch.full((4, 3, 96, 96), 128 / 255)
FLOOR = 0.5 / 255  # truncation takes half a level on average


@pytest.mark.parametrize("severity", [1, 2, 3])
def test_gaussian_noise_has_its_standard_deviation(severity):
    (sigma,) = severity_constants("gaussian_noise", severity, 64).values()
    noise = Corruption(name="gaussian_noise", severity=severity).corrupt(GREY) - GREY
    assert noise.mean().item() == pytest.approx(-FLOOR, abs=4 * sigma / len(noise.ravel()) ** 0.5)
    assert noise.std().item() == pytest.approx(sigma, rel=0.02)


def test_speckle_noise_grows_with_the_intensity():
    for level in (51, 102):
        images = torch.full((4, 3, 96, 96), level / 255)
        noise = Corruption(name="speckle_noise", severity=2).corrupt(images) - images
        assert noise.std().item() == pytest.approx(0.2 * level / 255, rel=0.02)


@pytest.mark.parametrize("rate", [3, 60, 500])
@pytest.mark.parametrize("level", [0, 1, 40, 255])
def test_shot_noise_counts_are_poisson(rate, level):
    images = torch.full((2, 3, 100, 100), level / 255, dtype=torch.float64)
    draws = RandomFields(0, "shot_noise", 1, torch.arange(2))
    counts = (shot_noise(images, draws, rate) * rate).round().numpy().ravel().astype(int)
    mean = level / 255 * rate
    assert counts.mean() == pytest.approx(mean, abs=4 * (mean / counts.size) ** 0.5 + 1e-12)
    assert counts.var() == pytest.approx(mean, rel=0.06, abs=1e-12)
    if level == 0:
        return
    edges = np.unique(stats.poisson.ppf(np.linspace(0.02, 0.98, 15), mean))
    seen = np.bincount(np.searchsorted(edges, counts), minlength=len(edges) + 1)
    passed = stats.poisson.cdf(edges, mean)
    expected = counts.size * np.diff(passed, prepend=0, append=1)
    keep = expected > 5
    distance = ((seen - expected)[keep] ** 2 / expected[keep]).sum()
    assert stats.chi2.sf(distance, max(keep.sum() - 1, 1)) > 1e-4


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_impulse_noise_hits_its_share_half_salt_half_pepper(severity):
    (share,) = severity_constants("impulse_noise", severity, 64).values()
    result = Corruption(name="impulse_noise", severity=severity).corrupt(GREY)
    count = result.numel()
    for value in (0.0, 1.0):
        seen = (result == value).sum().item()
        assert abs(seen - count * share / 2) < 4 * (count * share / 2) ** 0.5
    assert ((result == 0) | (result == 1) | (result == GREY)).all()
    hit = result != GREY
    both = (hit[:, 0] & hit[:, 1]).float().mean().item()  # channels are hit independently
    assert both == pytest.approx(share**2, abs=4 * (share**2 / hit[:, 0].numel()) ** 0.5)


def test_uniform_noise_is_uniform_and_uncorrelated():
    keys = indexed_keys(123, 456, torch.arange(32))
    noise = uniform_noise(keys, 4096).double()
    assert stats.kstest(noise.ravel().numpy(), "uniform").pvalue > 1e-3
    correlation = torch.corrcoef(noise) - torch.eye(32)
    assert correlation.abs().max() < 5 / 4096**0.5
    neighbours = torch.corrcoef(torch.stack([noise[:, 1:].ravel(), noise[:, :-1].ravel()]))[0, 1]
    assert abs(neighbours) < 5 / noise.numel() ** 0.5


def test_random_bits_depend_on_both_words_of_the_key():
    bits = random_bits(torch.tensor([[1, 2], [1, 3], [2, 2]]), 1000)
    assert bits.min() >= 0 and bits.max() < 2**32
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert (bits[first] == bits[second]).sum() == 0


def test_keys_of_many_indices_differ():
    keys = indexed_keys(7, 8, torch.arange(50_000))
    assert len(torch.unique(keys, dim=0)) == 50_000


def test_purposes_and_severities_have_streams_of_their_own():
    index = torch.tensor([0])
    fields = [
        RandomFields(seed, name, severity, index).uniform(purpose, 100)
        for seed in (0, 1)
        for name in ("fog", "snow")
        for severity in (1, 2)
        for purpose in ("a", "b")
    ]
    assert len(torch.unique(torch.cat(fields), dim=0)) == 16


def test_normal_draws_of_different_images_are_independent():
    """Squares too: images that share the radii of Box-Muller have uncorrelated numbers as well."""
    drawn = AttackDraws.of_batch(torch.zeros(40, 1), 3, 0).normal(4000).double()
    assert drawn.mean().abs() < 0.02 and abs(drawn.std() - 1) < 0.02
    for numbers in (drawn, drawn.square()):
        between = torch.corrcoef(numbers) - torch.eye(40)
        assert between.abs().max() < 5 / 4000**0.5
    assert 0.5 < drawn.norm(dim=1).std() < 1.0  # 1 / sqrt 2


def test_normal_draws_do_not_depend_on_the_batch():
    whole = AttackDraws.of_batch(torch.zeros(6, 1), 0, 0).normal(5)
    part = AttackDraws.of_batch(torch.zeros(2, 1), 0, 3).normal(5)
    assert torch.equal(whole[3:5], part)
