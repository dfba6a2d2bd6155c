"""Hugging Face folders from strangers: no code, no pickle, no file or model from elsewhere."""

import json
import shutil
from importlib.util import find_spec

import pytest

import pidformer as pf
from pidformer.errors import InputError
from tests.security.test_runs import check_refused
from tests.security.tricks import copy, edit, pickled

pytestmark = pytest.mark.slow

pytest.importorskip("transformers")

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def _config(said, **changes):
    def trick(folder, trap):
        edit(folder / "config.json", **changes)
        return said

    return trick


def _whole_config(text):
    def trick(folder, trap):
        (folder / "config.json").write_text(text)
        return "names no model" if text != "{" else "is not JSON"

    return trick


def _remote_code(folder, trap):
    code = f"import os\nos.system('touch {trap.canary}')\n"
    for name in ("modeling_evil.py", "configuration_evil.py", "tokenization_evil.py"):
        (folder / name).write_text(code)
    classes = {
        "AutoConfig": "configuration_evil.Config",
        "AutoModel": "modeling_evil.Model",
        "AutoModelForCausalLM": "modeling_evil.Model",
    }
    edit(folder / "config.json", auto_map=classes)
    return "says auto_map"


def _pickled(folder, trap):
    (folder / WEIGHTS).unlink()
    pickled(folder / "pytorch_model.bin", trap)
    return f"has no {WEIGHTS}"


def _named_weights(folder, trap):
    pickled(folder / "evil.bin", trap)
    edit(folder / "config.json", transformers_weights="evil.bin")
    return "says transformers_weights"


def _adapter(folder, trap):
    copy(folder, trap.outside / "base")
    adapter = {"base_model_name_or_path": str(trap.outside / "base"), "peft_type": "LORA"}
    (folder / "adapter_config.json").write_text(json.dumps(adapter))
    return "holds an adapter"


def _index(name):
    def trick(folder, trap):
        shutil.move(folder / WEIGHTS, trap.outside / WEIGHTS)
        given = name.format(outside=trap.outside)
        index = {"metadata": {}, "weight_map": {"transformer.wte.weight": given}}
        (folder / INDEX).write_text(json.dumps(index))
        return "which is no safetensors file beside it"

    return trick


def _link(name):
    def trick(folder, trap):
        shutil.move(folder / name, trap.outside / name)
        (folder / name).symlink_to(trap.outside / name)
        return "leads out of its folder"

    return trick


TRICKS = {
    "remote code": _remote_code,
    "pickled weights": _pickled,
    "named weights": _named_weights,
    "adapter": _adapter,
    "index upwards": _index("../outside/model.safetensors"),
    "index absolute": _index("{outside}/model.safetensors"),
    "linked weights": _link(WEIGHTS),
    "linked config": _link("config.json"),
    "config that is null": _whole_config("null"),
    "config that is a number": _whole_config("7"),
    "config that is a list": _whole_config("[]"),
    "config that is empty": _whole_config("{}"),
    "config that is half": _whole_config("{"),
    "type that is a number": _config("names no model", model_type=7),
    "type that is null": _config("names no model", model_type=None),
    "classes that are null": _config("names no model", architectures=None),
    "classes that are a number": _config("names no model", architectures=7),
    "class that is a number": _config("names no model", architectures=[7]),
    "kernel by address": _config("must be eager or sdpa", attn_implementation="some/kernel"),
    "nested kernel": _config("must be eager", text_config={"_attn_implementation": "some/kernel"}),
    "quantised by others": _config("quant_method must be", quantization_config__quant_method="x"),
    "depth without end": _config("must be a whole number", num_hidden_layers=10**9, n_layer=10**9),
}
CONVERTED = {
    "no class": _config("which is no gpt2 model", architectures=["pipelineLMHead"]),
    "automatic class": _config("which is no gpt2 model", architectures=["AutoModelForCausalLM"]),
    "other class": _config("which is no gpt2 model", architectures=["LlamaForCausalLM"]),
    "module": _config("which is no gpt2 model", architectures=["models.CausalLM"]),
    "other type": _config("which is no t5 model", model_type="t5"),
    "refused type": _config("cannot be converted", model_type="xlnet"),
    "type that is a word": _config("cannot be converted", model_type="pipeline"),
    "own type": _config("cannot be converted", model_type="pidformer"),
}


def test_a_function_in_place_of_a_class_is_refused(folders, trap, tmp_path):
    folder = copy(folders / "converted", tmp_path / "folder")
    edit(folder / "config.json", architectures=["pipeline"])
    with pytest.raises(InputError, match="'pipeline', which is no gpt2 model"):
        pf.from_pretrained(folder)
    trap.check()


@pytest.mark.parametrize("trick", [*TRICKS, *CONVERTED])
def test_every_command_refuses_a_converted_folder_that_reaches_out(
    trick, folders, trap, capsys, tmp_path
):
    folder = copy(folders / "converted", tmp_path / "folder")
    said = (TRICKS | CONVERTED)[trick](folder, trap)
    trap.seen.clear()  # what the trick itself wrote
    for command in (
        ["convert", folder, "--gains", "0.1,0,0", "--out", tmp_path / "out"],
        ["export", folder, "--out", tmp_path / "out.pt2"],
    ):
        check_refused([str(word) for word in command], said, trap, capsys, folder)
    with pytest.raises(InputError, match=said):
        pf.from_pretrained(folder)
    trap.check()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("trick", TRICKS)
def test_every_command_refuses_a_folder_of_ours_that_reaches_out(
    trick, folders, trap, capsys, tmp_path
):
    folder = copy(folders / "ours", tmp_path / "folder")
    said = TRICKS[trick](folder, trap)
    trap.seen.clear()
    check_refused(["generate", str(folder)], said, trap, capsys, folder)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    folder = tmp_path_factory.mktemp("classifier")
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = ViTConfig(**size, intermediate_size=16, image_size=8, patch_size=4)
    ViTForImageClassification(config).save_pretrained(folder)
    ViTImageProcessor(size={"height": 8, "width": 8}).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("trick", TRICKS)
def test_a_classifier_that_reaches_out_is_refused(trick, classifier, trap, capsys, tmp_path):
    folder = copy(classifier, tmp_path / "folder")
    said = TRICKS[trick](folder, trap)
    trap.seen.clear()
    for command in ("evaluate", "analyze", "tune"):
        asked = [command, f"hf:{folder}", "--data", "digits", "--out", str(tmp_path / "out")]
        check_refused(asked, said, trap, capsys, folder)


def test_a_tokenizer_brings_no_code(folders, trap, capsys, tmp_path):
    folder = copy(folders / "ours", tmp_path / "folder")
    (folder / "tokenizer.json").unlink()
    (folder / "evil.py").write_text(f"import os\nos.system('touch {trap.canary}')\n")
    edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.T", "evil.T"]})
    trap.seen.clear()
    check_refused(["generate", str(folder)], "has no tokenizer.json", trap, capsys, folder)


@pytest.mark.skipif(find_spec("bitsandbytes") is not None, reason="bitsandbytes is installed")
def test_a_quantiser_that_is_not_installed_is_one_line(folders, trap, capsys, tmp_path):
    folder = copy(folders / "converted", tmp_path / "folder")
    asked = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    edit(folder / "config.json", quantization_config=asked)
    trap.seen.clear()
    command = ["convert", str(folder), "--gains", "0.1,0,0", "--out", str(tmp_path / "out")]
    check_refused(command, "bitsandbytes", trap, capsys, folder)


@pytest.mark.parametrize("command", ["evaluate", "analyze", "tune", "report", "segment"])
def test_commands_for_runs_say_that_it_is_none(command, folders, trap, capsys, tmp_path):
    folder = copy(folders / "converted", tmp_path / "folder")
    _remote_code(folder, trap)
    trap.seen.clear()
    (tmp_path / "image.png").write_bytes(b"")
    more = [str(tmp_path / "image.png")] if command == "segment" else []
    check_refused([command, str(folder), *more], "run", trap, capsys, folder)
    with pytest.raises(InputError, match="not a run folder"):
        pf.load(folder)


def test_good_folders_load_also_from_a_cache_of_links(folders, tmp_path):
    """The hub's cache: snapshots/NAME holds links to blobs beside it, and shards."""
    model = pf.from_pretrained(folders / "converted")
    snapshot, blobs = tmp_path / "snapshots" / "abc", tmp_path / "blobs"
    model.save_pretrained(blobs, max_shard_size="20KB")
    snapshot.mkdir(parents=True)
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    assert (snapshot / INDEX).exists() and not (snapshot / WEIGHTS).exists()
    again = pf.from_pretrained(snapshot).state_dict()
    assert all((again[name] == tensor).all() for name, tensor in model.state_dict().items())
