"""The losses of attacks against their definitions, one image at a time."""

import math

import pytest
import torch

from pidformer.robustness.losses import cross_entropy, dlr, logit_difference, margin, targeted_dlr


@pytest.mark.parametrize("classes", [3, 4, 9])
def test_losses_equal_their_definitions(classes):
    draw = torch.Generator().manual_seed(classes)
    logits = 3 * torch.randn(40, classes, dtype=torch.float64, generator=draw)
    labels = torch.randint(classes, (40,), generator=draw)
    targets = (labels + torch.randint(1, classes, (40,), generator=draw)) % classes
    expected = []
    for z, y, t in zip(logits.tolist(), labels.tolist(), targets.tolist(), strict=True):
        high = sorted(z, reverse=True)
        gap = max(value for c, value in enumerate(z) if c != y) - z[y]
        towards = (z[t] - z[y]) / (high[0] - sum(high[2:4]) / 2) if classes > 3 else 0.0
        sure = math.log(sum(math.exp(value) for value in z)) - z[y]
        expected.append([sure, gap, gap / (high[0] - high[2]), z[t] - z[y], towards])
    expected = torch.tensor(expected, dtype=torch.float64).T
    found = [loss(logits, labels) for loss in (cross_entropy, margin, dlr)]
    found.append(logit_difference(logits, labels, targets))
    if classes > 3:
        found.append(targeted_dlr(logits, labels, targets))
    for mine, theirs in zip(found, expected, strict=classes > 3):
        torch.testing.assert_close(mine, theirs)
