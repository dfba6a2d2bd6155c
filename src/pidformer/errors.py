"""What the user did wrong, in one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class InputError(ValueError):
    """Bad input. The message says what was given, what is allowed and what to do.

    The command line prints it as one line and exits with code 2; any other exception is a bug of
    ours and keeps its traceback.
    """


def unknown(what: str, name: object, known: Iterable[str]) -> InputError:
    """An InputError for a name that is not in `known`, with the nearest match.

    >>> print(unknown("preset", "diet", ["deit", "lm"]))
    unknown preset 'diet'; did you mean 'deit'? known: deit, lm
    """
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f" did you mean {near[0]!r}?" if near else ""
    return InputError(f"unknown {what} {name!r};{hint} known: {', '.join(names)}")


def some(names: Sequence[str], shown: int = 5) -> str:
    """The first names, and how many more there are.

    >>> some(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more if names else "none"
