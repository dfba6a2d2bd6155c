"""Which runs are twins."""

from pathlib import Path

import pytest

from pidformer.report.collect import read_run
from pidformer.runs.twins import control_free_hash, recipe_hash
from tests.training.tiny import tiny_recipe

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("hashed", [recipe_hash, control_free_hash])
def test_twins_share_all_but_gains_seed_and_what_moves_no_number(hashed):
    def key(*overrides):
        return hashed(tiny_recipe(*overrides).to_dict())

    softmax = key("model.gains=null")
    assert softmax == key("seed=3", "schedule.gain_ramp=0.3")
    assert softmax == key("data.workers=2", "train.checkpoint_seconds=7", "train.compile=default")
    assert softmax != key("model.attention_residual=false")
    assert softmax != key("optim.weight_decay=0.3")


def test_what_acts_between_layers_is_the_controllers_matter_in_a_study():
    plain = tiny_recipe("model.gains=null").to_dict()
    for change in ("model.learn_gains=true", "model.options.value_residual=0.5"):
        other = tiny_recipe(change).to_dict()
        assert control_free_hash(plain) == control_free_hash(other)
        assert recipe_hash(plain) != recipe_hash(other)


def test_published_runs_have_the_key_of_their_recipe():
    for path in (ROOT / "results").glob("*/*.jsonl"):
        run = read_run(path)
        assert run.header.settings["twin"] == control_free_hash(run.recipe), path.name
