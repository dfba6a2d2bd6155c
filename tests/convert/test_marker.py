"""A controller is not lost without a word: what is saved names it, what is printed shows it."""

import copy
import json
import subprocess
import sys
import warnings

import pytest
import torch
import transformers as hf
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from timm.models import load_checkpoint
from timm.utils import ModelEmaV3

import pidformer as pf
from pidformer.convert.mark import MARK
from pidformer.errors import InputError
from pidformer.runs.weights import fingerprint
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


@pytest.mark.parametrize(
    ("given", "words"), [("fre", "did you mean 'free'"), (None, "unknown first_layer")]
)
def test_a_first_layer_that_the_file_makes_up_is_refused(given, words, folder):
    path = folder / "config.json"
    fields = json.loads(path.read_text())
    fields["pidformer"]["first_layer"] = given
    path.write_text(json.dumps(fields))
    with pytest.raises(InputError, match=words):
        pf.from_pretrained(folder)


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
    with pytest.raises(RuntimeError, match=r"Unexpected key.*pidformer\._extra_state"):
        timm_model("vit").load_state_dict(load_file(path))


@torch.no_grad()
def test_a_model_that_was_cut_short_keeps_the_gains_of_its_layers(tmp_path):
    model, x = (
        pf.convert(timm_model("vit"), [GAINS, GAINS, "0.1,0,0", "0,0,0"]),
        torch.randn(1, 3, 32, 32),
    )
    model.prune_intermediate_layers([0, 2])
    assert model.gains[:2] == (GAINS, GAINS) and len(model.gains) == len(model.blocks) == 3
    pf.save(model, tmp_path / "cut.safetensors")
    plain = timm_model("vit", depth=3)
    plain.reset_classifier(0, "")
    assert torch.equal(pf.restore(plain, tmp_path / "cut.safetensors")(x), model(x))


def test_a_file_of_version_0_2_0_is_restored(tmp_path):
    path, model = tmp_path / "model.safetensors", pf.convert(timm_model("vit"), GAINS)
    pf.save(model, path)
    with safe_open(path, "pt") as held:
        facts = held.metadata()
    tensors = load_file(path)
    tensors["pidformer.gains"] = tensors.pop(MARK)[:, :4].contiguous()
    save_file(tensors, path, metadata=facts)
    again = pf.restore(timm_model("vit"), path)
    assert again.gains == GAINS and fingerprint(again) == fingerprint(model)


@pytest.mark.parametrize("write", ["torch", "safetensors", "timm"])
def test_a_state_dict_stops_at_a_plain_model_and_fits_a_converted_one(write, tmp_path):
    path, x = tmp_path / "weights", torch.randn(2, 3, 32, 32)
    converted = pf.convert(timm_model("vit"), GAINS)
    if write == "safetensors":
        path = path.with_suffix(".safetensors")
        save_file(converted.state_dict(), path)
    else:
        torch.save(
            {"state_dict": converted.state_dict()} if write == "timm" else converted.state_dict(),
            path,
        )
    fresh = pf.convert(timm_model("vit"), GAINS)
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.zero_()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        load_checkpoint(fresh, str(path))
        assert torch.equal(fresh(x), converted(x))
    with pytest.raises(RuntimeError, match=r"Unexpected key.*pidformer\._extra_state"):
        load_checkpoint(timm_model("vit"), str(path))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("own", "options", "words"),
    [
        (pf.PIDGains(p=0.6), {}, r"saved with PIDGains\(p=0.4.* in layer 0; .*PIDGains\(p=0.6"),
        (GAINS, {"layers": [0, 1, 2]}, r"in layer 3; the model that takes them has PIDGains\(p=0"),
        (GAINS, {"first_layer": "controlled"}, r"\(first layer controlled\), and keeps it"),
        ("xsa", {}, r"has Feedback\(exclude=1.0\), and keeps it"),
    ],
)
def test_other_gains_are_named_and_the_models_own_stay(own, options, words, dtype):
    state = {k: v.to(dtype) for k, v in pf.convert(timm_model("vit"), GAINS).state_dict().items()}
    model = pf.convert(timm_model("vit"), own, **options)
    before = model.gains
    with pytest.warns(UserWarning, match=words):
        model.load_state_dict(state)
    assert model.gains == before
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pf.convert(timm_model("vit"), GAINS).load_state_dict(state)


def test_weights_without_a_mark_load_with_a_warning():
    model = pf.convert(timm_model("vit"), GAINS)
    with pytest.warns(UserWarning, match="do not say which controller"):
        model.load_state_dict(timm_model("vit").state_dict())
    deeper = pf.convert(timm_model("vit", depth=6), GAINS).state_dict()
    with pytest.raises(RuntimeError, match=r"pidformer\._extra_state is no controller of 4 layers"):
        model.load_state_dict(deeper, strict=False)


def test_a_mark_is_no_weight():
    """No cast, average or copy of weights changes the gains, and no count of them sees it."""
    model = pf.convert(timm_model("vit"), GAINS).bfloat16()
    average = ModelEmaV3(model, decay=0.5)
    average.update(model)
    twin = copy.deepcopy(average.module).to_empty(device="cpu")
    assert torch.equal(
        twin.state_dict()[MARK], pf.convert(timm_model("vit"), GAINS).state_dict()[MARK]
    )
    assert not [*twin.pidformer.parameters(), *twin.pidformer.buffers()]
    plain = pf.revert(model)
    assert list(plain.state_dict()) == list(timm_model("vit").state_dict())
    assert list(pf.convert(plain, GAINS).state_dict()) == [*plain.state_dict(), MARK]
    assert fingerprint(pf.convert(plain, GAINS)) == fingerprint(plain)


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
