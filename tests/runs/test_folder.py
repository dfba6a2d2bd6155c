"""The files of a run folder."""

import json

import pytest

import pidformer as pf
from pidformer.errors import InputError
from pidformer.runs.folder import read_model_info, write_model_info, write_recipe
from tests.training.tiny import tiny_recipe
from tests.training.tiny_language import tiny_language

IMAGES = {
    "build": {"num_classes": 5, "channels": 1, "image_size": 8},
    "mean": [0.5],
    "std": [0.5],
    "classes": list("abcde"),
}
TEXT = {"build": {"vocab_size": 5, "length": 4, "eos_token_id": 0}, "tokenizer": {}}


@pytest.mark.parametrize(
    ("recipe", "info", "said"),
    [(tiny_recipe, TEXT, "num_classes"), (tiny_language, IMAGES, "vocab_size")],
)
def test_what_another_task_needs_is_not_what_a_run_needs(tmp_path, recipe, info, said):
    write_recipe(tmp_path, recipe().to_dict())
    write_model_info(tmp_path, info)
    with pytest.raises(InputError, match=f"model.json is damaged .it does not say {said}"):
        pf.load(tmp_path)


def test_what_was_written_is_read(tmp_path):
    write_recipe(tmp_path, tiny_recipe().to_dict())
    write_model_info(tmp_path, IMAGES)
    assert read_model_info(tmp_path) == IMAGES == json.loads((tmp_path / "model.json").read_text())
