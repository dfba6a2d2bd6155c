"""Records that the repository keeps, and the page that is made of them: docs/results.md."""

from pidformer.report.published.page import Written, is_published, write_results
from pidformer.report.published.publishing import publish
from pidformer.report.published.studies import PublishedRun, Study, read_studies

__all__ = [
    "PublishedRun",
    "Study",
    "Written",
    "is_published",
    "publish",
    "read_studies",
    "write_results",
]
