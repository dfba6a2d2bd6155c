"""Suites on real layouts: what a row looks at, which outputs count, what is said to be missing."""

import io

import pytest
import torch
from PIL import Image
from sklearn.metrics import average_precision_score
from torch import nn

from pidformer.data.imagenet import imagenet_classes, subset_classes
from pidformer.errors import InputError
from pidformer.evaluation.images import evaluate_models, run_suite
from pidformer.evaluation.setup import Setup
from pidformer.evaluation.suite import (
    CorruptedSet,
    OutOfDistribution,
    ShiftedSet,
    Suite,
    UnderThreat,
    load_suite,
)
from pidformer.robustness import FGSM, Normalized
from pidformer.robustness.compare import hits
from pidformer.runs.open import Subject
from tests.data.sets import write_parquet


def colour(index):
    """The colour that stands for class `index`."""
    return 8 * (index % 32), 8 * (index // 32), 0


class Colours(nn.Module):
    """1000 outputs, the largest for the class whose colour is nearest."""

    num_classes = 1000

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.01))

    def forward(self, images):
        codes = torch.tensor([colour(k) for k in range(1000)]).to(images)
        far = (255 * images.mean((2, 3))[:, None] - codes).square().sum(-1)
        return -self.scale * far - 1e-3 * torch.arange(1000)  # no ties


def picture(rgb, size=(32, 32)):
    out = io.BytesIO()
    Image.new("RGB", size, rgb).save(out, "PNG")
    return out.getvalue()


def write_tree(root, wnids, shift=0, size=(32, 32)):
    """One picture a class, in the colour of the class `shift` places on."""
    known = imagenet_classes()
    for wnid in wnids:
        (root / wnid).mkdir(parents=True)
        rgb = colour((known.index(wnid) + shift) % 1000)
        (root / wnid / "a.png").write_bytes(picture(rgb, size))
    return root


def pictures(indices):
    return torch.tensor([colour(k) for k in indices]).div(255)[:, :, None, None]


def setup(tmp_path, model=None, **more):
    subject = Subject(name="m", label="m", model=model or Colours(), image_size=32)
    return Setup(subject=subject, location=tmp_path, device=torch.device("cpu"), **more)


def measured(setup, *rows, **more):
    return run_suite(setup, Suite("test", "", tuple(rows)), is_shown=False, **more)


def test_imagenet_a_counts_its_200_outputs_only(tmp_path):
    write_tree(tmp_path / "val", imagenet_classes()[:4])
    write_tree(tmp_path / "train", imagenet_classes()[:4])
    classes = subset_classes("imagenet-a")
    write_tree(tmp_path / "imagenet-a", classes, shift=1)  # the next class, if that one counted
    found = measured(setup(tmp_path), ShiftedSet("imagenet-a", "imagenet-a"))
    indices = [imagenet_classes().index(name) for name in classes]
    logits = Colours()(pictures([(k + 1) % 1000 for k in indices]))
    expected = logits[:, indices].argmax(1).numpy() == range(200)
    assert not (logits.argmax(1) == torch.tensor(indices)).any()  # without the mask
    record = found.records["imagenet-a"]
    assert (hits(record) == expected).all() and 0 < expected.sum() < 200
    assert record.metrics["images"] == 200


def test_a_set_that_is_not_there_is_said_to_be_missing(tmp_path):
    write_tree(tmp_path / "val", imagenet_classes()[:4])
    found = measured(
        setup(tmp_path),
        UnderThreat("clean", None),
        ShiftedSet("imagenet-r", "imagenet-r"),
        CorruptedSet("imagenet-c", "fog", 1),
        CorruptedSet("imagenet-c", "fog", 2),
        OutOfDistribution("ood", "ood"),
    )
    assert list(found.records) == ["clean"]
    lines = found.missing_lines()
    assert len(lines) == 3 and all("no " in line for line in lines)


def test_imagenet_o_is_told_from_the_validation_images_of_its_classes(tmp_path):
    classes = subset_classes("imagenet-o")
    others = [name for name in imagenet_classes()[:40] if name not in classes]
    write_tree(tmp_path / "val", [*classes, *others])
    write_tree(tmp_path / "imagenet-o", classes, shift=3)
    model = Colours()
    found = measured(setup(tmp_path, model), OutOfDistribution("imagenet-o", "imagenet-o"))
    record = found.records["imagenet-o"]
    assert record.metrics["images"] == record.metrics["outside"] == 200
    indices = [imagenet_classes().index(name) for name in classes]
    sure = [
        model(pictures([(k + shift) % 1000 for k in indices]))[:, indices].double().softmax(1)
        for shift in (0, 3)
    ]
    truth = [0] * 200 + [1] * 200
    expected = average_precision_score(truth, -torch.cat(sure).amax(1).detach().numpy())
    assert record.metrics["aupr"] == pytest.approx(100 * expected, abs=0.05)


def test_the_ood_split_of_a_parquet_set(tmp_path):
    inside, outside = (
        [picture((v,) * 3) for v in levels] for levels in (range(60), range(100, 120))
    )
    write_parquet(tmp_path / "val.parquet", [k % 2 for k in range(60)], images=inside)
    write_parquet(tmp_path / "ood.parquet", [-1] * 20, images=outside)

    class Two(nn.Module):
        def forward(self, images):
            level = 255 * images.mean((1, 2, 3))
            return torch.stack([level, torch.zeros_like(level)], 1) / -50

    found = measured(setup(tmp_path, Two()), OutOfDistribution("ood", "ood"))
    metrics = found.records["ood"].metrics  # it is surer of the brighter, which are outside
    assert metrics["auroc"] == 0 and metrics["images"] == 60 and metrics["outside"] == 20
    limited = setup(tmp_path, Two(), limit=30)
    part = measured(limited, OutOfDistribution("ood", "ood")).records["ood"]
    assert (part.metrics["images"], part.metrics["outside"]) == (30, 10)  # the same share
    assert part.metrics["aupr"] == pytest.approx(metrics["aupr"], abs=2)
    assert part.measurement.threat != found.records["ood"].measurement.threat


def test_an_incomplete_corruption_set_lists_what_is_missing(tmp_path):
    write_tree(tmp_path / "val", imagenet_classes()[:4])
    for severity in range(1, 6):
        write_tree(
            tmp_path / "imagenet-c" / "weather" / "fog" / str(severity), imagenet_classes()[:4]
        )
    rows = [CorruptedSet("imagenet-c", name, s) for name in ("fog", "snow") for s in (1, 5)]
    with pytest.raises(InputError, match=r"lacks gaussian_noise, .*snow.*--allow-missing"):
        measured(setup(tmp_path), *rows)
    found = measured(setup(tmp_path, allow_missing=True), *rows)
    assert list(found.records) == ["imagenet-c/fog/1", "imagenet-c/fog/5"]
    assert all(r.metrics["top1"] == 100 for r in found.records.values())
    assert list(found.missing) == ["imagenet-c/snow/1", "imagenet-c/snow/5"]


def test_a_limit_is_the_same_images_for_every_model_and_another_measurement(tmp_path):
    write_tree(tmp_path / "val", imagenet_classes()[:30])
    row = UnderThreat("clean", None)
    whole, part, again = (setup(tmp_path, limit=limit) for limit in (None, 7, 7))
    assert len(part.source) == 7 and part.data_hash == again.data_hash != whole.data_hash
    assert [part.source.name(k) for k in range(7)] == [again.source.name(k) for k in range(7)]
    assert measured(part, row).records["clean"].metrics["images"] == 7


def test_images_of_mixed_size_are_brought_to_one(tmp_path):
    write_tree(tmp_path / "val", imagenet_classes()[:5], size=(32, 32))
    write_tree(tmp_path / "val", imagenet_classes()[5:9], size=(50, 40))
    found = measured(setup(tmp_path), UnderThreat("clean", None))
    assert found.records["clean"].metrics == found.records["clean"].metrics | {
        "top1": 100, "images": 9,
    }  # fmt: skip


def test_the_normalised_domain_needs_to_see_the_normalisation(tmp_path):
    write_tree(tmp_path / "val", imagenet_classes()[:4])
    row = UnderThreat("fgsm", FGSM())
    with pytest.raises(InputError, match="does not show its normalisation"):
        measured(setup(tmp_path, domain="normalized"), row)
    from pidformer import PixelModel

    pixels = PixelModel(Colours(), [0.5] * 3, [0.25] * 3)
    found = measured(setup(tmp_path, pixels, domain="normalized"), row)
    settings = found.records["fgsm"].settings
    assert settings["domain"] == "normalized"
    assert settings["threat"] == repr(Normalized(FGSM(), [0.5] * 3, [0.25] * 3))


def test_classes_that_the_model_does_not_know_are_refused(tmp_path):
    write_tree(tmp_path / "val", imagenet_classes()[:4])
    subject = Subject(name="m", label="m", model=Colours(), image_size=32, classes=("a", "b"))
    place = Setup(subject=subject, location=tmp_path, device=torch.device("cpu"))
    with pytest.raises(InputError, match="n01440764"):
        measured(place, UnderThreat("clean", None))


@pytest.mark.parametrize(
    ("more", "words"),
    [({"limit": 0}, "limit"), ({"batch_size": 0}, "batch size"), ({"domain": "raw"}, "domain")],
)
def test_wrong_settings_get_one_line(tmp_path, more, words):
    with pytest.raises(InputError, match=words):
        setup(tmp_path, **more)


@pytest.mark.parametrize(
    ("device", "pixels", "asked", "images"),
    [
        ("cpu", 64, None, 128),
        ("cuda", 224, None, 128),
        ("cuda", 448, None, 32),
        ("cuda", 64, None, 1024),
        ("cuda", 64, 7, 7),
    ],
)
def test_a_gpu_gets_as_many_images_as_fit_where_128_large_ones_do(
    tmp_path, device, pixels, asked, images
):
    subject = Subject(name="m", label="m", model=Colours(), image_size=pixels)
    place = Setup(subject=subject, location=tmp_path, device=torch.device(device), batch_size=asked)
    assert place.at_once == images


class Narrow(Colours):
    """Memory for so many images."""

    def __init__(self, room):
        super().__init__()
        self.room = room

    def forward(self, images):
        if len(images) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().forward(images)


def test_fewer_images_at_a_time_where_memory_runs_out(tmp_path):
    write_tree(tmp_path / "val", imagenet_classes()[:9])
    rows = UnderThreat("clean", None), UnderThreat("fgsm", FGSM(eps=0.1))
    wide = measured(setup(tmp_path, most=8), *rows).records
    found = measured(setup(tmp_path, Narrow(3), most=8), *rows).records
    assert [found[name].settings["batch_size"] for name in found] == [2, 2]
    for name, record in found.items():
        assert (hits(record) == hits(wide[name])).all() and record.metrics["images"] == 9


@pytest.mark.parametrize(("room", "more"), [(3, {"batch_size": 8}), (0, {})])
def test_one_line_where_no_fewer_images_are_to_be_had(tmp_path, room, more):
    write_tree(tmp_path / "val", imagenet_classes()[:9])
    with pytest.raises(InputError, match="row clean does not fit into memory with"):
        measured(setup(tmp_path, Narrow(room), **more), UnderThreat("clean", None))


def test_the_size_of_images_is_that_of_the_first_that_can_be_read(tmp_path):
    write_tree(tmp_path / "val", imagenet_classes()[:2], size=(40, 36))
    subject = Subject(name="m", label="m", model=Colours())
    damaged = sorted((tmp_path / "val").rglob("*.png"))
    sizes = []
    for path in damaged:
        path.write_bytes(b"not a picture")
        place = Setup(subject=subject, location=tmp_path, device=torch.device("cpu"))
        if path is damaged[-1]:
            with pytest.raises(InputError, match=r"none of the 2 images .*a\.png"):
                _ = place.image_size
        else:
            sizes.append(place.image_size)
    assert sizes == [36]


def test_a_missing_folder_is_told_before_a_model_is_opened(tmp_path):
    with pytest.raises(InputError, match=r"no image set at .*none"):
        evaluate_models(["timm:not_opened"], load_suite("clean"), data=tmp_path / "none")


def test_a_row_is_asked_once_what_it_is_about(tmp_path):
    """It may walk over folders to say so."""
    asked = []

    class Counted(UnderThreat):
        def about(self, setup):
            asked.append(self.name)
            return super().about(setup)

    write_tree(tmp_path / "val", imagenet_classes()[:4])
    rows = Counted("clean", None), Counted("fgsm", FGSM(eps=0.1))
    for _ in range(2):
        measured(setup(tmp_path), *rows, folder=tmp_path / "run")
        assert asked == ["clean", "fgsm"]
        asked.clear()
