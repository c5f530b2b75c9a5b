"""Figures in a plane: lines over rounds, and clouds of points."""

from __future__ import annotations

import math

from evenfed.report.charts.canvas import DASHES, Canvas, Scale, Theme, nice, number, width_of
from evenfed.report.charts.figures import Cloud, Line, Lines, Scatter
from evenfed.report.charts.rows import is_narrow

COLORED = 7
"""Series with a colour of their own; further ones are grey."""
BANDED = 3
"""Lines up to which bands are drawn; more of them would hide each other."""
_TOP, _FOOT, _LEFT = 26, 44, 46


def _frame(canvas: Canvas, x: Scale, y: Scale, words: tuple[str, str]) -> None:
    """Grid, tick labels and the names of both axes; that of y stands above it."""
    theme = canvas.theme
    for value in y.ticks(5):
        canvas.rule(x.start, y(value), x.end, y(value))
        canvas.text(
            x.start - 6, y(value) + 4, number(value), anchor="end", size=11, fill=theme.soft
        )
    for value in x.ticks(4 if is_narrow(canvas.width) else 7, whole=words[0] == "round"):
        canvas.text(
            x(value), y.start + 17, number(value), anchor="middle", size=11, fill=theme.soft
        )
    canvas.text(0, 12, words[1], size=12, fill=theme.soft)
    canvas.text((x.start + x.end) / 2, y.start + 36, words[0], anchor="middle", fill=theme.soft)


def _spread(wanted: list[float], gap: float, low: float, high: float) -> list[float]:
    """Places near the wanted ones that are a gap apart and inside, where there is room."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = [0.0] * len(wanted)
    last = low - gap
    for i in order:
        last = placed[i] = max(wanted[i], last + gap)
    limit = high
    for i in reversed(order):
        placed[i] = min(placed[i], limit)
        limit = placed[i] - gap
    return placed


def draw_lines(figure: Lines, width: float, theme: Theme) -> Canvas:
    """Lines with their labels at the right end."""
    height = 250 if is_narrow(width) else 290
    canvas = Canvas(width, height, theme)
    named = figure.lines[:COLORED] if len(figure.lines) > COLORED else figure.lines
    right = max([width_of(line.label, bold=True) for line in named] or [0]) + 14
    right = min(right, width * 0.32)
    values = [v for line in figure.lines for part in (line.y, line.low or [], line.high or [])
              for v in part if v is not None and math.isfinite(v)]  # fmt: skip
    values += [v for _, v in figure.limits]
    log = figure.log and bool(values) and min(values) > 0
    low, high = nice(values) if not log else (min(values) * 0.9, max(values) * 1.1)
    xs = [v for line in figure.lines for v in line.x] or [0.0, 1.0]
    x = Scale(min(xs), max(xs), _LEFT, width - right)
    y = Scale(low, high, height - _FOOT, _TOP, log)
    _frame(canvas, x, y, (figure.x, figure.y))
    for label, value in figure.limits:
        canvas.rule(x.start, y(value), x.end, y(value), color=theme.soft, dash="3 3")
        canvas.text(x.start + 4, y(value) - 4, label, size=11, fill=theme.soft)
    banded = sum(not line.muted for line in figure.lines) <= BANDED
    order = list(enumerate(figure.lines))
    for i, line in reversed(order):  # the first lies on top
        _line(canvas, line, i, x, y, banded and not line.muted)
    ends = [(i, line, _last(line)) for i, line in order[: len(named)] if not line.muted]
    found = [(i, line, end) for i, line, end in ends if end is not None]
    places = _spread([y(end) for _, _, end in found], 14, _TOP, height - _FOOT)
    for (i, line, _), place in zip(found, places, strict=True):
        canvas.text(x.end + 8, place + 4, line.label, fill=theme.color(i), weight=600,
                    room=right - 8)  # fmt: skip
    return canvas


def _last(line: Line) -> float | None:
    found = [v for v in line.y if v is not None and math.isfinite(v)]
    return found[-1] if found else None


def _line(canvas: Canvas, line: Line, index: int, x: Scale, y: Scale, banded: bool) -> None:
    theme = canvas.theme
    grey = line.muted or index >= COLORED
    color = theme.muted if grey else theme.color(index)
    if banded and line.low is not None and line.high is not None:
        band = [(a, lo, hi) for a, lo, hi in zip(line.x, line.low, line.high, strict=True)
                if lo is not None and hi is not None]  # fmt: skip
        there = [f"{x(a)},{y(hi)}" for a, _, hi in band]
        back = [f"{x(a)},{y(lo)}" for a, lo, _ in reversed(band)]
        canvas.add("polygon", points=" ".join(there + back), fill=color, fill_opacity="0.13")
    points = [(a, b) for a, b in zip(line.x, line.y, strict=True)
              if b is not None and math.isfinite(b)]  # fmt: skip
    path = " ".join(f"{x(a)},{y(b)}" for a, b in points)
    canvas.add(
        "polyline", line.label, class_="mark", points=path, fill="none", stroke=color,
        stroke_width="1.2" if grey else "2.2", stroke_linejoin="round",
        stroke_dasharray="" if grey else DASHES[index % len(DASHES)],
    )  # fmt: skip
    if len(points) <= 25 and not grey:
        for a, b in points:
            canvas.add("circle", f"{line.label}, {number(a)}: {number(b)}", class_="mark", cx=x(a),
                       cy=y(b), r=3, fill=color)  # fmt: skip


def draw_scatter(figure: Scatter, width: float, theme: Theme) -> Canvas:
    """Clouds with the line through their best points, named above in as many lines as it takes."""
    key, lines = _key([cloud.label for cloud in figure.clouds], width)
    more = 18 * (lines - 1)
    height = (300 if is_narrow(width) else 340) + more
    canvas = Canvas(width, height, theme)
    xs = [v for c in figure.clouds for v in c.x] + [p[1] for p in figure.points]
    ys = [v for c in figure.clouds for v in c.y] + [p[2] for p in figure.points]
    x = Scale(*nice(xs, low=0.0 if min(xs, default=0) < 0.05 else None), _LEFT, width - 12)
    y = Scale(*nice(ys), height - _FOOT, _TOP + 12 + more)
    _frame(canvas, x, y, (figure.x, figure.y))
    for i, (cloud, (left, line)) in enumerate(zip(figure.clouds, key, strict=True)):
        _cloud(canvas, cloud, i, x, y, figure.joined)
        canvas.add("circle", cx=f"{left + 5:g}", cy=24 + 18 * line, r=4.5, **_mark(theme, i))
        canvas.text(left + 14, 28 + 18 * line, cloud.label, weight=600, fill=theme.color(i))
    for label, a, b in figure.points:
        canvas.add("path", label, class_="mark", fill="none", stroke=theme.ink, stroke_width="1.5",
                   d=f"M{x(a) - 4:g},{y(b) - 4:g}l8,8m0,-8l-8,8")  # fmt: skip
        right = x(a) + width_of(label, 11) + 10 > width
        canvas.text(x(a) + (-8 if right else 8), y(b) - 5, label, size=11, fill=theme.soft,
                    anchor="end" if right else "start")  # fmt: skip
    return canvas


def _key(labels: list[str], width: float) -> tuple[list[tuple[float, int]], int]:
    """Where names of clouds begin, and in which line; and the number of lines."""
    places: list[tuple[float, int]] = []
    left, line = float(_LEFT), 0
    for label in labels:
        room = width_of(label, 12.5, bold=True) + 30
        if left > _LEFT and left + room > width:
            left, line = float(_LEFT), line + 1
        places.append((left, line))
        left += room
    return places, line + 1


def _mark(theme: Theme, index: int) -> dict[str, str]:
    """How a point looks: hollow where its colour is that of an earlier series."""
    color = theme.color(index)
    if index < len(theme.series):
        return {"fill": color}
    return {"fill": theme.paper, "stroke": color, "stroke_width": "1.6"}


def _cloud(canvas: Canvas, cloud: Cloud, index: int, x: Scale, y: Scale, joined: bool) -> None:
    color = canvas.theme.color(index)
    best = cloud.best or [True] * len(cloud.x)
    names = cloud.names or [cloud.label] * len(cloud.x)
    chosen = sorted((a, b) for a, b, good in zip(cloud.x, cloud.y, best, strict=True) if good)
    path = " ".join(f"{x(a)},{y(b)}" for a, b in chosen)
    if joined:
        canvas.add("polyline", points=path, fill="none", stroke=color, stroke_width="1.5",
                   stroke_dasharray=DASHES[index % len(DASHES)])  # fmt: skip
    for a, b, name, good in zip(cloud.x, cloud.y, names, best, strict=True):
        canvas.add("circle", name, class_="mark", cx=x(a), cy=y(b), r=4 if good else 3,
                   fill_opacity="0.85" if good else "0.25",
                   **_mark(canvas.theme, index))  # fmt: skip
