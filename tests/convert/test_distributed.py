import json

import pytest

from tests.processes import Process, ends_well


@pytest.mark.slow
def test_two_processes_train_converted_models_like_one():
    """DDP and FSDP, a timm ViT and a Llama, with checkpointing and learned gains."""
    script = "import runpy; runpy.run_module('tests.convert.parallel', run_name='__main__')"
    ddp, fsdp = (json.loads(line) for line in ends_well(Process(script)).splitlines())
    for found, sharded in ((ddp["ddp"], 0), (fsdp["fsdp"], 4)):  # three layers, and the whole
        assert found.keys() == {"vit", "llama"}
        for model in found.values():
            assert model["difference"] < 1e-5 < model["gains moved"]
            assert model["sharded"] == sharded and model["is back"]
