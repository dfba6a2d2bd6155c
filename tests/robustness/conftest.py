import pytest
import torch
import torch.nn.functional as F
from torch import nn


@pytest.fixture(scope="session")
def data():
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels).double().reshape(-1, 1, 8, 8) / 16
    return images, torch.from_numpy(labels).long()


@pytest.fixture(scope="session")
def model(data):
    """A small network trained for a second on the first 1000 digits."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10)).double()
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    for _ in range(150):
        optimizer.zero_grad()
        F.cross_entropy(network(data[0][:1000]), data[1][:1000]).backward()
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return network


@pytest.fixture
def batch(data):
    return data[0][1000:1040], data[1][1000:1040]
