"""Numbers as people write them on a command line."""

from __future__ import annotations


def levels_of(text: str, most: int) -> list[float]:
    """ "0:0.8:0.2" is 0, 0.2, ... 0.8; "0,0.1,0.3" is a list; anything else gives nothing.

    A range gives at most `most` + 1 numbers, enough to see that there are too many.

    >>> levels_of("0:0.6:0.2", 10)
    [0.0, 0.2, 0.4, 0.6]
    """
    try:
        if ":" not in text:
            return [float(part) for part in text.split(",")]
        first, last, step = (float(part) for part in text.split(":"))
        count = min(int((last - first) / step + 1e-9), most) + 1
        return [round(first + step * place, 12) for place in range(count)]
    except (ValueError, ArithmeticError):
        return []
