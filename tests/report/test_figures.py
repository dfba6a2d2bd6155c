"""The figures of a report can be read."""

from pathlib import Path

import matplotlib
import pytest
from matplotlib.figure import Figure

from pidformer.report.collect import Run
from pidformer.report.figures import training_panels
from pidformer.report.panels import style
from pidformer.results import Record


@pytest.mark.parametrize(("low", "is_plain"), [(3.6, True), (0.01, False)])
def test_a_loss_within_a_decade_has_plain_numbers(low, is_plain):
    about = {"model": "softmax", "label": "softmax"}
    log = [
        Record(kind="train", metrics={"epoch": epoch, "loss": loss}, settings=about, step=epoch)
        for epoch, loss in ((1, 4.6), (2, 4.0), (3, low))
    ]
    run = Run(folder=Path("softmax"), records=tuple(log), recipe=None)
    ((panel, words),) = training_panels([run], "classification")
    with matplotlib.rc_context(style()):
        figure = Figure()
        panel.draw(figure)
        (axes,) = figure.axes
        labels = [*axes.get_yticklabels(), *axes.get_yticklabels(minor=True)]
    shown = [label.get_text() for label in labels if label.get_text()]
    assert shown and all(text.replace(".", "").isdigit() for text in shown) == is_plain
    assert f"{low:.3f}" in words
