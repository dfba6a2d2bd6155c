import os

# Read when the hub's library is imported. A name that nobody has would be asked for six times.
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch

# Without a CUDA device our kernels run in Triton's interpreter, which is chosen at import.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from pidformer.cli import main

# Several test processes share the cores; threads that wait for each other would cost more.
torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """Token files of the tests stay with the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIDFORMER_CACHE", str(tmp_path_factory.mktemp("cache")))
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
