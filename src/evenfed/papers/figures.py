"""Figures of a table, as SVG."""

from __future__ import annotations

import math

from evenfed.papers.recipe import Column, Curve, Plot, Table
from evenfed.papers.store import Results
from evenfed.report.charts.draw import standalone
from evenfed.report.charts.figures import Cloud, Line, Lines, Scatter


def figure(table: Table, plot: Plot, column: Column, results: Results) -> str | None:
    """The figure of a column, or None where it has no point; a front of one point is a cross."""
    chosen = series(table, plot, column, results)
    if not chosen:
        return None
    title = f"{plot.title}, {column.title}"
    text = f"{plot.y} against {plot.x} of {', '.join(chosen)}."
    if plot.kind == "line":
        lines = [Line(name, *_axes(points)) for name, points in chosen.items()]
        return standalone(Lines(column.key, title, text, plot.x, plot.y, lines))
    many = [Cloud(name, *_axes(points)) for name, points in chosen.items() if len(points) > 1]
    single = [(name, *_pair(points)) for name, points in chosen.items() if len(points) == 1]
    return standalone(Scatter(column.key, title, text, plot.x, plot.y, many, single))


def series(table: Table, plot: Plot, column: Column, results: Results) -> dict[str, Curve]:
    """Points by title."""
    wanted = plot.series or tuple((row.title, (row.key,)) for row in table.rows)
    stored = results.curves(column.key, results.setting.seeds[0])
    found = {}
    for title, rows in wanted:
        if plot.metrics is None:
            points = [point for row in rows for point in stored.get(row, [])]
        else:
            means = [[_mean(results, row, column, m) for m in plot.metrics] for row in rows]
            points = [point for point in means if all(map(math.isfinite, point))]
        if points:
            found[title] = points
    return found


def _mean(results: Results, row: str, column: Column, metric: str) -> float:
    values = results.values(row, column.key, metric)
    return sum(values) / len(values) if values else math.nan


def _axes(points: Curve) -> tuple[list[float], list[float]]:
    return [p[0] for p in points], [p[1] for p in points]


def _pair(points: Curve) -> tuple[float, float]:
    return points[0][0], points[0][1]
