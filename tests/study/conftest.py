"""What tests of the page share."""

import pytest

from pidformer.report.metrics import Metric
from study import classification, training_length
from tests.study.made import metric


@pytest.fixture
def clean(monkeypatch):
    """The one metric of a page."""
    found = Metric(title="Clean", find=metric().find, read=metric().read)
    for module in (classification, training_length):
        monkeypatch.setattr(module, "classification_metrics", lambda *_: [found])
    return found
