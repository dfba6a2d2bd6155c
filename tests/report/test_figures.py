"""The figures of a report can be read."""

import matplotlib
import pytest
from matplotlib.figure import Figure

from pidformer.report.figures import Curves, training_panels
from pidformer.report.panels import style


@pytest.mark.parametrize(("low", "is_plain"), [(3.6, True), (0.01, False)])
def test_a_loss_within_a_decade_has_plain_numbers(low, is_plain):
    losses = [Curves("softmax", False, (((1, 2, 3), (4.6, 4.0, low)),))]
    ((panel, words),) = training_panels(losses, [], None)
    with matplotlib.rc_context(style()):
        figure = Figure()
        panel.draw(figure)
        (axes,) = figure.axes
        labels = [*axes.get_yticklabels(), *axes.get_yticklabels(minor=True)]
    shown = [label.get_text() for label in labels if label.get_text()]
    assert shown and all(text.replace(".", "").isdigit() for text in shown) == is_plain
    assert f"{low:.3f}" in words
