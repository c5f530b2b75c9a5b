"""Figures of the report: described once, drawn as SVG for the page and for papers.

>>> from evenfed.report.charts import Line, Lines, draw
>>> figure = Lines("loss", "Loss", "It falls from 2 to 1.", "round", "loss",
...                [Line("fedavg", [1, 2], [2.0, 1.0])])
>>> draw(figure).startswith("<svg")
True
"""

from evenfed.report.charts.draw import NARROW, WIDE, draw, standalone
from evenfed.report.charts.figures import (
    BarRow,
    Bars,
    Cloud,
    Dot,
    DotRow,
    Dots,
    Figure,
    Heat,
    Line,
    Lines,
    Scatter,
    Span,
    Spans,
)

__all__ = [
    "NARROW",
    "WIDE",
    "BarRow",
    "Bars",
    "Cloud",
    "Dot",
    "DotRow",
    "Dots",
    "Figure",
    "Heat",
    "Line",
    "Lines",
    "Scatter",
    "Span",
    "Spans",
    "draw",
    "standalone",
]
