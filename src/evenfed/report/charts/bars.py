"""Panels of bars over the same categories, and matrices."""

from __future__ import annotations

import math

from evenfed.report.charts.canvas import Canvas, Scale, Theme, nice, number, width_of
from evenfed.report.charts.figures import Bars, Heat
from evenfed.report.charts.rows import is_narrow

_LEFT = 46


def draw_bars(figure: Bars, width: float, theme: Theme) -> Canvas:
    """One panel a row, with its name above it; the names of the categories below the last."""
    narrow, n = is_narrow(width), max(len(figure.categories), 1)
    band = (width - _LEFT - 4) / n
    longest = max([width_of(c, 11) for c in figure.categories] or [0.0])
    turned = longest > band - 4
    shown = band >= 13 or not turned
    room = min(longest, 90.0)
    foot = (room * 0.75 + 16 if turned else 22) if shown else 8
    panel = 96 if narrow else 104
    canvas = Canvas(width, 16 + panel * len(figure.rows) + foot, theme)
    canvas.text(0, 11, figure.axis, fill=theme.soft, room=width)
    everything = [v for r in figure.rows for v in r.values if v is not None and math.isfinite(v)]
    for i, row in enumerate(figure.rows):
        own = [v for v in row.values if v is not None and math.isfinite(v)]
        low, high = nice([0.0, *(everything if figure.shared else own)])
        low = 0.0 if min(everything if figure.shared else own, default=0.0) >= 0 else low
        top = 16 + panel * i
        y = Scale(low, high, top + panel - 6, top + 28)
        canvas.text(_LEFT, top + 17, row.label, weight=600, room=width - _LEFT)
        for value in y.ticks(3):
            canvas.rule(_LEFT, y(value), width, y(value))
            canvas.text(_LEFT - 6, y(value) + 4, number(value), anchor="end", size=11,
                        fill=theme.soft)  # fmt: skip
        _panel(canvas, figure, i, y, band)
        canvas.rule(_LEFT, y(0.0), width, y(0.0), color=theme.soft)
    for j, name in enumerate(figure.categories if shown else ()):
        x, below = _LEFT + band * (j + 0.5), canvas.height - foot + 14
        if turned:
            canvas.text(x + 3, below - 3, name, anchor="end", size=11, fill=theme.soft, turn=-45,
                        room=room)  # fmt: skip
        else:
            canvas.text(x, below, name, anchor="middle", size=11, fill=theme.soft)
    return canvas


def _panel(canvas: Canvas, figure: Bars, index: int, y: Scale, band: float) -> None:
    row, theme = figure.rows[index], canvas.theme
    for j, value in enumerate(row.values):
        if value is None or not math.isfinite(value):
            continue
        a, b = y(max(value, 0.0)), y(min(value, 0.0))
        muted = row.muted is not None and row.muted[j]
        canvas.add(
            "rect", f"{figure.categories[j]}, {row.label}: {number(value)}", class_="mark",
            x=f"{_LEFT + band * (j + 0.14):.1f}", y=a, width=f"{max(band * 0.72, 0.6):.1f}",
            height=f"{max(b - a, 0.8):.1f}",
            fill=theme.muted if muted else theme.color(row.color),
        )  # fmt: skip


def draw_heat(figure: Heat, width: float, theme: Theme) -> Canvas:
    """Cells from pale to full; values are written where they fit."""
    labels = min(max([width_of(r, 11.5) for r in figure.rows] or [0.0]) + 12, width * 0.36)
    n = max(len(figure.columns), 1)
    band = (width - labels) / n
    step = 24 if len(figure.rows) <= 30 else max(6, 720 // len(figure.rows))
    top = 26
    canvas = Canvas(width, top + step * len(figure.rows) + (26 if figure.x else 8), theme)
    every = max(1, math.ceil(max([width_of(c, 11) for c in figure.columns] or [0.0]) / band))
    for j, name in enumerate(figure.columns):
        if j % every == 0:
            canvas.text(labels + band * (j + 0.5), 17, name, anchor="middle", size=11,
                        fill=theme.soft)  # fmt: skip
    for i, (name, row) in enumerate(zip(figure.rows, figure.values, strict=True)):
        y = top + step * i
        if step >= 12:
            canvas.text(labels - 8, y + step / 2 + 4, name, anchor="end", size=11.5,
                        room=labels - 10)  # fmt: skip
        for j, value in enumerate(row):
            if value is None or not math.isfinite(value):
                continue
            share = (value - figure.low) / ((figure.high - figure.low) or 1.0)
            share = min(max(share, 0.0), 1.0)
            canvas.add(
                "rect", f"{name}, {figure.columns[j]}: {number(value)}", class_="mark",
                x=f"{labels + band * j + 0.5:.1f}", y=f"{y + 0.5:g}",
                width=f"{max(band - 1, 0.5):.1f}", height=f"{step - 1:g}", fill=theme.color(0),
                fill_opacity=f"{0.06 + 0.94 * share:.2f}",
            )  # fmt: skip
            if band >= 38 and step >= 18:
                on = theme.paper if share > 0.5 else theme.ink
                canvas.text(labels + band * (j + 0.5), y + step / 2 + 4, f"{value:.2f}", size=11,
                            anchor="middle", fill=on)  # fmt: skip
    if figure.x:
        canvas.text(labels + (width - labels) / 2, canvas.height - 6, figure.x, anchor="middle",
                    fill=theme.soft)  # fmt: skip
    return canvas
