"""Draws a figure as SVG, for a wide screen or a phone, on the page or in a file of its own."""

from __future__ import annotations

from evenfed.report.charts.bars import draw_bars, draw_heat
from evenfed.report.charts.canvas import PAGE, PRINT, Canvas, Theme
from evenfed.report.charts.figures import Bars, Dots, Figure, Heat, Lines, Scatter, Spans
from evenfed.report.charts.planes import draw_lines, draw_scatter
from evenfed.report.charts.rows import draw_dots, draw_spans

WIDE, NARROW = 720, 350
"""Widths of a drawing on a screen and on a phone: text keeps its size in both."""


def draw(figure: Figure, width: float = WIDE, theme: Theme = PAGE, kind: str = "") -> str:
    """The figure as an SVG element.

    Parameters
    ----------
    kind : str
        Class of the element.

    Examples
    --------
    >>> from evenfed.report.charts.figures import Span, Spans
    >>> figure = Spans("rate", "Rate", "One rate.", "rate", [Span("women", 0.5, 0.4, 0.6)])
    >>> "0.50 (0.40 to 0.60)" in draw(figure)
    True
    """
    return _canvas(figure, width, theme).svg(figure.title, figure.text, kind)


def standalone(figure: Figure, width: float = WIDE) -> str:
    """The figure as an SVG file with literal colours, for papers."""
    canvas = _canvas(figure, width, PRINT)
    text = canvas.svg(figure.title, figure.text)
    head, inner = text.split("</desc>", 1)
    ground = f'<rect width="{canvas.width:g}" height="{canvas.height:g}" fill="{PRINT.paper}"/>'
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{head}</desc>{ground}{inner}\n'


def _canvas(figure: Figure, width: float, theme: Theme) -> Canvas:
    if isinstance(figure, Dots):
        return draw_dots(figure, width, theme)
    if isinstance(figure, Spans):
        return draw_spans(figure, width, theme)
    if isinstance(figure, Lines):
        return draw_lines(figure, width, theme)
    if isinstance(figure, Bars):
        return draw_bars(figure, width, theme)
    if isinstance(figure, Heat):
        return draw_heat(figure, width, theme)
    assert isinstance(figure, Scatter)
    return draw_scatter(figure, width, theme)
