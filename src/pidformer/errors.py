"""What the user did wrong, in one line."""

import difflib
import errno
import reprlib
from collections.abc import Iterable, Sequence

LONGEST_LINE, LONGEST_VALUE = 285, 80
"""Characters of an error (of 300 with `pidformer: ` before it), and of what it quotes."""
_REPR = reprlib.Repr()  # never writes out what nests without end
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = LONGEST_VALUE
_REPR.maxlist = _REPR.maxtuple = 10


class InputError(ValueError):
    """Bad input. The message says what was given, what is allowed and what to do.

    The command line prints it as one line and exits with code 2; any other exception is a bug of
    ours and keeps its traceback.
    """


_NO_MEMORY = (
    "not enough memory",
    "allocate memory",  # PyTorch's allocator, and the system of a map
    "out of memory",
    "could not create a primitive",  # oneDNN
    "bad_alloc",
    "bad allocation",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or (in words only) on the CPU."""
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's
        return True
    return isinstance(error, RuntimeError) and any(w in str(error).lower() for w in _NO_MEMORY)


def unknown(what: str, name: object, known: Iterable[str]) -> InputError:
    """An InputError for a name that is not in `known`, with the nearest match.

    >>> print(unknown("preset", "diet", ["deit", "lm"]))
    unknown preset 'diet'; did you mean 'deit'? known: deit, lm
    """
    names, given = sorted(known), str(name)[:LONGEST_VALUE]
    near = _nearest(given, names)
    hint = f" did you mean {near!r}?" if near else ""
    line = f"unknown {what} {shortened(name)};{hint} known: "
    return InputError(line + _fitting(names, given, LONGEST_LINE - len(line)))


def _nearest(given: str, names: Sequence[str]) -> str | None:
    """The name most like the given one; keys are not alike for the name of their section."""
    near = next(iter(difflib.get_close_matches(given, names, n=1)), None)
    if near is None:
        return None
    one, other = (name.rpartition(".")[2] for name in (given, near))
    return near if difflib.SequenceMatcher(None, one, other).ratio() >= 0.5 else None


def check_known(what: str, name: object, known: Iterable[str]) -> None:
    """Refuse a name that is not in `known`."""
    if name not in (allowed := tuple(known)):
        raise unknown(what, name, allowed)


def check_multiple(name: str, whole: int, of: str, part: int) -> None:
    """Refuse a size that another does not divide."""
    if part < 1 or whole % part:
        raise InputError(f"{name} must be a multiple of {of}, got {whole} and {part}")


def _fitting(names: Sequence[str], given: str, room: int) -> str:
    """All names; where there is no room, those most like the given one, and how many more."""
    shown = len(names)
    if len(some(names, shown)) > room:
        names = sorted(names, key=lambda name: -difflib.SequenceMatcher(None, given, name).ratio())
    while shown > 1 and len(some(names, shown)) > room:
        shown -= 1
    return some(names, shown)


def shortened(value: object) -> str:
    """A value as code says it, cut in the middle where it is long: a stranger's may be endless.

    >>> shortened("a" * 1000)
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'"
    """
    try:
        return cut(_REPR.repr(value))
    except (ValueError, RecursionError):  # more digits than Python writes
        is_whole = isinstance(value, int)
        return "a whole number of thousands of digits" if is_whole else type(value).__name__


def cut(text: object, room: int | None = None) -> str:
    """A text on one line, its middle left out where it is longer than `room`."""
    line, room = " ".join(str(text).split()), room or LONGEST_VALUE
    if len(line) <= room:
        return line
    half = (room - 3) // 2
    return f"{line[:half]}...{line[half + 3 - room :]}"


def some(names: Sequence[str], shown: int = 5) -> str:
    """The first names, and how many more there are.

    >>> some(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more if names else "none"
