"""Image classifiers of Hugging Face under test, by their folder."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("transformers")

import transformers
from transformers import (
    ConvNextImageProcessor,
    DeiTConfig,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
    ViTModel,
)

import pidformer as pf
from pidformer.data import open_images, sample_images
from pidformer.errors import InputError
from pidformer.models import PixelModel
from pidformer.robustness import FGSM, PGD
from pidformer.runs.open import open_subject
from pidformer.training.converted import convert_run

VIT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "image_size": 16, "patch_size": 4, "initializer_range": 0.3,
}  # fmt: skip
MEAN, STD = [0.3, 0.4, 0.5], [0.2, 0.25, 0.3]


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    config = ViTConfig(**VIT, id2label={0: "cat", 1: "dog", 2: "<b>"})
    ViTForImageClassification(config).save_pretrained(tmp_path)
    size = {"height": 16, "width": 16}
    ViTImageProcessor(image_mean=MEAN, image_std=STD, size=size).save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def images():
    return torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def load_pictures(folder):
    """Every picture below a folder, (B, 3, H, W) in [0, 1]."""
    arrays = [np.array(Image.open(path)) for path in sorted(folder.rglob("*.png"))]
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).float() / 255


def test_logits_are_those_of_the_processor_and_the_model(folder, images):
    subject = open_subject(f"hf:{folder}")
    assert subject.image_size == 16 and subject.classes == ("cat", "dog", "<b>")
    model = ViTForImageClassification.from_pretrained(folder).eval()
    processor = ViTImageProcessor.from_pretrained(folder)
    bytes_ = (images * 255).round().to(torch.uint8)
    pixels = processor(list(bytes_.permute(0, 2, 3, 1).numpy()), return_tensors="pt").pixel_values
    ours = subject.model(bytes_.float() / 255)
    torch.testing.assert_close(ours, model(pixels).logits, rtol=1e-5, atol=1e-5)


def test_a_converted_classifier_keeps_its_controller(folder, images, tmp_path):
    plain = open_subject(f"hf:{folder}").model
    model = pf.convert(ViTForImageClassification.from_pretrained(folder), "0.5,0.1,0.05")
    out = tmp_path / "converted"
    model.save_pretrained(out)
    shutil.copy(folder / "preprocessor_config.json", out)
    ours = open_subject(f"hf:{out}").model
    expected = PixelModel(model, MEAN, STD).eval()
    assert torch.equal(ours(images), expected(images))
    assert not torch.allclose(ours(images), plain(images))


def test_any_classifier_of_transformers_will_do(tmp_path, images):
    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=4)
    ResNetForImageClassification(config).save_pretrained(tmp_path)
    given = {"image_mean": MEAN, "image_std": STD, "size": {"shortest_edge": 20}}
    given |= {"do_center_crop": True, "crop_size": {"height": 16, "width": 16}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(given))
    subject = open_subject(f"hf:{tmp_path}")
    assert subject.image_size == 16 and subject.crop_ratio == 0.8
    assert subject.model(images).shape == (4, 4)


def test_images_are_cropped_as_the_processor_of_convnext_and_resnet_does(tmp_path):
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1], num_labels=2)
    ResNetForImageClassification(config).save_pretrained(tmp_path)
    processor = ConvNextImageProcessor(size={"shortest_edge": 28}, crop_pct=0.7)
    processor.save_pretrained(tmp_path)
    y, x = np.mgrid[:120, :160]
    picture = Image.fromarray(np.stack([x, y, x + y // 2], -1).astype(np.uint8))
    for name in ("a", "b"):
        (tmp_path / "set" / "val" / name).mkdir(parents=True)
        picture.save(tmp_path / "set" / "val" / name / "0.png")
    subject = open_subject(f"hf:{tmp_path}")
    shown = {"image_size": subject.image_size, "crop_ratio": subject.crop_ratio}
    ours = sample_images(open_images(tmp_path / "set", "val"), 1, **shown).images[0]
    theirs = processor(picture, do_normalize=False, return_tensors="pt").pixel_values[0]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0.01)


@pytest.mark.parametrize("name", ["", "WithTeacher"])
def test_of_two_classes_for_a_type_the_one_that_was_saved_is_read(tmp_path, images, name):
    """DeiT, distilled or not; one number for all channels, as processors may have it."""
    torch.manual_seed(0)
    kind = getattr(transformers, f"DeiTForImageClassification{name}")
    model = kind(DeiTConfig(**VIT, num_labels=4)).eval()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    given = {"image_mean": 0.5, "image_std": 0.25, "size": {"height": 16, "width": 16}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(given))
    subject = open_subject(f"hf:{tmp_path}")
    assert type(subject.model.model) is kind
    logits = model((images - 0.5) / 0.25).logits
    torch.testing.assert_close(FGSM(eps=0.0)(subject.model, images, torch.zeros(4).long()), images)
    found = subject.model(images)
    torch.testing.assert_close(getattr(found, "logits", found), logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("attack", [FGSM(eps=8 / 255), PGD(eps=8 / 255, steps=3)])
def test_attacks_take_the_outputs_of_hugging_face(folder, images, attack):
    """The same adversarial images whether the model gives logits or holds them in a dataclass."""
    model = ViTForImageClassification.from_pretrained(folder).eval()
    labels = torch.tensor([0, 1, 2, 0])
    ours = attack(model, images, labels)
    theirs = attack(lambda x: model(x).logits, images, labels)
    assert torch.equal(ours, theirs) and not torch.equal(ours, images)


def test_half_precision_is_evaluated_and_analysed_as_it_is_saved(folder, tmp_path, run):
    """A folder of bfloat16 weights stays bfloat16; its logits are those of float32, rounded."""
    wide, half, pid = open_subject(f"hf:{folder}").model, tmp_path / "half", tmp_path / "pid"
    model = ViTForImageClassification.from_pretrained(folder).bfloat16()
    model.save_pretrained(half)
    pf.convert(model, "0.5,0.1,0.05").save_pretrained(pid)
    pictures = tmp_path / "pictures" / "val"
    random = np.random.default_rng(0)
    for name in ("cat", "dog", "<b>"):
        (pictures / name).mkdir(parents=True)
        for k in range(2):
            pixels = random.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(pictures / name / f"{k}.png")
    for out in (half, pid):
        shutil.copy(folder / "preprocessor_config.json", out)
    images = torch.rand(4, 3, 16, 16)
    ours = open_subject(f"hf:{half}").model
    assert next(ours.parameters()).dtype == torch.bfloat16
    torch.testing.assert_close(ours(images).float(), wide(images), rtol=0.1, atol=0.15)
    at = ("--data", pictures.parent, "--device", "cpu", "--json")
    code, out, err = run("evaluate", f"hf:{half}", f"hf:{pid}", *at, "--out", tmp_path / "rows")
    assert code == 0, err
    code, out, err = run("analyze", f"hf:{half}", f"hf:{pid}", *at, "--out", tmp_path / "looked")
    assert code == 0, err
    plain, controlled = json.loads(out)["models"]
    assert plain["similarity"]["blocks"][0] == pytest.approx(
        float(pf.analysis.token_similarity(wide, load_pictures(pictures))[0]), abs=0.02
    )
    assert controlled["certificate"]["gains"]["p"] == 0.5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"preprocessor_config.json": None}, "has no preprocessor_config.json"),
        ({"preprocessor_config.json": "[1]"}, "must be an object"),
        ({"preprocessor_config.json": '{"size": 16}'}, "does not say how pixels"),
        (
            {"preprocessor_config.json": '{"rescale_factor": 1}'},
            r"^[^(]*: rescale_factor must be 1/255",
        ),
        ({"config.json": '{"model_type": "vit"}'}, "architectures"),
        (
            {"config.json": '{"model_type": "gone", "architectures": ["XForImageClassification"]}'},
            "no image classifier of transformers",
        ),
        ({"model.safetensors": None}, "no model.safetensors"),
    ],
)
def test_wrong_folders_get_one_line(folder, change, words):
    for name, text in change.items():
        (folder / name).unlink()
        if text is not None:
            (folder / name).write_text(text)
    with pytest.raises(InputError, match=words) as error:
        open_subject(f"hf:{folder}")
    assert "\n" not in str(error.value)


def test_what_classifies_nothing_is_refused(tmp_path):
    ViTModel(ViTConfig(**VIT)).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="classifies no images"):
        open_subject(f"hf:{tmp_path}")
    with pytest.raises(InputError, match=r"no folder of a model \(no config.json\)$"):
        open_subject("hf:nowhere")


@pytest.mark.parametrize("place", ["", "/llama.gguf"])
def test_a_gguf_file_is_answered_with_the_way_to_a_folder(tmp_path, place):
    (tmp_path / "llama.gguf").write_bytes(b"GGUF")
    told = r"gguf_file='llama\.gguf'.* needs the package gguf"
    with pytest.raises(InputError, match=told):
        open_subject(f"hf:{tmp_path}{place}")
    with pytest.raises(InputError, match=f"nor a folder with a config.json.*{told}"):
        convert_run(f"{tmp_path}{place}", "0.4,0,0", tmp_path / "out")
