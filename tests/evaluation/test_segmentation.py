"""mIoU under threats: what is recorded, and that attacks climb what they should."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pidformer import results
from pidformer.data.segmentation import open_segmentation, segmentation_scores
from pidformer.data.segmentation.confusion import unpack_areas
from pidformer.errors import InputError
from pidformer.evaluation import evaluate_segmentation
from pidformer.evaluation.analysis import analyze
from pidformer.evaluation.segmentation import SegmentationSetup, segmentation_info
from pidformer.models.sliding import Sliding
from pidformer.robustness import APGD, FGSM, PGD, segmentation_threats
from pidformer.robustness.corruptions import Corruption
from pidformer.robustness.segmentation import threatened
from pidformer.runs.folder import load_weights, save_weights
from pidformer.runs.twins import recipe_hash
from pidformer.training.run import train
from tests.data.pairs import write_parquet
from tests.training.test_segmentation import recipe

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_parquet(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("runs") / "pid"
    given = recipe("schedule.epochs=6", "train.evaluate_every=6", "train.checkpoint_steps=100")
    train(given, folder, data=data, device="cpu", is_shown=False)
    return folder


def evaluate(run, data, **options):
    return evaluate_segmentation(run, data=data, device="cpu", **options)


def test_a_record_holds_what_is_needed_to_compare(run, data):
    scores = evaluate(run, data)
    record = results.read(run)[-1]
    assert record.kind == "segmentation" and record.settings["row"] == "clean"
    assert record.settings["views"] == "single" and record.settings["stride"] == 12
    assert record.settings["gains"] == "PIDGains(p=0.4, i=0.1, d=0.05, beta=1.0)"
    assert len(record.settings["weights"]) == len(record.settings["data_hash"]) == 16
    matrix = np.array(record.details["confusion"])
    assert segmentation_scores(matrix)["miou"] == scores["miou"] == record.metrics["miou"]
    areas = unpack_areas(record.details["areas"], 4)
    assert areas.shape == (6, 3, 4) and np.array_equal(areas[:, 0].sum(0), matrix.diagonal())
    assert scores["miou_low"] <= scores["miou"] <= scores["miou_high"] and scores["images"] == 6
    assert [row["class"] for row in scores["classes"]] == ["red", "green", "blue", "grey"]
    pixels = sum(
        (pair.mask != 255).sum() for pair in map(open_segmentation(data, "val").decode, range(6))
    )
    assert matrix.sum() == pixels
    json.dumps(scores)


def test_the_control_at_first_is_that_of_the_encoder_that_is_looked_at(data, tmp_path):
    """At no rate a run ends as it began; with a backbone it did not begin from its seed."""
    still = ("optim.lr=0", "schedule.warmup_lr=0", "schedule.min_lr=0", "schedule.epochs=1")

    def control(name, *options):
        run = tmp_path / name
        train(recipe(*still, *options), run, data=data, device="cpu", is_shown=False)
        (found,) = analyze([run], data=data, limit=2, device="cpu", is_shown=False)
        return found.records["control_scale"]

    first = control("first")
    assert first.details["initial_ratio"] == first.details["ratio"]
    assert first.metrics["initial_ratio"] == first.metrics["ratio"]
    weights = load_weights(tmp_path / "first" / "model.safetensors")
    held = {k.removeprefix("encoder."): 2 * w for k, w in weights.items() if "encoder." in k}
    save_weights(tmp_path / "vit.safetensors", held)
    begun = control("begun", f"segmentation.backbone={tmp_path / 'vit.safetensors'}")
    assert begun.metrics["ratio"] != first.metrics["ratio"]
    assert "initial_ratio" not in begun.metrics


def test_logits_that_are_no_numbers_have_no_miou(run, data, tmp_path):
    """Their argmax is a class all the same."""
    broken = tmp_path / "broken"
    shutil.copytree(run, broken)
    weights = load_weights(broken / "model.safetensors")
    weights["encoder.norm.weight"][0] = torch.nan
    save_weights(broken / "model.safetensors", weights)
    with pytest.raises(InputError, match="not finite; check its weights"):
        evaluate(broken, data, limit=1)
    assert len(results.read(broken)) == len(results.read(run))


def test_twins_share_a_recipe_hash():
    fields = recipe().to_dict()
    twin = recipe("model.gains=null", "seed=4", "segmentation.backbone=runs/x").to_dict()
    assert recipe_hash(fields) == recipe_hash(twin)
    assert recipe_hash(fields) != recipe_hash(recipe("optim.lr=1e-3").to_dict())


def test_records_of_twins_share_the_data_and_differ_in_weights(run, data, tmp_path):
    twin = tmp_path / "softmax"
    given = recipe("model.gains=null", "seed=3", "schedule.epochs=1", "train.checkpoint_steps=100")
    train(given, twin, data=data, device="cpu", is_shown=False)
    evaluate(run, data)
    evaluate(twin, data)
    a, b = (results.read(folder)[-1].settings for folder in (run, twin))
    assert a["data_hash"] == b["data_hash"]
    assert a["weights"] != b["weights"] and b["gains"] is None and b["train_seed"] == 3


def test_multi_scale_and_limits(run, data):
    multi = evaluate(run, data, views="multi", limit=2)
    again = evaluate(run, data, views="multi", limit=2, max_windows=3)
    assert multi["images"] == 2 and again["miou"] == pytest.approx(multi["miou"], abs=0.2)
    assert results.read(run)[-1].settings["views"] == "multi"


def test_a_limit_takes_pairs_from_all_of_the_set(run, data):
    """Not the first ones: a set may be the frames of a few videos."""
    scores, found = {}, {}
    for limit in (None, 3):
        scores[limit] = evaluate(run, data, limit=limit, seed=2)
        (record,) = [
            r
            for r in results.read(run)
            if r.kind == "segmentation"
            and (r.settings["limit"], r.settings["seed"], r.settings["views"])
            == (limit, 2, "single")
        ]
        found[limit] = unpack_areas(record.details["areas"], len(scores[limit]["classes"]))
    places = [
        next(k for k, whole in enumerate(found[None]) if (whole == own).all()) for own in found[3]
    ]
    assert len(set(places)) == 3 and places == sorted(places) != [0, 1, 2]


def test_an_attack_lowers_the_score_and_stays_in_its_ball(run, data):
    clean = evaluate(run, data)["miou"]
    for threat in (FGSM(eps=8 / 255), PGD(eps=8 / 255, steps=5, step_size=2 / 255)):
        assert evaluate(run, data, threat=threat)["miou"] < clean - 3
        settings = results.read(run)[-1].settings
        assert (
            settings["threat"] == repr(threat)
            and settings["row"] == repr(threat)[:4].strip("(").lower()
        )


def test_an_attack_climbs_the_loss_summed_over_labelled_pixels():
    """One step of FGSM against the direct gradient; unlabelled pixels have no say."""
    torch.manual_seed(0)
    model = torch.nn.Conv2d(3, 4, 3, padding=1)
    images, masks = torch.rand(2, 3, 9, 11), torch.randint(4, (2, 9, 11)).to(torch.uint8)
    masks[:, :, 6:] = 255
    found = threatened(FGSM(eps=0.02), model, images, masks)
    wide = images.clone().requires_grad_()
    losses = F.cross_entropy(model(wide), masks.long(), ignore_index=255, reduction="sum")
    (gradient,) = torch.autograd.grad(losses, wide)
    expected = (images + 0.02 * gradient.sign()).clamp(0, 1)
    torch.testing.assert_close(found, expected)
    assert torch.equal(found[..., 8:], images[..., 8:])  # beyond the reach of labelled pixels


def test_what_an_image_draws_depends_on_its_index_alone():
    model = torch.nn.Conv2d(3, 4, 3, padding=1)
    images, masks = torch.rand(3, 3, 16, 16), torch.randint(4, (3, 16, 16)).to(torch.uint8)
    for threat in (PGD(eps=0.1, steps=1, step_size=0.1), Corruption(name="shot_noise", severity=2)):
        whole = threatened(threat, model, images, masks, seed=1, indices=[4, 5, 6])
        part = threatened(threat, model, images[2:], masks[2:], seed=1, indices=[6])
        assert torch.equal(whole[2:], part)
        other = threatened(threat, model, images[2:], masks[2:], seed=2, indices=[6])
        assert not torch.equal(part, other)


def test_the_attack_goes_through_windows_and_scale(run):
    """The gradient reaches the pixels of the image itself, not of a window."""
    sliding = Sliding(scale=(64, 24), window=16, stride=12)
    model = torch.nn.Conv2d(3, 4, 3, padding=1)
    images, masks = torch.rand(1, 3, 20, 40), torch.randint(4, (1, 20, 40)).to(torch.uint8)

    def whole(x):
        return sliding.logits(model, x)

    found = threatened(FGSM(eps=0.02), whole, images, masks)
    before, after = (F.cross_entropy(whole(x), masks.long()).item() for x in (images, found))
    assert after > before and (found != images).float().mean() > 0.9


def test_corruptions_are_rows(run, data):
    rows = segmentation_threats(severity=4)
    assert len(rows) == 17 and next(iter(rows)) == "clean" and list(rows)[-1] == "pgd"
    name = "corruption/contrast/4"
    scores = evaluate(run, data, threat=rows[name])
    assert results.read(run)[-1].settings["row"] == name and scores["images"] == 6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"views": "many"}, "unknown views"),
        ({"threat": APGD()}, "FGSM, PGD and Corruption"),
        ({"threat": PGD(early_stop=True)}, "early_stop and restarts"),
        ({"limit": 0}, "limit"),
    ],
)
def test_what_cannot_be_evaluated_gets_one_clear_line(run, data, options, words):
    with pytest.raises(InputError, match=words):
        evaluate(run, data, **options)


def test_other_data_and_other_runs_are_refused(run, data, tmp_path):
    other = write_parquet(tmp_path / "other", train=1, val=1)
    (other / "classes.json").write_text('{"classes": ["a", "b", "c", "d", "e"]}')
    with pytest.raises(InputError, match=r"knows 4 classes .*, the data has 5"):
        evaluate(run, other)
    with pytest.raises(InputError, match="not a run folder"):
        evaluate(tmp_path, data)


def test_the_hash_of_real_data_is_that_of_the_published_records():
    data = Path(os.environ.get("PIDFORMER_DATA", "absent")) / "camvid"
    if not data.exists():
        pytest.skip("set PIDFORMER_DATA to the folder that holds camvid")
    file = next((Path(__file__).parents[2] / "results" / "camvid").glob("*.jsonl"))
    records = map(results.Record.from_json, file.read_text().splitlines())
    published = {r.measurement.data_hash for r in records if r.kind == "segmentation"}
    setup = SegmentationSetup(run=Path("none"), data=data, device=torch.device("cpu"))
    vars(setup)["info"] = {"classes": list(open_segmentation(data, "val").classes)}
    assert published == {setup.data_hash}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"inference"', '"inferense"', "it does not say inference"),
        ('"stride"', '"stridu"', "it does not say stride"),
        ('"window": 16', '"window": "a"', "window must be a whole number"),
        ('"scale": [64, 24]', '"scale": [64]', "scale must be two whole numbers"),
        ("[242, 61, 61]", "[242, 61]", "damaged"),
        ("[242, 61, 61]", "[24200, 61, 61]", "damaged"),
    ],
)
def test_a_damaged_description_of_the_model_is_named(tmp_path, old, new, words):
    from tests.runs.test_release import RELEASE

    run = Path(shutil.copytree(RELEASE / "segmentation", tmp_path / "run"))
    text = (run / "model.json").read_text()
    assert old in text
    (run / "model.json").write_text(text.replace(old, new))
    with pytest.raises(InputError, match=words) as raised:
        segmentation_info(run)
    assert "model.json is damaged" in str(raised.value)
