import numpy as np
import pytest
import timm
import torch
from torch import nn
from torchmetrics.functional.classification import multiclass_accuracy

from pidformer import PixelModel, convert, results
from pidformer.errors import InputError
from pidformer.robustness import FGSM, PGD, Noise, evaluate
from pidformer.robustness.compare import hits
from pidformer.robustness.corruptions import Corruption
from pidformer.statistics import unpack


def batches(images, labels, size):
    return list(zip(images.split(size), labels.split(size), strict=True))


@pytest.fixture
def held_out(data):
    return data[0][1000:1150], data[1][1000:1150]


class Counting(nn.Module):
    """Counts the images that it is shown."""

    def __init__(self, model):
        super().__init__()
        self.model, self.seen = model, 0

    def forward(self, images):
        self.seen += len(images)
        return self.model(images)


def test_accuracy_equals_torchmetrics(model, held_out):
    images, labels = held_out
    found = evaluate(model, batches(images, labels, 32), [None, FGSM(eps=0.1)])
    assert list(found) == ["clean", "FGSM(eps=0.1)"]
    for record, shown in zip(
        found.values(), (images, FGSM(eps=0.1)(model, images, labels)), strict=True
    ):
        logits = model(shown)
        for name, k in (("top1", 1), ("top5", 5)):
            theirs = multiclass_accuracy(logits, labels, 10, average="micro", top_k=k)
            assert record.metrics[name] == pytest.approx(100 * float(theirs))
        assert (hits(record) == (logits.argmax(1) == labels).numpy()).all()
        assert record.metrics["images"] == 150


@pytest.mark.slow
def test_records_do_not_depend_on_the_batch_size(model, held_out):
    threats = {
        "pgd": PGD(eps=0.1, steps=5, step_size=0.03),
        "noise": Noise(eps=0.3),
        "fog": Corruption(name="fog"),
        "gaussian_noise": Corruption(name="gaussian_noise"),
    }
    found = [evaluate(model, batches(*held_out, size), threats) for size in (1, 7, 64)]
    for other in found[1:]:
        for row in threats:
            assert other[row].details == found[0][row].details


def test_only_the_given_classes_count(model, held_out):
    images, labels = held_out
    kept = [1, 4, 7]
    is_kept = torch.isin(labels, torch.tensor(kept))
    images, labels = images[is_kept], labels[is_kept]
    record = evaluate(model, [(images, labels)], [None], classes=kept)["clean"]
    best = torch.tensor(kept)[model(images)[:, kept].argmax(1)]
    assert record.metrics["top1"] == pytest.approx(100 * float((best == labels).double().mean()))
    assert "top5" not in record.metrics  # of three classes


def test_a_killed_evaluation_goes_on_at_the_next_threat(model, held_out, tmp_path):
    data = batches(*held_out, 50)
    threats = {"clean": None, "a": FGSM(eps=0.1), "b": Noise(eps=0.3), "c": FGSM(eps=0.2)}
    whole = evaluate(model, data, threats, folder=tmp_path / "whole")

    def die(row, done):
        if row == "b" and done >= 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(model, data, threats, folder=tmp_path / "run", watch=die)
    assert [r.settings["row"] for r in results.read(tmp_path / "run")] == ["clean", "a"]
    again = evaluate(model, data, threats, folder=tmp_path / "run")
    assert {row: r.details for row, r in again.items()} == {
        row: r.details for row, r in whole.items()
    }
    assert [r.settings["row"] for r in results.read(tmp_path / "run")] == list(threats)

    counting = Counting(model)
    evaluate(counting, data, threats, folder=tmp_path / "counted")
    seen = counting.seen
    evaluate(counting, data, threats, folder=tmp_path / "counted")
    assert counting.seen == seen  # nothing was run a second time


def test_other_weights_or_another_seed_are_measured_anew(model, held_out, tmp_path):
    data, threats = [held_out], {"noise": Noise(eps=0.3)}
    evaluate(model, data, threats, folder=tmp_path)
    evaluate(model, data, threats, folder=tmp_path, seed=1)
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double()
    evaluate(other, data, threats, folder=tmp_path)
    evaluate(other, data, threats, folder=tmp_path)
    assert len(results.read(tmp_path)) == 3


def test_other_gains_are_measured_anew(tmp_path):
    """Gains are no weights: two controllers of one network are two models all the same."""
    torch.manual_seed(0)
    network = timm.create_model("test_vit", img_size=32, patch_size=8, num_classes=4)
    data = [(torch.rand(4, 3, 32, 32), torch.arange(4))]
    for options in ({"gains": "0.4,0,0"}, {"gains": "0.9,0,0"}, {"first_layer": "controlled"}):
        model = convert(network, **{"gains": "0.4,0,0"} | options).eval()
        for _ in range(2):
            evaluate(model, data, [Noise(eps=0.1)], folder=tmp_path)
    gains = [record.measurement.gains for record in results.read(tmp_path)]
    assert len(set(gains)) == len(gains) == 3


def test_a_record_says_how_to_make_it_again(model, held_out, tmp_path):
    settings = {"data": "digits"}
    evaluate(model, [held_out], [PGD()], folder=tmp_path, settings=settings, seed=5)
    (record,) = results.read(tmp_path)
    assert record.kind == "robustness" and record.settings["seed"] == 5
    assert eval(record.settings["threat"]) == PGD()
    assert record.settings["data"] == "digits" and record.settings["machine"]["torch"]
    assert len(unpack(record.details["right"], 150)) == 150


def test_grey_images_are_corrupted_as_grey(model, held_out):
    images, labels = held_out
    record = evaluate(model, [held_out], {"fog": Corruption(name="fog")})["fog"]
    shown = (
        Corruption(name="fog").corrupt(images.expand(-1, 3, -1, -1)).mean(1, keepdim=True).double()
    )
    assert (hits(record) == (model(shown).argmax(1) == labels).numpy()).all()


def test_a_model_that_gets_the_wrong_scale_brings_a_warning(data):
    images, labels = data[0][:1000], data[1][:1000]
    torch.manual_seed(0)
    # a network that normalises by itself, wrapped once more
    blind = PixelModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), [0.3], [0.4]).double()
    with pytest.warns(UserWarning, match="that of chance"):
        evaluate(blind, [(images, labels)], [None])


def test_a_good_model_brings_no_warning(model, held_out, recwarn):
    evaluate(model, [held_out], [None])
    assert not recwarn.list


def test_bad_input_is_refused_and_finished_records_are_kept(model, held_out, tmp_path):
    images, labels = held_out

    class Late(nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return model(x) * (np.nan if self.calls > 1 else 1.0)

    with pytest.raises(InputError, match="not finite for 150 of 150 images"):
        evaluate(Late(), [held_out], {"clean": None, "noise": Noise()}, folder=tmp_path)
    assert [r.settings["row"] for r in results.read(tmp_path)] == ["clean"]
    with pytest.raises(InputError, match=r"labels run from 0 to 19, .* 10 outputs"):
        evaluate(model, [(images, labels + 10 * (labels > 4))], [None])
    with pytest.raises(InputError, match="no images"):
        evaluate(model, [], [None])
    with pytest.raises(InputError, match=r"logits \(B, classes\)"):
        evaluate(lambda x: model(x).sum(1), [held_out], [None])
