"""The tests that timm runs on each of its models, run on ours and on models that we converted.

They are no part of its wheel. From the source distribution of the installed version:

    pip download --no-binary :all: --no-deps timm==VERSION && tar xzf timm-*.tar.gz
    TIMM_TESTS=timm-VERSION/tests pytest tests/suites/test_timm.py

Those of TorchScript are left out: docs/convert.md says why, and tests/models/test_clients.py shows
torch.export in its place.
"""

import importlib.util
import os
import sys
from pathlib import Path

import pytest
import timm
import torch

import pidformer as pf

BESIDE = Path(timm.__file__).parents[1] / "tests"  # a checkout, installed in place
FILE = Path(os.environ.get("TIMM_TESTS", BESIDE)).resolve() / "test_models.py"
if not FILE.is_file():
    pytest.skip(
        "the tests of timm are in its source distribution; TIMM_TESTS names them",
        allow_module_level=True,
    )

GAINS = pf.PIDGains(p=0.4, i=0.2, d=0.1, beta=0.8)
OURS, THEIRS = "pid_deit_tiny_patch16_224", "deit_tiny_patch16_224"
MODELS = {
    "softmax": (OURS, {}),
    "pid": (OURS, {"gains": GAINS}),
    "learned": (OURS, {"gains": GAINS, "learn_gains": True}),
    "converted": (THEIRS, {}),
}


@pytest.fixture(scope="module")
def suite():
    name = "timm_test_models"
    spec = importlib.util.spec_from_file_location(name, FILE)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=MODELS)
def name(request, suite, monkeypatch):
    """A name in timm's registry, which makes one of ours in the tests of timm."""
    name, options = MODELS[request.param]

    def create_model(name, **given):
        model = timm.create_model(name, **(options | given))
        is_plain = request.param == "converted" and hasattr(model, "blocks")
        return pf.convert(model, GAINS, inplace=True) if is_plain else model

    monkeypatch.setattr(suite, "create_model", create_model)
    torch.manual_seed(0)
    return name


def test_forward(suite, name):
    suite.test_model_forward(name, 1)


def test_backward(suite, name):
    suite.test_model_backward(name, 2)


def test_configuration(suite, name):
    suite.test_model_default_cfgs_non_std(name, 1, "meta")


def test_features(suite, name):
    suite.test_model_forward_intermediates_features(name, 1)


def test_intermediates(suite, name):
    suite.test_model_forward_intermediates(name, 1)


def test_pruning(suite, name):
    suite.test_prune_intermediate_layers_contract(name)


def test_symbolic_trace(suite, name):
    suite.test_model_forward_fx(name, 1)


def test_gradients_of_a_symbolic_trace(suite, name):
    suite.test_model_backward_fx(name, 2)
