"""The files of a run folder."""

import hashlib
import json
import shutil

import pytest

import pidformer as pf
from pidformer.errors import InputError
from pidformer.runs.folder import read_model_info, write_model_info, write_recipe
from tests.runs.test_release import RELEASE
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


def test_a_checkpoint_whose_checksums_vouch_for_no_weights_is_refused_in_one_line(tmp_path):
    run = shutil.copytree(RELEASE / "interrupted", tmp_path / "run")
    checkpoint = next((run / "checkpoints").iterdir())
    (checkpoint / "model.safetensors").write_bytes(b"no tensors")
    sums = json.loads((checkpoint / "checksums.json").read_text())
    sums["model.safetensors"] = hashlib.sha256(b"no tensors").hexdigest()
    (checkpoint / "checksums.json").write_text(json.dumps(sums))
    with pytest.raises(InputError, match="is not a readable safetensors file"):
        pf.load(run)
