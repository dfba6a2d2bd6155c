"""A controller is not lost without a word: what is saved names it, what is printed shows it."""

import json
import subprocess
import sys

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

import pidformer as pf
from pidformer.errors import InputError
from tests.convert.families import timm_model
from tests.convert.hugging_face import batch, build

GAINS = pf.PIDGains(p=0.4, i=0.2, d=0.1, beta=0.8)


@pytest.fixture
def folder(tmp_path):
    pf.convert(build("llama"), GAINS).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_transformers_alone_refuses_the_folder(folder):
    code = (
        "import sys, transformers\n"
        "try:\n"
        "    transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])\n"
        "except ValueError as error:\n"
        "    print(error)\n"
        "assert 'pidformer' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 'attn_implementation="pidformer"` is not supported' in done.stdout


def test_beside_pidformer_the_first_forward_says_how_to_load_it(folder):
    model = hf.AutoModelForCausalLM.from_pretrained(folder)
    with pytest.raises(InputError, match=r"pf\.from_pretrained"):
        model(**batch("llama"))


@torch.no_grad()
def test_the_weights_alone_are_read_by_saying_so(folder):
    model = hf.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa")
    assert torch.equal(model(**batch("llama")).logits, build("llama")(**batch("llama")).logits)


@pytest.mark.parametrize("before", ["sdpa", "eager"])
@torch.no_grad()
def test_a_loaded_model_reverts_to_the_attention_it_had(before, tmp_path):
    model, x = build("llama"), batch("llama")
    model.set_attn_implementation(before)
    plain = model(**x).logits
    pf.convert(model, GAINS).save_pretrained(tmp_path)
    again = pf.revert(pf.from_pretrained(tmp_path))
    assert again.config._attn_implementation == before
    assert torch.equal(again(**x).logits, plain)


@pytest.mark.parametrize("given", ["kernels-community/flash", None, 3])
def test_an_attention_that_the_file_makes_up_is_not_taken(given, folder):
    path = folder / "config.json"
    fields = json.loads(path.read_text())
    fields["pidformer"]["attention"] = given
    path.write_text(json.dumps(fields))
    assert pf.revert(pf.from_pretrained(folder)).config._attn_implementation == "sdpa"


@pytest.mark.parametrize("make", [lambda: timm_model("vit"), lambda: build("llama")])
def test_print_shows_the_gains_of_every_layer(make):
    model = make()
    plain, shown = str(model), str(pf.convert(model, GAINS))
    assert "PIDGains" not in plain and repr(GAINS) in shown
    assert str(pf.revert(pf.convert(model, GAINS))) == plain
    assert "LearnedGains" in str(pf.convert(model, GAINS, learn_gains=True))


@pytest.mark.parametrize("learn_gains", [False, True])
@torch.no_grad()
def test_a_saved_timm_model_comes_back_and_is_not_taken_for_a_plain_one(tmp_path, learn_gains):
    path, x = tmp_path / "model.safetensors", torch.randn(2, 3, 32, 32)
    converted = pf.convert(timm_model("vit"), GAINS, learn_gains=learn_gains)
    if learn_gains:
        converted.blocks[1].attn.gains.raw_load += 0.3
    pf.save(converted, path)
    again = pf.restore(timm_model("vit"), path)
    assert torch.equal(again(x), converted(x)) and again.gains == converted.gains
    with pytest.raises(RuntimeError, match=r"Unexpected key.*pidformer\.gains"):
        timm_model("vit").load_state_dict(load_file(path))


def test_what_cannot_be_saved_or_restored_gets_one_line(tmp_path):
    path = tmp_path / "model.safetensors"
    with pytest.raises(InputError, match="writes converted timm models, got VisionTransformer"):
        pf.save(timm_model("vit"), path)
    save_file(timm_model("vit").state_dict(), path)
    with pytest.raises(InputError, match="holds no controller"):
        pf.restore(timm_model("vit"), path)
    pf.save(pf.convert(timm_model("vit"), GAINS), path)
    for model, words in (
        (timm_model("vit", depth=3), "gains for 4 layers, the model has 3"),
        (timm_model("vit", num_classes=7), r"does not fit VisionTransformer: head.*\(5,.*\(7,"),
        (torch.nn.Linear(2, 2), "Linear cannot be converted"),
    ):
        with pytest.raises(InputError, match=words):
            pf.restore(model, path)
        assert not hasattr(model, "gains")
    path.write_bytes(b"none")
    with pytest.raises(InputError, match="no readable safetensors file"):
        pf.restore(timm_model("vit"), path)
