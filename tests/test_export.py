"""Exported models against PyTorch, by runtimes that know nothing of ours."""

import json

import numpy as np
import pytest
import timm
import torch

import pidformer as pf
from pidformer import export as exporting
from pidformer.errors import InputError
from pidformer.models.build import build_segmenter
from pidformer.runs.folder import write_recipe
from tests.convert.families import SMALL, timm_model
from tests.training.tiny import tiny_recipe

GAINS = pf.PIDGains(p=0.4, i=0.2, d=0.1, beta=0.8)
DEIT = "pid_deit_tiny_patch16_224"


def vit(gains, depth=2):
    options = SMALL | {"depth": depth, "patch_size": 8}
    return pf.PixelModel(timm.create_model(DEIT, gains=gains, **options))


def converted(family):
    return pf.PixelModel(pf.convert(timm_model(family, depth=2), GAINS))


def segmenter():
    options = {"patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    config = {"name": DEIT, "gains": "0.4,0.1,0.05", "options": options}
    return pf.PixelModel(build_segmenter(config, num_classes=5, image_size=32)).eval()


def language(**options):
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = pf.PIDformerConfig(**sizes, num_key_value_heads=2, gains=GAINS)
    return exporting.language_model(pf.PIDformerForCausalLM(config), **options)


def paper_language():
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = pf.PIDformerConfig.paper(50, **sizes, intermediate_size=32, cutoffs=[20], gains=GAINS)
    return exporting.language_model(pf.PIDformerForCausalLM(config).eval())


def llama(**options):
    from tests.convert.hugging_face import build

    model = pf.convert(build("llama", num_hidden_layers=2), GAINS)
    return exporting.language_model(model, **options)


def of_images(model):
    return exporting.image_model(model, 3, 32, 32)


SUBJECTS = {
    "pid vit": lambda: of_images(vit(GAINS, depth=3)),
    "softmax vit": lambda: of_images(vit(None)),
    "converted vit": lambda: of_images(converted("deit")),
    "converted eva02": lambda: of_images(converted("eva02")),
    "segmenter": lambda: of_images(segmenter()),
    "language": language,
    "the paper's language": paper_language,
    "converted llama": llama,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SUBJECTS)
def test_onnx_runtime_gives_the_same_logits_for_every_batch(name, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    subject = SUBJECTS[name]()
    found = exporting.export(subject, tmp_path / "model.onnx")
    assert found["difference"] < 1e-4 and found["opset"] >= 18
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    for size in (1, 2, 7):
        shape = list(subject.example.shape)
        shape[0] = size
        if subject.words:
            shape[1] = size + 1
        x = torch.rand(shape) if subject.words is None else torch.randint(50, shape)
        with torch.no_grad():
            wanted = subject.module(x).numpy()
        (logits,) = session.run(None, {subject.input_name: x.numpy()})
        assert logits.shape == wanted.shape and np.abs(logits - wanted).max() < 1e-4
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]  # weights inside


@pytest.mark.slow
@pytest.mark.parametrize("make", [language, llama])
def test_onnx_runtime_writes_token_by_token_with_a_cache(make, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    subject = make(cache=True)
    found = exporting.export(subject, tmp_path / "model.onnx")
    assert found["cache"] and found["difference"] < 1e-4
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    inputs, outputs = session.get_inputs(), session.get_outputs()
    names = [f"{layer}.{part}" for layer in (0, 1) for part in ("key", "value")]
    assert [i.name for i in inputs] == ["input_ids", *(f"past_key_values.{n}" for n in names)]
    assert [o.name for o in outputs] == ["logits", *(f"present.{n}" for n in names)]
    assert inputs[1].shape == ["batch", 2, "past", 8]
    # Greedy: five tokens, then one at a time, against PyTorch without any cache.
    text, part = torch.randint(3, 50, (3, 5)), None
    held = [np.zeros((3, 2, 0, 8), np.float32)] * 4
    for _ in range(4):
        part = text if part is None else text[:, -1:]
        given = dict(zip([i.name for i in inputs], [part.numpy(), *held], strict=True))
        logits, *held = session.run(None, given)
        with torch.no_grad():
            wanted = subject.module.model(text, use_cache=False).logits[:, -part.shape[1] :]
        assert np.abs(logits - wanted.numpy()).max() < 1e-4
        text = torch.cat([text, wanted[:, -1:].argmax(-1)], dim=1)
    assert held[0].shape == (3, 2, 8, 8)


@pytest.mark.slow
def test_a_program_of_torch_writes_token_by_token_with_a_cache(tmp_path):
    subject = language(cache=True)
    exporting.export(subject, tmp_path / "model.pt2")
    module = torch.export.load(tmp_path / "model.pt2").module()
    text, held = torch.randint(3, 50, (1, 7)), [torch.zeros(1, 2, 0, 8)] * 4
    wanted = subject.module.model(text, use_cache=False).logits
    for place in range(7):
        logits, *held = module(text[:, place : place + 1], *held)
        torch.testing.assert_close(logits[:, 0], wanted[:, place], rtol=1e-5, atol=1e-5)


def test_a_cache_is_refused_where_it_would_not_stay_true(run, tmp_path):
    config = pf.PIDformerConfig.paper(50, hidden_size=16, num_hidden_layers=1, cutoffs=None)
    with pytest.raises(InputError, match=r"position_order='descending' cannot use a .* cache"):
        exporting.language_model(pf.PIDformerForCausalLM(config), cache=True)
    write_recipe(tmp_path, tiny_recipe().to_dict())
    code, _, error = run("export", tmp_path, "--cache", "--out", tmp_path / "x.onnx")
    assert code == 2 and "a cache is for language models" in error and error.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pid vit", "segmenter", "language"])
def test_a_program_of_torch_loads_and_gives_the_same_logits(name, tmp_path):
    subject = SUBJECTS[name]()
    found = exporting.export(subject, tmp_path / "model.pt2")
    assert found["format"] == "pt2" and found["difference"] < 1e-5
    module = torch.export.load(tmp_path / "model.pt2").module()
    x = subject.draw((5, 4)[: len(subject.axes)], 3)
    torch.testing.assert_close(module(x), subject.module(x), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_model_that_is_exported_can_be_trained_on(tmp_path):
    model = vit("0.4,0.1,0.05").train()
    model.model.cls_token.requires_grad_(False)
    before = [p.requires_grad for p in model.parameters()]
    exporting.export(of_images(model), tmp_path / "vit.pt2")
    assert model.training and all(module.training for module in model.modules())
    assert [p.requires_grad for p in model.parameters()] == before


@pytest.mark.slow
def test_what_differs_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "TOLERANCE", -1.0)
    with pytest.raises(InputError, match="nothing was written"):
        exporting.export(SUBJECTS["pid vit"](), tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_bad_input_gets_one_line(run, tmp_path):
    for arguments, words in (
        (["--out", "x.tflite"], "unknown export format 'tflite'; known: onnx, pt2"),
        (["--out", "x.onnx"], "is not a run folder"),
    ):
        code, _, error = run("export", tmp_path, *arguments)
        assert code == 2 and words in error and error.count("\n") == 1
    (tmp_path / "config.json").write_text(
        '{"model_type": "bert", "architectures": ["BertForMaskedLM"]}'
    )
    code, _, error = run("export", tmp_path, "--out", tmp_path / "x.onnx")
    assert code == 2 and "causal language models are exported" in error


@pytest.mark.slow
def test_a_run_is_exported_from_the_command_line(run, tmp_path):
    from pidformer.training.run import train
    from tests.training.tiny import tiny_recipe

    train(tiny_recipe("schedule.epochs=1"), tmp_path / "run", device="cpu", is_shown=False)
    out = tmp_path / "model.pt2"
    code, text, _ = run("export", tmp_path / "run", "--out", out, "--json")
    found = json.loads(text)
    assert code == 0 and found["input"] == {"name": "images", "shape": ["batch", 1, 8, 8]}
    x = torch.rand(3, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(
            torch.export.load(out).module()(x), pf.load(tmp_path / "run")(x), rtol=1e-5, atol=1e-5
        )


def test_without_the_extra_there_is_one_line(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(InputError, match=r"pip install 'pidformer\[export\]'"):
        exporting.export(SUBJECTS["pid vit"](), tmp_path / "model.onnx")
