"""The page in a browser: nothing logged, nothing sideways, nothing that axe-core calls serious."""

import pytest

from pidformer.report.write import write_report
from tests.report.browser import axe_source, inspect
from tests.report.records import twins

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(axe_source() is None, reason="needs axe-core-python"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    root = tmp_path_factory.mktemp("page")
    twins(root / "runs")
    return write_report([root / "runs"], root / "out").page


# dumping a page, headless Chromium makes no window narrower than 500 pixels
@pytest.mark.parametrize(("width", "dark"), [(500, False), (1280, True)])
def test_the_page_is_accessible_and_quiet(page, tmp_path, width, dark):
    found = inspect(page, tmp_path, width=width, dark=dark)
    assert found["found"] == [] and found["errors"] == [] and found["console"] == []
    assert found["wide"] <= width  # tables scroll in their own boxes


def test_the_inspection_sees_faults(page, tmp_path):
    text = page.read_text(encoding="utf-8")
    bad = tmp_path / "bad.html"
    fault = (
        '<img src="data:,"><p style="color: #ccc; background: #fff">pale</p><script>no()</script>'
    )
    bad.write_text(text.replace("</main>", f"{fault}</main>"), encoding="utf-8")
    found = inspect(bad, tmp_path)
    assert {"image-alt", "color-contrast"} <= {violation["id"] for violation in found["found"]}
    assert found["errors"] and found["console"]
