"""What was measured inside the networks, as the page shows it."""

from dataclasses import replace

from pidformer.results import Record
from study.image_metrics import classification_metrics
from study.network_metrics import spectra_section
from tests.study.made import cells, study_of


def looked(study, what, **metrics):
    """The study, its runs with this analysis alone."""
    settings = {"what": what, "label": "x"}
    records = (Record(kind="analysis", metrics=metrics, settings=settings),)
    return study.only([replace(run, records=records) for run in study.runs])


def test_numbers_of_an_analysis_have_columns_where_a_run_has_them():
    study = study_of({"softmax": (1, 1, 1), "pid": (2, 2, 2)})
    for metrics, titles in (
        ({"similarity_layer_1": 0.5}, ["similarity"]),
        ({"similarity_layer_1": 0.5, "effective_rank_last": 3.0}, ["similarity", "effective rank"]),
    ):
        runs = looked(study, "token_similarity", **metrics).runs
        found = classification_metrics(runs, None)
        assert [metric.title for metric in found] == titles
        assert [metric.read(metric.find(runs[0])) for metric in found] == [*metrics.values()]


def test_spectra_and_certificates_have_a_table_of_all_variants():
    study = study_of({"softmax": (1, 1, 1), "pid": (2, 2, 2)})
    assert spectra_section(study) == []
    plain, other = (
        study.only([r for r in study.runs if r.variant == v]) for v in ("softmax", "pid")
    )
    plain = looked(plain, "spectrum", min_real=-0.5, share_negative=0.25, images=16.0)
    other = looked(other, "certificate", worst_radius=1.25, share_outside=0.015)
    (found,) = spectra_section(study.only([*plain.runs, *other.runs]))
    words, table = found.body
    assert words.startswith("Attention on 16 images")
    assert cells(table, "")[3:] == [
        "Re kappa from", "below 0, %", "modes outside, %", "largest radius"
    ]  # fmt: skip
    numbers = ["−0.50 [−0.50, −0.50]", "25.0 [25.0, 25.0]", "-", "-"]  # noqa: RUF001
    assert cells(table, "softmax")[3:] == numbers
    assert cells(table, "pid")[3:] == ["-", "-", "1.50 [1.50, 1.50]", "1.25 [1.25, 1.25]"]


def test_similarity_is_that_of_the_last_of_twelve_layers():
    """By number: layer 9 is the last by name."""
    by_layer = {f"similarity_layer_{k}": k / 100 for k in (*range(9, 13), *range(1, 9))}
    runs = looked(study_of({"pid": (2, 2, 2)}), "token_similarity", **by_layer).runs
    (found,) = classification_metrics(runs, None)
    assert found.read(found.find(runs[0])) == 0.12 and found.better == 0
