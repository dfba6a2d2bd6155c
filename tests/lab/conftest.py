"""Chromium through playwright, for all tests of the lab."""

import pytest

from tests.report.browser import chromium


@pytest.fixture(scope="session")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    where = chromium()
    if where is None:
        pytest.skip("needs chromium on the PATH (Debian: apt install chromium)")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=where, args=["--no-sandbox"])
        yield browser
        browser.close()


class Watched:
    """A page with all that it asked for and complained about."""

    def __init__(self, context):
        self.page = context.new_page()
        self.requests, self.complaints = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._hear)

    def _hear(self, message):
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def outside(self, allowed):
        return [url for url in self.requests if not url.startswith((allowed, "data:", "blob:"))]


@pytest.fixture
def watch(browser):
    contexts = []

    def open_page(address, **options):
        options.setdefault("viewport", {"width": 1440, "height": 1000})
        contexts.append(browser.new_context(**options))
        watched = Watched(contexts[-1])
        watched.page.set_default_timeout(20000)
        watched.page.goto(address)
        return watched

    yield open_page
    for context in contexts:
        context.close()
