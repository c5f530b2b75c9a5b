"""Figures of a table's curves, as SVG."""

from __future__ import annotations

from evenfed.papers.recipe import Column, Curve, Plot, Table
from evenfed.report.charts.draw import standalone
from evenfed.report.charts.figures import Cloud, Line, Lines, Scatter


def figure(table: Table, plot: Plot, column: Column, curves: dict[str, Curve]) -> str:
    """The figure of a column: fronts in a plane, or lines; a front of one point is a cross."""
    wanted = plot.rows or tuple(row.key for row in table.rows)
    titles = {row.key: row.title for row in table.rows}
    chosen = {titles[key]: curves[key] for key in wanted if key in curves and key in titles}
    title = f"{plot.title}, {column.title}"
    text = f"{plot.y} against {plot.x} of {', '.join(chosen)}."
    if plot.kind == "line":
        lines = [Line(name, *_axes(points)) for name, points in chosen.items()]
        return standalone(Lines(column.key, title, text, plot.x, plot.y, lines))
    many = [Cloud(name, *_axes(points)) for name, points in chosen.items() if len(points) > 1]
    single = [(name, *points[0]) for name, points in chosen.items() if len(points) == 1]
    return standalone(
        Scatter(column.key, title, text, plot.x, plot.y, many, single)  # type: ignore[arg-type]
    )


def _axes(points: Curve) -> tuple[list[float], list[float]]:
    return [p[0] for p in points], [p[1] for p in points]
