"""What a figure shows: plain values, drawn by `evenfed.report.charts.draw`.

Every figure has a `title`, a `text` that says in words what can be seen (read aloud instead of
the drawing), and a `key`, the name of its file when it is saved for a paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Dot:
    """One value, with what a reader learns on pointing at it."""

    value: float
    name: str = ""
    muted: bool = False


@dataclass(frozen=True)
class DotRow:
    """The dots of one label; the mean is marked, and `remark` stands at the end of the row."""

    label: str
    dots: Sequence[Dot]
    remark: str = ""
    color: int = 0


@dataclass(frozen=True)
class Dots:
    """A distribution a row: one dot a client. Rows of many dots become histograms.

    Parameters
    ----------
    axis : str
        What the values are.
    low, high : float, optional
        Ends of the axis; by default those of the values.
    references : sequence of (label, value)
        Dashed lines across all rows.
    dense : bool
        Whether rows are histograms however few their dots are.

    Examples
    --------
    >>> from evenfed.report.charts.draw import draw
    >>> figure = Dots("accuracy", "Accuracy by client.", "Two clients.", "accuracy",
    ...               [DotRow("fedavg", [Dot(0.7, "a"), Dot(0.9, "b")])])
    >>> draw(figure).count("<circle")
    2
    """

    key: str
    title: str
    text: str
    axis: str
    rows: Sequence[DotRow]
    low: float | None = None
    high: float | None = None
    references: Sequence[tuple[str, float]] = ()
    dense: bool = False


@dataclass(frozen=True)
class Line:
    """Values over rounds; None leaves a gap. `low` and `high` draw a band."""

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
    muted: bool = False


@dataclass(frozen=True)
class Lines:
    """Lines over rounds, labelled at their ends; `limits` are dashed levels (label, y)."""

    key: str
    title: str
    text: str
    x: str
    y: str
    lines: Sequence[Line]
    limits: Sequence[tuple[str, float]] = ()
    log: bool = False


@dataclass(frozen=True)
class BarRow:
    """The bars of one panel, one a category; None leaves one out."""

    label: str
    values: Sequence[float | None]
    muted: Sequence[bool] | None = None
    color: int = 0


@dataclass(frozen=True)
class Bars:
    """Panels of bars over the same categories, one below the other.

    Parameters
    ----------
    categories : sequence of str
        Clients, most often.
    shared : bool
        Whether all panels have one scale.
    """

    key: str
    title: str
    text: str
    axis: str
    categories: Sequence[str]
    rows: Sequence[BarRow]
    shared: bool = True


@dataclass(frozen=True)
class Span:
    """A value with its interval; `part` is a second, smaller label (a group)."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    part: str = ""
    color: int = 0
    muted: bool = False


@dataclass(frozen=True)
class Spans:
    """Values with intervals, one a line, printed beside them; equal labels stand once."""

    key: str
    title: str
    text: str
    axis: str
    spans: Sequence[Span]
    low: float | None = None
    high: float | None = None
    references: Sequence[tuple[str, float]] = ()


@dataclass(frozen=True)
class Heat:
    """A matrix of values in [`low`, `high`]: memberships, weights; None is empty."""

    key: str
    title: str
    text: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]
    x: str = ""
    low: float = 0.0
    high: float = 1.0


@dataclass(frozen=True)
class Cloud:
    """Points of one series; `best` says which are joined by a line, the others are faint."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    names: Sequence[str] = ()
    best: Sequence[bool] | None = None


@dataclass(frozen=True)
class Scatter:
    """Points in a plane, such as a front of error against disparity."""

    key: str
    title: str
    text: str
    x: str
    y: str
    clouds: Sequence[Cloud] = field(default_factory=tuple)
    points: Sequence[tuple[str, float, float]] = ()
    """Single points with a label, such as the constant predictor."""
    joined: bool = True
    """Whether a line joins the best points: not where they were chosen on other data."""


Figure = Dots | Lines | Bars | Spans | Heat | Scatter
