"""Weights in 8 and 4 bits, by torchao and bitsandbytes where they are installed."""

import pytest
import torch

import pidformer as pf
from tests.convert import families, hugging_face
from tests.convert.families import timm_model
from tests.convert.hugging_face import batch, build

GAINS = pf.PIDGains(p=0.4, i=0.2, d=0.1, beta=0.8)
BY_LAYER = [GAINS, GAINS, pf.PIDGains(p=0.1, i=0.3, d=0.2, beta=0.8)]


def torchao_int8():
    kinds = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    from transformers import TorchAoConfig

    return TorchAoConfig(kinds.Int8WeightOnlyConfig())


def bitsandbytes(**options):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(**options)


KINDS = {
    "torchao int8": torchao_int8,
    "bitsandbytes int8": lambda: bitsandbytes(load_in_8bit=True),
    "bitsandbytes 4 bit": lambda: bitsandbytes(load_in_4bit=True),
}


def quantised(family, kind, folder):
    """The model of a family, written and read again with its linear weights quantised."""
    config, model = KINDS[kind](), build(family)
    model.save_pretrained(folder)
    read = type(model).from_pretrained(folder, quantization_config=config).eval()
    with torch.no_grad():
        try:
            found = read(**batch(family)).logits
        except RuntimeError as error:  # bitsandbytes 0.50 on CPUs for which it packs 4 bits
            pytest.skip(f"the plain model does not run here: {error}")
        assert not torch.equal(found, model(**batch(family)).logits)
    return read


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["llama", "vit"])
@torch.no_grad()
def test_quantised_hugging_face_models(family, kind, tmp_path, monkeypatch):
    model, x = quantised(family, kind, tmp_path / "plain"), batch(family)
    assert torch.equal(pf.convert(model, pf.PIDGains())(**x).logits, model(**x).logits)
    converted = pf.convert(model, BY_LAYER)
    hugging_face.check_definition(converted, family, BY_LAYER, "free", monkeypatch)
    if family == "llama":
        options = {"max_new_tokens": 6, "do_sample": False}
        uncached = converted.generate(**x, use_cache=False, **options)
        assert torch.equal(converted.generate(**x, **options), uncached)
    converted.save_pretrained(tmp_path / "pid")
    again = pf.from_pretrained(tmp_path / "pid")
    assert torch.equal(again(**x).logits, converted(**x).logits)
    assert torch.equal(pf.revert(converted)(**x).logits, model(**x).logits)


@torch.no_grad()
def test_a_converted_model_is_quantised_as_it_is_read(tmp_path):
    config = torchao_int8()
    model, x = pf.convert(build("llama"), GAINS), batch("llama")
    model.save_pretrained(tmp_path)
    read = pf.from_pretrained(tmp_path, quantization_config=config)
    assert type(read.model.layers[0].self_attn.v_proj.weight).__module__.startswith("torchao")
    difference = (read(**x).logits - model(**x).logits).abs().max()
    assert 0 < difference < 0.1


@torch.no_grad()
def test_quantised_timm_models(monkeypatch):
    torchao = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    model, x = timm_model("vit"), torch.randn(2, 3, 32, 32)
    torchao.quantize_(model, torchao.Int8WeightOnlyConfig())
    assert type(model.blocks[0].attn.qkv.weight).__module__.startswith("torchao")
    assert torch.equal(pf.convert(model, pf.PIDGains())(x), model(x))
    gains = [GAINS, *BY_LAYER]
    converted = pf.convert(model, gains)
    families.check_definition(converted, x, gains, "free", monkeypatch)
    assert torch.equal(pf.revert(converted)(x), model(x))
