"""Figures of a table, as SVG."""

from __future__ import annotations

import math

from evenfed.papers.recipe import Column, Curve, Plot, Table, published
from evenfed.papers.store import Results
from evenfed.papers.verdict import summary
from evenfed.report.charts.draw import standalone
from evenfed.report.charts.figures import Cloud, Line, Lines, Scatter, Span, Spans


def figure(table: Table, plot: Plot, column: Column, results: Results) -> str | None:
    """The figure of a column, or None where it has no point; a front of one point is a cross."""
    if plot.kind == "spans":
        return _spans(table, plot, column, results)
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


def _spans(table: Table, plot: Plot, column: Column, results: Results) -> str | None:
    """Means with their intervals, a line a row and metric, and printed figures beside them.

    Quick versions train too little for a figure of them to say anything.
    """
    if results.setting.quick:
        return None
    known = {m.key: m.title for m in table.metrics[results.setting.protocol]}
    printed = published(results.paper, table.key)
    several = len([m for m in plot.metrics or () if m in known]) > 1
    spans: list[Span] = []
    for row in table.rows:
        for color, metric in enumerate(m for m in plot.metrics or () if m in known):
            cell = (row.key, column.key, metric)
            values = [v for v in results.values(*cell) if math.isfinite(v)]
            if not values:
                continue
            found = summary(values)
            low, high = (found.low, found.high) if found.seeds > 1 else (None, None)
            part = known[metric] if several else "ours" if printed else ""
            spans.append(Span(row.title, found.mean, low, high, part, color))
            if cell in printed:
                part = f"{known[metric]}, printed" if several else "printed"
                spans.append(Span(row.title, printed[cell].value, part=part, muted=True))
    if not spans:
        return None
    text = f"{plot.x} of {', '.join(dict.fromkeys(s.label for s in spans))}."
    return standalone(Spans(column.key, f"{plot.title}, {column.title}", text, plot.x, spans))


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
