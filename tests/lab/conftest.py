"""Chromium through playwright, for all tests of the lab."""

import pytest

from tests import chromium


@pytest.fixture(scope="session")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    where = chromium.needed()
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


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """Where the lab keeps its copies of the examples."""
    from pidformer.lab.runs import example_runs

    place = tmp_path_factory.mktemp("home")
    example_runs(place)
    return place


@pytest.fixture(scope="session")
def language_run(tmp_path_factory):
    """A tiny language model, trained for a second."""
    pytest.importorskip("transformers")
    import random

    from pidformer.training.run import train
    from tests.training.tiny_language import tiny_language

    folder, chance = tmp_path_factory.mktemp("words"), random.Random(0)
    for split, count in (("train", 200), ("valid", 20), ("test", 20)):
        lines = [" ".join(f"w{chance.randrange(40)}" for _ in range(9)) for _ in range(count)]
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")
    run = tmp_path_factory.mktemp("language") / "lm"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIDFORMER_CACHE", str(tmp_path_factory.mktemp("cache")))
        train(tiny_language(), run, data=folder, device="cpu", is_shown=False)
    return run
