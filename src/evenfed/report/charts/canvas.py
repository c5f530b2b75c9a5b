"""SVG by hand: a theme, scales and a few shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

SERIES = ("#0072B2", "#D55E00", "#009E73", "#B0578D", "#B27700", "#3A8FC4", "#5E5E5E")
"""After Okabe and Ito's palette, darkened where it would be faint on white."""
DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 2", "1 2", "12 4")
"""A line is told apart by its dashes too."""


@dataclass(frozen=True)
class Theme:
    """Colours by role; the page uses variables, a file for a paper literal values."""

    ink: str
    soft: str
    line: str
    paper: str
    muted: str
    series: tuple[str, ...]
    font: str

    def color(self, index: int) -> str:
        """The colour of a series; they repeat."""
        return self.series[index % len(self.series)]


PAGE = Theme(
    "var(--ink)", "var(--soft)", "var(--line)", "var(--paper)", "var(--muted)",
    tuple(f"var(--s{i})" for i in range(len(SERIES))), "inherit",
)  # fmt: skip
PRINT = Theme("#1b1f27", "#565d6b", "#d9dde4", "#ffffff", "#a9afba", SERIES, "Helvetica, Arial")


@dataclass(frozen=True)
class Scale:
    """From values to places."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value, rounded to a tenth."""
        a, b, v = self.low, self.high, value
        if self.log:
            a, b, v = math.log10(a), math.log10(b), math.log10(max(value, self.low))
        share = (v - a) / ((b - a) or 1.0)
        return round(self.start + (self.end - self.start) * share, 1)

    def ticks(self, wanted: int = 5, *, whole: bool = False) -> list[float]:
        """Round values between the ends; whole numbers where asked for."""
        if self.log:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            tens = [10.0**k for k in range(first, last + 1)]
            return tens if len(tens) > 1 else [self.low, self.high]
        span = (self.high - self.low) or 1.0
        power = 10.0 ** math.floor(math.log10(span / wanted))
        step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power * wanted >= span * 0.999)
        if whole:
            step = max(1.0, float(math.ceil(step - 1e-9)))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [round(k * step, 12) for k in range(first, last + 1)]


def nice(values: Sequence[float], low: float | None = None, high: float | None = None,
         pad: float = 0.04) -> tuple[float, float]:  # fmt: skip
    """Ends of an axis that holds the values, a little wider unless given.

    Examples
    --------
    >>> nice([0.0, 1.0], low=0.0, pad=0.1)
    (0.0, 1.1)
    """
    finite = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
    a, b = min(finite), max(finite)
    space = pad * ((b - a) or abs(b) or 1.0)
    return (a - space if low is None else min(low, a)), (
        b + space if high is None else max(high, b)
    )


def number(value: float) -> str:
    """A short text of a value.

    Examples
    --------
    >>> number(0.25), number(12.0), number(0.00012)
    ('0.25', '12', '0.00012')
    """
    return f"{value:.4g}" if abs(value) < 1e5 else f"{value:.1e}"


class Canvas:
    """Collects shapes; `svg` gives the drawing."""

    def __init__(self, width: float, height: float, theme: Theme) -> None:
        self.width, self.height, self.theme = width, height, theme
        self._parts: list[str] = []

    def add(self, tag: str, tip: str = "", /, **attributes: object) -> None:
        """A shape; `tip` is shown on pointing at it."""
        words = " ".join(
            f'{key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
            for key, value in attributes.items()
            if value not in (None, "")
        )
        inner = f"<title>{escape(tip)}</title>" if tip else ""
        self._parts.append(f"<{tag} {words}>{inner}</{tag}>" if inner else f"<{tag} {words}/>")

    def text(
        self, x: float, y: float, words: str, *, anchor: str = "start", size: float = 12,
        fill: str | None = None, weight: int | None = None, room: float | None = None,
        turn: float | None = None,
    ) -> None:  # fmt: skip
        """A line of text, cut to the room that it has."""
        if not words:
            return
        shown = words if room is None else cut(words, room, size)
        attributes = [
            f'x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{fill or self.theme.ink}"',
            "" if anchor == "start" else f'text-anchor="{anchor}"',
            "" if weight is None else f'font-weight="{weight}"',
            "" if turn is None else f'transform="rotate({turn:g} {x:g} {y:g})"',
        ]
        whole = f"<title>{escape(words)}</title>" if shown != words else ""
        head = " ".join(a for a in attributes if a)
        self._parts.append(f"<text {head}>{escape(shown)}{whole}</text>")

    def rule(self, x1: float, y1: float, x2: float, y2: float, *, color: str | None = None,
             width: float = 1, dash: str = "") -> None:  # fmt: skip
        """A straight line."""
        self.add(
            "line", x1=f"{x1:g}", y1=f"{y1:g}", x2=f"{x2:g}", y2=f"{y2:g}",
            stroke=color or self.theme.line, stroke_width=f"{width:g}", stroke_dasharray=dash,
        )  # fmt: skip

    def svg(self, title: str, text: str, kind: str = "") -> str:
        """The drawing, with its words for those who do not see it."""
        label = escape(f"{title}. {text}" if title else text)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} '
            f'{self.height:g}" width="{self.width:g}" height="{self.height:g}" role="img" '
            f'aria-label="{label}" font-family="{self.theme.font}"'
        )
        named = f' class="{kind}"' if kind else ""
        words = f"<desc>{escape(text)}</desc>"
        return f"{head}{named}>{words}{''.join(self._parts)}</svg>"


def width_of(words: str, size: float = 12, *, bold: bool = False) -> float:
    """About the width of a text."""
    narrow = sum(c in "ilj.,:;'|()[] ft1" for c in words)
    wide = sum(c in "mwMW%@" or c.isupper() for c in words)
    width = size * (0.54 * (len(words) - narrow - wide) + 0.32 * narrow + 0.74 * wide)
    return 1.15 * width if bold else width


def cut(words: str, room: float, size: float = 12) -> str:
    """The text, or its beginning with an ellipsis where it needs more than the room.

    Examples
    --------
    >>> cut("a long name of a method", 60)
    'a long na…'
    """
    if width_of(words, size) <= room:
        return words
    while words and width_of(words + "…", size) > room:
        words = words[:-1]
    return words.rstrip() + "…"
