import pytest

from pidformer.cli import main


@pytest.fixture
def run(capsys):
    """Call the command line: (exit code, stdout, stderr)."""

    def call(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return stopped.value.code, captured.out, captured.err

    return call
