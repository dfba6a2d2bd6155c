"""What the user did wrong, in one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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
