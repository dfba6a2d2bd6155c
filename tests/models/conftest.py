"""A vision transformer small enough for every test."""

import pytest
import torch

from pidformer import PIDGains, PIDVisionTransformer

SMALL = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 4, "num_heads": 3}


@pytest.fixture
def gains():
    return PIDGains(p=0.4, i=0.2, d=0.1, beta=0.6)


@pytest.fixture
def build():
    """Build the small model; keywords override its size. The seed fixes its weights."""

    def build(cls=PIDVisionTransformer, **options):
        torch.manual_seed(0)
        return cls(**{**SMALL, "num_classes": 5, **options}).eval()

    return build


@pytest.fixture
def images():
    return torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
