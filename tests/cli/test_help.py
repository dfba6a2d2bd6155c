from itertools import pairwise

import pytest

from pidformer.cli import commands


def show(*arguments, columns=80):
    from typer.testing import CliRunner

    from pidformer.cli import app

    done = CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": str(columns)})
    assert done.exit_code == 0
    return done.output


@pytest.mark.parametrize(
    "name", ["", "data", "data check", *(command.__name__ for command in commands)]
)
def test_every_help_has_an_example_and_is_wrapped_by_the_terminal_alone(name):
    wide, narrow = show(*name.split(), columns=1000), show(*name.split())
    assert f"Example: pidformer {name}" in wide
    assert max(map(len, narrow.splitlines())) <= 80
    prose = [line.rstrip() for line in narrow.split("╭")[0].splitlines()]
    whole = [line.rstrip() for line in wide.split("╭")[0].splitlines()]
    for line, below in pairwise(whole):
        assert not (line and below), f"broken before the edge: {line!r}"
    assert " ".join(" ".join(prose).split()[5:]) == " ".join(" ".join(whole).split()[5:])


def test_help_names_the_extras_in_brackets():
    assert "pip install 'pidformer[lab]'" in show("lab", columns=1000)
    assert "pip install 'pidformer[search]'" in show("tune", columns=1000)
    assert "P,I,D[,BETA]" in show("convert", columns=1000)


@pytest.mark.parametrize("name", ["evaluate", "analyze", "report", "segment"])
def test_usage_says_once_that_there_may_be_more(name):
    usage = next(line for line in show(name, columns=1000).splitlines() if "Usage" in line)
    assert usage.count("...") <= 1


@pytest.mark.parametrize(
    "name", ["", "data", "data check", *(command.__name__ for command in commands)]
)
def test_flags_take_no_value(name):
    assert "bool" not in show(*name.split(), columns=200).lower()


def test_every_argument_and_option_is_explained():
    import typer

    from pidformer.cli import app

    def walk(name, command):
        for inner in getattr(command, "commands", {}).items():
            yield from walk(*inner)
        yield from ((name, given.name, given.help) for given in command.params)

    found = list(walk("pidformer", typer.main.get_command(app)))
    assert len(found) > 100
    assert [f"{name}: {given}" for name, given, words in found if not words] == []
