"""Models, labels and settings as users bring them."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from pidformer.errors import InputError
from pidformer.robustness import (
    APGD,
    FAB,
    FGSM,
    PGD,
    SLD,
    SPSA,
    AutoAttack,
    Noise,
    Square,
    evaluate,
)

ATTACKS = [
    FGSM(eps=0.1),
    PGD(eps=0.1, steps=3, restarts=2),
    PGD(eps=0.1, steps=3, early_stop=True),
    SPSA(eps=0.1, steps=2, samples=4, early_stop=True),
    SLD(steps=2),
    Noise(),
    APGD(eps=0.1, steps=4),
    APGD(eps=0.1, steps=4, loss="dlr", targets=2),
    FAB(eps=0.1, steps=3, targets=2),
    Square(eps=0.1, queries=5),
]


class AsHuggingFace(nn.Module):
    """The same logits in an output object."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images):
        return SimpleNamespace(logits=self.model(images))


@pytest.mark.parametrize("threat", ATTACKS, ids=repr)
def test_a_model_with_an_output_object_is_attacked_like_its_logits(model, batch, threat):
    found = threat(AsHuggingFace(model), *batch)
    assert torch.equal(found, threat(model, *batch))


def test_of_tied_logits_the_first_class_is_the_answer():
    """As with argmax, by which attacks decide; topk orders ties in any way."""
    logits = torch.zeros(8, 1000)
    logits[:, [7, 300, 900]] = 1.0
    labels = torch.tensor([7, 300, 900, 0, 1, 2, 7, 999])
    data = [(torch.rand(8, 3, 8, 8), labels)]
    record = evaluate(lambda images: logits[: len(images)], data, [None])["clean"]
    assert record.metrics["top1"] == 25.0  # 7 and 7
    assert record.metrics["top5"] == 75.0  # 7, 300, 900, 0, 1, 7: not 2 and 999


@pytest.mark.parametrize("label", [-1, -100, 10])
@pytest.mark.parametrize("threat", [None, *ATTACKS], ids=repr)
def test_labels_that_the_model_has_not_are_one_line(model, batch, threat, label):
    images, labels = batch
    labels = labels.clone()
    labels[3] = label
    with pytest.raises(InputError, match=r"labels run from .*but the model has 10 outputs"):
        evaluate(model, [(images, labels)], [threat])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_labels_of_any_whole_type_are_taken_and_others_are_one_line(model, batch, dtype):
    images, labels = batch
    for threat in (None, FGSM(eps=0.1)):
        (wanted,) = evaluate(model, [batch], [threat]).values()
        (found,) = evaluate(model, [(images, labels.to(dtype))], [threat]).values()
        assert found.details == wanted.details
        with pytest.raises(InputError, match=r"int64.*float32"):
            evaluate(model, [(images, labels.float())], [threat])


@pytest.mark.parametrize("threat", [None, FGSM(), APGD(), Square(queries=2)], ids=repr)
@pytest.mark.parametrize("wrap", [lambda z: (z, z), lambda z: {"out": z}], ids=["pair", "dict"])
def test_outputs_that_are_no_logits_are_one_line(model, batch, threat, wrap):
    with pytest.raises(InputError, match=r"must give logits .*; got (tuple|dict): take them out"):
        evaluate(lambda x: wrap(model(x)), [batch], [threat])


def test_what_is_no_batch_of_tensors_is_one_line(model, batch):
    images, labels = batch
    for given in ((images.numpy(), labels), (images, labels.tolist())):
        with pytest.raises(InputError, match=r"must be torch tensors, got .* torch\.as_tensor"):
            FGSM()(model, *given)
        with pytest.raises(InputError, match=r"must be torch tensors, got .* torch\.as_tensor"):
            evaluate(model, [given], [None])
    with pytest.raises(InputError, match=r"labels must be int64 \(B,\).* \(40, 10\)"):
        evaluate(model, [(images, nn.functional.one_hot(labels, 10))], [None])


@pytest.mark.parametrize("classes", [[0, 10], [0, -1], [3, 3], [], [0.5]], ids=repr)
def test_classes_that_are_no_outputs_are_one_line(model, batch, classes):
    with pytest.raises(InputError, match="class"):
        evaluate(model, [batch], [None], classes=classes)


@pytest.mark.parametrize("threat", [FGSM(), PGD(steps=2), SLD(steps=2)], ids=repr)
def test_a_gradient_that_is_zero_everywhere_is_told(model, batch, threat, recwarn):
    """Rounding has slope 0: such a model looks robust under attacks that follow its gradient."""
    threat(model, *batch)
    assert not recwarn.list
    with pytest.warns(UserWarning, match="gradient .* is 0 .*Square"):
        threat(lambda images: model((images * 255).round() / 255), *batch)


@pytest.mark.parametrize("classes", [2, 3])
def test_too_few_classes_for_a_loss_names_what_takes_any(classes):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
    images = torch.rand(20, 1, 8, 8)
    labels = model(images).argmax(1)
    with pytest.raises(InputError, match=r"at least 4 classes, got \d; .*loss='ce'"):
        AutoAttack(eps=1e-6)(model, images, labels)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"steps": 2.5}, "steps must be a whole number >= 1, got 2.5"),
        ({"steps": "20"}, "steps must be a whole number >= 1, got '20'"),
        ({"steps": True}, "steps must be a whole number >= 1, got True"),
        ({"restarts": 0}, "restarts must be a whole number >= 1, got 0"),
    ],
)
def test_counts_are_whole_numbers(wrong, line):
    with pytest.raises(InputError, match=line):
        PGD(**wrong)


@pytest.mark.parametrize("threats", [FGSM(), ["fgsm"], "fgsm", {"a": "fgsm"}], ids=repr)
def test_threats_that_are_none_are_one_line(model, batch, threats):
    with pytest.raises(InputError, match=r"threats are .*FGSM"):
        evaluate(model, [batch], threats)


def test_batches_that_are_used_up_after_one_threat_are_told(model, batch):
    with pytest.raises(InputError, match=r"no images .*once"):
        evaluate(model, iter([batch]), [None, FGSM()])


@pytest.mark.parametrize("wrong", [{"seed": 1.5}, {"seed": -1}, {"offset": 0.5}], ids=repr)
def test_seeds_and_places_are_whole_numbers(model, batch, wrong):
    with pytest.raises(InputError, match=r"must be a whole number >= 0, got"):
        Noise()(model, *batch, **wrong)


def test_a_seed_of_numpy_is_that_of_python(model, batch):
    found = Noise()(model, *batch, seed=np.int64(7))
    assert torch.equal(found, Noise()(model, *batch, seed=7))
