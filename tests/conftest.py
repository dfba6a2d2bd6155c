import gc
import os
import random

# Before torch and NumPy are imported, and for the processes that tests start: several share the
# cores, and threads that wait for each other would cost more.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Read when the hub's library is imported. A name that nobody has would be asked for six times.
os.environ["HF_HUB_OFFLINE"] = "1"

import hypothesis
import pytest
import torch

# Without a CUDA device our kernels run in Triton's interpreter, which is chosen at import.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from pidformer.cli import main

torch.set_num_threads(1)

# The same examples each time, so that a change fails the tests and not a day;
# PIDFORMER_NEW_EXAMPLES=1 draws others.
hypothesis.settings.register_profile(
    "tests", derandomize="PIDFORMER_NEW_EXAMPLES" not in os.environ, deadline=None
)
hypothesis.settings.load_profile("tests")


@pytest.fixture(scope="module", autouse=True)
def _frozen():
    """What is there when a file's tests begin is no garbage, and is not searched for it again.

    Each training collects garbage as it ends, among the millions of objects of the libraries.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    gc.unfreeze()  # as Python ends, libraries complain of objects that are left


@pytest.fixture(scope="session", autouse=True)
def _own_place(tmp_path_factory):
    """Token files of the tests stay with the tests, and no file need outlive a loss of power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIDFORMER_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture
def run(capsys):
    """Call the command line: (exit code, stdout, stderr)."""

    def call(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return stopped.value.code, captured.out, captured.err

    return call


@pytest.fixture
def undrawn(monkeypatch):
    """Reports with empty pictures, for tests of what they say: drawing is most of their work."""
    from pidformer.report import write
    from pidformer.report.panels import Picture

    def save(panels, *paths):
        for path in paths:
            path.touch()

    monkeypatch.setattr(write, "save_panels", save)
    monkeypatch.setattr(write, "picture", lambda panel, alt: Picture("", "", alt, 1, 1, ()))


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    """A small text with structure to learn: each word tells the next one's neighbourhood."""
    folder = tmp_path_factory.mktemp("texts")
    chance = random.Random(0)
    for split, lines in (("train", 300), ("valid", 40), ("test", 40)):
        rows = ["", " = First title = ", ""]
        for line in range(lines):
            if line == lines // 2:
                rows += [" = Second title = ", " = = A section = = "]
            word, words = chance.randrange(40), []
            for _ in range(chance.randint(3, 14)):
                words.append(f"w{word}")
                word = (word * 3 + chance.randrange(4)) % 40
            rows.append(" " + " ".join(words) + " ")
        (folder / f"{split}.txt").write_text("\n".join(rows) + "\n")
    return folder
