from math import nan
from pathlib import Path

import numpy as np
import pytest

from pidformer.control import PIDGains
from pidformer.errors import InputError
from pidformer.models import PIDVisionTransformer
from pidformer.report.collect import collect
from pidformer.report.table1 import Table1Line, as_data, rich_table, table1
from pidformer.report.table1_view import robustness, robustness_views, twin_sentence
from pidformer.report.table_view import Sources, number_text
from pidformer.results import Record
from pidformer.robustness.compare import compare, gain, group_runs, twins_of
from pidformer.robustness.corruptions import ALEXNET_ERROR, CORRUPTIONS
from pidformer.runs.weights import gains_of
from pidformer.statistics import Crossed, Mean, crossed_items, pack, percentage

ROOT = Path(__file__).parents[2]


def record(row, right, *, gains=None, seed=0, label="m", **more):
    settings = {
        "model": label,
        "label": label,
        "gains": gains,
        "train_seed": seed,
        "recipe": "abc",
        "data_hash": "d",
        "row": row,
        "threat": "None" if row == "clean" else row,
        "domain": "pixel",
        "seed": 0,
        "limit": None,
    }
    right = np.asarray(right, dtype=bool)
    metrics = percentage("top1", int(right.sum()), len(right)) | {"images": float(len(right))}
    return Record(
        kind="robustness",
        metrics=metrics,
        settings=settings | more,
        details={"right": pack(right)},
    )


def run(hits, **about):
    return {row: record(row, right, **about) for row, right in hits.items()}


RNG = np.random.default_rng(0)


def hits(share, count=200):
    return RNG.random(count) < share


def test_seeds_of_one_recipe_and_gains_are_one_column():
    runs = [
        run({"clean": hits(0.5)}, label=f"{name}-seed{seed}", gains=gains, seed=seed)
        for name, gains in (("softmax", None), ("pid", "PID"))
        for seed in (0, 1)
    ]
    groups = group_runs(runs)
    assert [g.label for g in groups] == ["softmax", "pid"] and groups[0].seeds == (0, 1)
    # the same seed again is another column, not a third seed
    assert [len(g.runs) for g in group_runs([*runs, runs[0]])] == [2, 2, 1]


def test_a_line_for_each_row_and_metric_with_its_difference():
    first, second = hits(0.6), hits(0.7)
    groups = group_runs(
        [run({"clean": first}, label="a"), run({"clean": second}, label="b", gains="g")]
    )
    (line,) = table1(groups)
    assert (line.title, line.metric) == ("Clean", "top-1")
    assert line.cells[0].mean == pytest.approx(100 * first.mean())
    assert line.differences == (None, crossed_items(100.0 * (second * 1.0 - first)))
    table = rich_table([line], groups)
    assert [column.header for column in table.columns][2:] == ["a", "b", "difference", "p"]
    data = as_data([line], groups)[0]
    assert data["differences"]["b"]["points"] == pytest.approx(line.differences[1].mean)


def test_where_the_terminal_is_narrow_intervals_go_below_their_numbers(capsys):
    from rich.console import Console

    runs = [
        run({"clean": hits(0.5)}, label=f"{name}-seed{seed}", gains=gains, seed=seed)
        for name, gains in (("softmax", None), ("pid", "PID"))
        for seed in (0, 1)
    ]
    groups = group_runs(runs)
    lines = table1(groups)
    text = number_text(lines[0].cells[0], interval_digits=1)
    for width, whole in ((120, True), (76, False)):
        Console(width=width).print(rich_table(lines, groups, width))
        out = capsys.readouterr().out
        assert (text in out) is whole
        assert text.split(" ", 1)[1] in out  # an interval is never broken
    assert rich_table(lines, groups).columns[2].header == "softmax (2 seeds)"


def test_over_seeds_pairs_are_of_the_same_seed():
    hit = {(m, s): hits(0.5 + 0.1 * m) for m in (0, 1) for s in (0, 1, 2)}
    runs = [
        run({"clean": hit[m, s]}, label=f"m{m}-{s}", gains=str(m), seed=s)
        for m, s in [(0, 0), (0, 1), (0, 2), (1, 2), (1, 0), (1, 1)]
    ]
    first, second = group_runs(runs)
    found = compare(first, second, "clean")
    stacked = [np.stack([hit[m, s] for s in (0, 1, 2)]) for m in (0, 1)]
    assert found == crossed_items(100.0 * (stacked[1] * 1.0 - stacked[0]))
    (line,) = table1([first, second])
    assert line.cells[0].seeds == 3 and line.cells[0].mean == pytest.approx(100 * stacked[0].mean())


def test_other_images_cannot_be_paired():
    groups = group_runs(
        [
            run({"clean": hits(0.5)}, label="a"),
            run({"clean": hits(0.5)}, label="b", gains="g", data_hash="e"),
        ]
    )
    with pytest.raises(InputError, match="data_hash is d for a and e for b"):
        table1(groups)


def test_records_of_other_sizes_cannot_be_paired():
    groups = group_runs(
        [
            run({"clean": hits(0.5, 30)}, label="a"),
            run({"clean": hits(0.5, 40)}, label="b", gains="g"),
        ]
    )
    with pytest.raises(InputError, match="same items of all runs, got 30 and 40"):
        table1(groups)


def test_corruptions_are_one_line():
    rows = {f"corruption/{name}/{s}": hits(0.4) for name in ("fog", "snow") for s in (1, 2)}
    better = {row: right | hits(0.2) for row, right in rows.items()}
    groups = group_runs([run(rows, label="a"), run(better, label="b", gains="g")])
    (line,) = table1(groups)
    errors = [100 * (1 - np.mean(list(r.values()))) for r in (rows, better)]
    assert [cell.mean for cell in line.cells] == pytest.approx(errors)
    assert line.lower_is_better and line.threat == "4 of 15 x 5"
    difference = line.differences[1]
    assert difference.mean == pytest.approx(errors[1] - errors[0])
    assert difference.low < difference.mean < difference.high < 0


def test_imagenet_c_is_mce():
    rows = {f"imagenet-c/{name}/{s}": hits(0.4, 40) for name in CORRUPTIONS for s in range(1, 6)}
    (line,) = table1(group_runs([run(rows)]))
    ratios = [
        np.mean([1 - rows[f"imagenet-c/{name}/{s}"].mean() for s in range(1, 6)])
        / ALEXNET_ERROR[name]
        for name in CORRUPTIONS
    ]
    assert line.metric == "mCE" and line.cells[0].mean == pytest.approx(100 * np.mean(ratios))


def test_a_row_that_a_model_lacks_is_a_gap():
    groups = group_runs(
        [
            run({"clean": hits(0.5), "fgsm": hits(0.2)}, label="a"),
            run({"clean": hits(0.5)}, label="b", gains="g"),
        ]
    )
    _, fgsm = table1(groups)
    assert fgsm.cells[1] is None and fgsm.differences == (None, None)


def test_a_model_is_compared_with_the_softmax_one_of_its_recipe_and_seeds():
    def model(name, gains, recipe, seeds):
        return [
            run({"clean": hits(0.5)}, label=f"{name}-seed{s}", gains=gains, seed=s, recipe=recipe)
            for s in seeds
        ]

    found = [
        *model("softmax", None, "long", (0, 1)),
        *model("pid", "g", "long", (0, 1)),
        *model("deep", None, "deep", (0, 1)),
        *model("deep_pid", "g", "deep", (0, 1)),
        *model("alone", "g", "other", (0, 1)),
    ]
    groups = group_runs(found)
    labels = [twin.label for twin in twins_of(groups)]
    assert labels == ["softmax", "softmax", "deep", "deep", "softmax"]
    (line,) = table1(groups, twins_of(groups))
    assert line.differences[3] == compare(groups[2], groups[3], "clean")
    assert line.differences[0] is None and line.differences[2] is None


def test_of_two_softmax_models_of_a_recipe_the_one_with_the_same_seeds_is_the_twin():
    def model(name, gains, seeds, **about):
        return [
            run({"clean": hits(0.5)}, label=f"{name}-seed{s}", gains=gains, seed=s, **about)
            for s in seeds
        ]

    many, same = model("many", None, (4, 5, 6)), model("same", None, (0, 1), ema=True)
    groups = group_runs([*many, *same, *model("pid", "g", (0, 1))])
    assert [twin.label for twin in twins_of(groups)] == ["many", "same", "same"]


def test_gain_is_the_difference_of_differences():
    assert gain((1, 3)) == 2 and gain((1, 3, 10, 15)) == (3 - 1) - (15 - 10)


@pytest.mark.parametrize("first_layer", ["free", "controlled"])
@pytest.mark.parametrize("terms", [{"p": 0.6}, {"i": 0.1}, {"d": 0.05}, {"beta": 0.5}])
def test_control_in_one_layer_is_control(terms, first_layer):
    """In none of the others; and without p, i and d another beta is none either."""
    gains = [PIDGains(), PIDGains(**terms), PIDGains()]
    size = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 3, "num_heads": 1}
    network = PIDVisionTransformer(**size, gains=gains, first_layer=first_layer)
    one, softmax = group_runs(
        [
            run({"clean": hits(0.5)}, label=name, gains=text)
            for name, text in (("one", gains_of(network)), ("softmax", None))
        ]
    )
    is_control = "beta" not in terms
    assert (one.is_controlled, softmax.is_controlled) == (is_control, False)
    assert (twins_of([one, softmax])[0] is softmax) is is_control


@pytest.mark.parametrize(
    ("low", "high", "said"), [(0.2, 3.8, "+2.0 points [+0.2, +3.8]"), (nan, nan, "+2.0 points")]
)
def test_a_difference_is_told_with_its_interval_where_it_has_one(low, high, said):
    cells = Mean(50.0, nan, nan, 1), Mean(52.0, nan, nan, 1)
    found = Crossed(2.0, low, high, nan, 1)
    line = Table1Line("clean", "Clean", "top-1", False, "", cells, (None, found))
    wanted = f"b 52.0 %, a 50.0 %, a difference of {said}, not a clear one."
    assert twin_sentence(line, ["a", "b"], 1) == wanted


def test_what_another_condition_has_is_not_called_missing():
    """SPSA was measured on a sample, the other attacks on all images."""
    runs = collect([ROOT / "results" / "tiny-imagenet-100-long"])
    first, *others = robustness_views(robustness(runs), runs, Sources())
    lacking = [line.title for line in first.lines if line.cells[0].small == "not measured"]
    assert lacking == ["ImageNet-A", "ImageNet-R", "ImageNet-C", "ImageNet-O"]
    assert not any("SPSA" in note.text for note in first.notes)
    assert len(others) == 4 and not any(view.notes for view in others)
    assert [line.title for line in others[0].lines] == ["Clean", "Clean", "SPSA", "SPSA"]
