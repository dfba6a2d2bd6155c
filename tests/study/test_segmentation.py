"""Segmentation on the page: scales, threats, and intervals over images."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from pidformer import results
from pidformer.data.segmentation.confusion import (
    pack_areas,
    segmentation_scores,
    unpack_areas,
)
from pidformer.report.metrics import compare_miou, leave_one_out
from pidformer.report.publish import publish
from pidformer.report.table_view import minus
from pidformer.results import Record
from study.pages import results_pages
from study.records import read_studies
from tests.data.pairs import write_parquet
from tests.report.fresh import segmenters
from tests.study.made import cells

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def segments(tmp_path_factory):
    root = tmp_path_factory.mktemp("segments")
    data = write_parquet(root / "camvid")
    runs = segmenters(root / "runs", data)
    publish(runs, root / "results" / "camvid")
    return root, runs


def test_segmentation_is_reported_by_scale_and_threat(segments):
    root, runs = segments
    made = results_pages(read_studies([root / "results"]))
    text, pictures = made.texts["results/camvid.md"], made.pictures
    own = [
        r.metrics["miou"]
        for run in sorted(runs)
        if "softmax" in run.name
        for r in results.read(run)
        if r.kind == "segmentation" and r.settings["views"] == "multi"
    ]
    low, high = stats.t.interval(0.95, 1, np.mean(own), stats.sem(own))
    wanted = minus(f"{np.mean(own):.2f} [{low:.2f}, {high:.2f}]")
    assert cells(text, "mIoU, multi-scale")[1] == wanted
    assert "### Under threats" in text and cells(text, "FGSM")[1] and len(pictures) == 2
    assert "evaluate_segmentation(RUN, data=DATA, threat=FGSM(eps=1/255), views='single')" in text


def test_classes_are_those_of_the_records():
    text = (ROOT / "docs" / "results" / "camvid-seeds.md").read_text(encoding="utf-8")
    part = text.split("### By class, gaussian noise")[1].split("###")[0]
    ious, called = [], []
    for path in (ROOT / "results" / "camvid-seeds").glob("p-seed*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        own = next(r for r in rows if r["settings"].get("row") == "corruption/gaussian_noise/3")
        hits, true, taken = unpack_areas(own["details"]["areas"], 11).sum(0)[:, 3]
        ious.append(100 * hits / (true + taken - hits))
        called.append(taken / true)
    for name, values, digits in (("road", ious, 1), ("road, called so", called, 2)):
        low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
        wanted = f"{np.mean(values):.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
        assert cells(part, name)[2] == minus(wanted)


def test_leaving_out_an_image_equals_scoring_the_rest(segments):
    record = next(r for r in results.read(segments[1][0]) if r.kind == "segmentation")
    per_pair = unpack_areas(record.details["areas"], 4)
    whole, left = leave_one_out(per_pair)
    assert whole == pytest.approx(
        segmentation_scores(np.array(record.details["confusion"]))["miou"]
    )
    hits_, truth, predicted = np.delete(per_pair, 2, axis=0).sum(0)
    assert left[2] == pytest.approx(100 * np.mean(hits_ / (truth + predicted - hits_)))


def bootstrap_difference(first, second, resamples):
    """mIoU of the second minus the first's, in points, and percentiles over images drawn anew."""

    def miou(areas):
        hits, truth, predicted = areas.sum(0)
        return 100 * np.mean(hits / (truth + predicted - hits))

    rng = np.random.default_rng(0)
    drawn = rng.integers(len(first), size=(resamples, len(first)))
    found = [miou(second[rows]) - miou(first[rows]) for rows in drawn]
    return miou(second) - miou(first), *np.percentile(found, [2.5, 97.5])


def test_the_jackknife_agrees_with_the_bootstrap():
    """On enough images both estimate the same spread of one pair's difference."""
    rng = np.random.default_rng(0)
    truth = rng.integers(50, 400, size=(150, 5))
    sides = []
    for quality in (0.6, 0.65):
        right = rng.binomial(truth, np.clip(quality + rng.normal(0, 0.1, (150, 1)), 0, 1))
        predicted = right + rng.permuted(truth - right, axis=1)
        sides.append(np.stack([right, truth, predicted], axis=1))
    records = tuple(
        Record(kind="x", metrics={}, details={"areas": pack_areas(s), "num_classes": 5})
        for s in sides
    )
    mean, low, high = bootstrap_difference(*sides, resamples=4000)
    found = compare_miou([records])
    assert found.mean == pytest.approx(mean)
    assert found.high - found.low == pytest.approx(high - low, rel=0.08)


def test_the_change_of_a_difference_is_of_four_runs():
    """S4: what control costs after longer training, minus what it costs before."""
    rng = np.random.default_rng(1)
    truth = rng.integers(50, 400, size=(60, 5))
    shares = rng.uniform(0.5, 0.8, (4, 60, 1))
    sides = [np.stack([(truth * share).astype(int), truth, truth], axis=1) for share in shares]
    of_four = tuple(
        Record(kind="x", metrics={}, details={"areas": pack_areas(s), "num_classes": 5})
        for s in sides
    )
    a, b, c, d = (leave_one_out(side) for side in sides)
    left = (b[1] - a[1]) - (d[1] - c[1])
    found = compare_miou([of_four])
    assert found.mean == pytest.approx((b[0] - a[0]) - (d[0] - c[0]))
    half = stats.t.ppf(0.975, 59) * np.sqrt(59 * left.var())  # (N - 1) / N of the sum of squares
    assert (found.high - found.low) / 2 == pytest.approx(half)
