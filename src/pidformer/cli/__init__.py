"""The `pidformer` command: options in, functions called, one clear line when something is wrong."""

import io
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import typer

from pidformer import interrupts
from pidformer.cli.analyze import analyze
from pidformer.cli.bench import bench
from pidformer.cli.convert import convert
from pidformer.cli.data import data
from pidformer.cli.demo import demo
from pidformer.cli.evaluate import evaluate
from pidformer.cli.export import export
from pidformer.cli.generate import generate
from pidformer.cli.lab import lab
from pidformer.cli.options import CommandGroup, register, show_help
from pidformer.cli.publish import publish
from pidformer.cli.recipes import recipes
from pidformer.cli.report import report
from pidformer.cli.reproduce import reproduce
from pidformer.cli.segment import segment
from pidformer.cli.stability import stability
from pidformer.cli.train import train
from pidformer.cli.tune import tune
from pidformer.errors import LONGEST_LINE, InputError, cut, is_out_of_memory
from pidformer.fields import check_text

# typer carries its own click, or depends on it, by version; this finds the base class of either.
_CommandLineError: Any = typer.BadParameter.__mro__[2]

_OPTIONAL = {"transformers": "lm", "tokenizers": "lm"}
"""Packages that many commands need for language models alone, and their extra."""


class _Commands(CommandGroup):
    """Hands on which signal ended a command; typer's releases tell it in their own ways."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise interrupts.Interrupted(getattr(error, "number", signal.SIGINT)) from None


app = typer.Typer(
    name="pidformer",
    cls=_Commands,
    help="Transformers with a PID feedback controller in their attention.\n\n"
    "Example: pidformer demo",
    add_completion=False,
    pretty_exceptions_enable=False,
)
commands = (
    demo, train, recipes, evaluate, analyze, segment, generate, convert,
    tune, export, publish, report, reproduce, stability, bench, lab,
)  # fmt: skip
for command in commands:
    register(app, command)
app.add_typer(data, name="data")


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if os.environ.get("PIDFORMER_KERNELS"):  # a wrong one is said before anything is begun
        from pidformer.ops.dispatch import selected

        selected()
    if version:
        from pidformer import __version__

        typer.echo(f"pidformer {__version__}")
    else:
        show_help(context)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. Bad input ends with one line on stderr and exit code 2."""
    if arguments is None:  # a process of its own
        interrupts.handle()
    if isinstance(sys.stdout, io.TextIOWrapper):  # names may hold what no encoding has
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        for word in sys.argv[1:] if arguments is None else arguments:
            check_text(word)
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            code = app(args=arguments, standalone_mode=False)
    except _CommandLineError as error:
        _fail(error.format_message())
    except InputError as error:
        _fail(str(error))
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in _OPTIONAL:
            raise
        _fail(f"this needs {package}: pip install 'pidformer[{_OPTIONAL[package]}]'")
    except (BrokenPipeError, SystemExit) as error:  # rich makes the second of the first
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        sys.stderr.close()  # `pidformer ... | head` is no error
        sys.exit(0)
    except (OSError, MemoryError, RuntimeError) as error:
        if is_out_of_memory(error):
            _fail(
                f"out of memory ({cut(str(error).strip() or type(error).__name__)}); take a "
                "smaller batch, model or image size, or a machine with more memory"
            )
        if not isinstance(error, OSError):
            raise
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}")
    except (interrupts.Interrupted, KeyboardInterrupt, typer.Abort) as error:
        code = interrupts.exit_code(error)
        if interrupts.is_handled():
            interrupts.end(code)
        _fail("interrupted", code)
    _leave(code or 0)


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    if _speaks(str(message)):
        print("pidformer: warning: " + " ".join(str(message).split()), file=sys.stderr)


def _speaks(line: str) -> bool:
    """Whether this process is the first of its group to say it (`ranks` is slow to import)."""
    ranks = sys.modules.get("pidformer.ranks")
    return ranks is None or bool(ranks.speaks(line))


def _fail(message: str, code: int = 2) -> NoReturn:
    # a path or a value that was given may be endless
    shown = cut(" ".join(cut(word, 160) for word in message.split()), LONGEST_LINE)
    if _speaks(shown):
        print("pidformer: " + shown.encode(errors="backslashreplace").decode(), file=sys.stderr)
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End the process; at once after a signal, or where a launcher started several.

    DTensor's caches keep the process group, and Gloo's threads with it, until Python itself ends.
    A thread that then drops its last tensor aborts a process that has finished its work.
    """
    if "LOCAL_RANK" in os.environ or (code > 128 and interrupts.is_handled()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
