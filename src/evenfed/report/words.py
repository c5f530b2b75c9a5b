"""Numbers and lists as words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

FEW = 10
"""Examples below which a share says too little: such cells are grey."""
FEW_NOTE = f"Grey: fewer than {FEW} examples, too few to judge."


def number(value: float | None, places: int = 3) -> str:
    """A value for a table; of 1,000 and more whole.

    Examples
    --------
    >>> number(0.12345), number(-42151.228), number(25123456.7)
    ('0.123', '-42,151', '2.51e+07')
    """
    if value is None or not math.isfinite(value):
        return "undefined"
    if float(value).is_integer() and abs(value) > 1:
        return f"{value:,.0f}"
    if abs(value) >= 1e5:
        return f"{value:.2e}"
    return f"{value:.{places}f}" if abs(value) < 1000 else f"{value:,.0f}"


def percent(value: float) -> str:
    """A share in words.

    Examples
    --------
    >>> percent(0.784), percent(0.0)
    ('78 %', '0 %')
    """
    return f"{100 * value:.0f} %"


def between(span: tuple[float | None, float | None] | None, examples: float = math.inf) -> str:
    """The interval of a share, in brackets, with the examples where they are few; or nothing.

    Examples
    --------
    >>> between((0.1, 0.25)), between((0.0, 0.56), 3), between(None)
    (' (interval 10 to 25)', ' (3 test examples, interval 0 to 56)', '')
    """
    words = [count(examples, "test example")] if examples < FEW else []
    if span is not None and span[0] is not None and span[1] is not None:
        words.append(f"interval {100 * span[0]:.0f} to {100 * span[1]:.0f}")
    return f" ({', '.join(words)})" if words else ""


def count(n: float, one: str, many: str = "") -> str:
    """A number with its noun.

    Examples
    --------
    >>> count(1, "client"), count(1200, "example")
    ('1 client', '1,200 examples')
    """
    return f"{n:,.0f} {one if n == 1 else many or one + 's'}"


def listed(words: Iterable[object], last: str = "and") -> str:
    """Words with commas.

    Examples
    --------
    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    parts: Sequence[str] = [str(w) for w in words]
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} {last} {parts[-1]}"


def size(n: float) -> str:
    """Bytes in words.

    Examples
    --------
    >>> size(1234567), size(999)
    ('1.23 MB', '999 B')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= scale:
            return f"{n / scale:.3g} {unit}"
    return f"{n:.0f} B"


def seconds(s: float) -> str:
    """A duration in words.

    Examples
    --------
    >>> seconds(0.25), seconds(75), seconds(7300)
    ('0.25 s', '1 min 15 s', '2 h 2 min')
    """
    if s < 60:
        return f"{s:.3g} s"
    minutes, rest = divmod(round(s), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(round(s / 60), 60)
    return f"{hours} h {minutes} min"
