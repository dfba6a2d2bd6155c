"""The tests that transformers runs on each of its models, run on ours.

They are no part of its wheel. From the source distribution of the installed version:

    pip download --no-binary :all: --no-deps transformers==VERSION && tar xzf transformers-*.tar.gz
    TRANSFORMERS_TESTS=transformers-VERSION/tests pytest tests/suites/test_transformers.py

They need the package `parameterized`. The source distribution has the common tests; those of
`generate` are in a checkout alone, and run from there. tests/models/language asks the same
questions in our own words.
"""

import importlib
import os
import sys
import types
import unittest
from pathlib import Path

import pytest
import torch
import transformers
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_MAPPING_NAMES,
)

from pidformer.models.causal_lm import PIDformerConfig, PIDformerForCausalLM, PIDformerModel
from tests.models.language.beside_llama import GAINS

PACKAGE = "transformers_tests"
BESIDE = Path(transformers.__file__).parents[2] / "tests"  # a checkout, installed in place
FOLDER = Path(os.environ.get("TRANSFORMERS_TESTS", BESIDE)).resolve()
if not (FOLDER / "test_modeling_common.py").is_file():
    pytest.skip(
        "the tests of transformers are in its source distribution; TRANSFORMERS_TESTS names them",
        allow_module_level=True,
    )
pytest.importorskip("parameterized", reason="the tests of transformers need parameterized")


def of_transformers(module: str, name: str) -> type:
    """A class of its tests, or an empty one where this copy of them leaves the file out."""
    if PACKAGE not in sys.modules:
        package = types.ModuleType(PACKAGE)
        package.__path__ = [str(FOLDER)]
        sys.modules[PACKAGE] = package
    full = f"{PACKAGE}.{module}"
    if not FOLDER.joinpath(*module.split(".")).with_suffix(".py").is_file():
        parent = full.rpartition(".")[0]
        sys.modules.setdefault(parent, types.ModuleType(parent))
        sys.modules[full] = types.ModuleType(full)
        setattr(sys.modules[full], name, type(name, (), {}))
    return getattr(importlib.import_module(full), name)


of_transformers("exporters.test_export", "ExportTesterMixin")
Generation = of_transformers("generation.test_utils", "GenerationTesterMixin")
Common = of_transformers("test_modeling_common", "ModelTesterMixin")
# Which tests a class is given labels in: transformers asks for its name in its own tables.
MODEL_MAPPING_NAMES["pidformer"] = "PIDformerModel"
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["pidformer"] = "PIDformerForCausalLM"

SIZES = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


class Sizes:
    """What the common tests ask about sizes, and a batch of them."""

    batch_size, seq_length, is_training = 13, 7, True
    num_hidden_layers, num_attention_heads, hidden_size = 2, 4, 32

    def __init__(self, make) -> None:
        self.make = make

    def get_config(self):
        return self.make(**SIZES, gains=GAINS)

    def prepare_config_and_inputs_for_common(self):
        tokens = torch.randint(3, 99, (self.batch_size, self.seq_length))
        return self.get_config(), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


class Model(Common, Generation):
    """The tests, for configurations that `make` makes."""

    all_model_classes = (PIDformerModel, PIDformerForCausalLM)
    make: type[PIDformerConfig] | None = None

    def setUp(self):
        self.model_tester = Sizes(type(self).make)


class TestDefault(Model, unittest.TestCase):
    make = PIDformerConfig


class TestPaper(Model, unittest.TestCase):
    make = PIDformerConfig.paper

    def setUp(self):
        super().setUp()
        if "no_attn_mask" in self._testMethodName:
            self.skipTest("positions count down: a padded batch without a mask is refused")
