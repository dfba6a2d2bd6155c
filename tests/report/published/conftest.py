"""What tests of the page share."""

import pytest

from pidformer.report.published import classification, hypotheses, length
from pidformer.report.published.numbers import Metric
from tests.report.published.made import metric


@pytest.fixture
def clean(monkeypatch):
    """The one metric of a page."""
    found = Metric(title="Clean", find=metric().find, read=metric().read)
    for module in (classification, hypotheses, length):
        monkeypatch.setattr(module, "classification_metrics", lambda *_: [found])
    return found
