from __future__ import annotations

import pytest
import torch

from pidformer.data.noise import normal_noise, random_bits


def test_noise_is_normal_and_uncorrelated():
    generator = torch.Generator().manual_seed(0)
    keys = torch.randint(2**32, (64, 2), generator=generator)
    noise = normal_noise(keys, 4097).double()
    assert noise.shape == (64, 4097)
    count = noise.numel()
    assert abs(noise.mean().item()) < 5 / count**0.5
    assert noise.var().item() == pytest.approx(1, abs=5 * (2 / count) ** 0.5)
    assert (noise**4).mean().item() == pytest.approx(3, abs=5 * (96 / count) ** 0.5)
    assert noise.abs().max() < 7
    # between images, between neighbouring pixels, between the two halves of Box-Muller
    for first, second in ((noise[:-1], noise[1:]), (noise[:, :-1], noise[:, 1:])):
        assert abs((first * second).mean().item()) < 5 / count**0.5
    half = 4097 // 2 + 1
    assert abs((noise[:, : half - 1] * noise[:, half:]).mean().item()) < 8 / count**0.5


def test_noise_of_close_keys_is_unrelated():
    keys = torch.stack([torch.arange(64), torch.arange(64)], dim=1)
    correlation = torch.corrcoef(normal_noise(keys, 2000)) - torch.eye(64)
    assert correlation.abs().max() < 0.12


def test_noise_depends_on_the_key_alone():
    keys = torch.tensor([[5, 6], [7, 8], [9, 10]])
    assert torch.equal(normal_noise(keys, 31)[1:2], normal_noise(keys[1:2], 31))


def test_the_hash_in_32_bits_equals_its_definition_in_whole_numbers():
    def scatter(x):
        x = (x ^ (x >> 15)) * 0x2C1B3C6D % 2**32
        x = (x ^ (x >> 12)) * 0x297A2D39 % 2**32
        return x ^ (x >> 15)

    keys = [[0, 2**32 - 1], [2**31, 123456789]]
    expected = [
        [scatter(scatter(scatter(scatter(k) ^ a) + scatter(k) & 0xFFFFFFFF) ^ b) for k in range(99)]
        for a, b in keys
    ]
    assert random_bits(torch.tensor(keys), 99).tolist() == expected
