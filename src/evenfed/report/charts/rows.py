"""Figures with a row a label: dots of a distribution, values with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

from evenfed.report.charts.canvas import Canvas, Scale, Theme, nice, number, width_of
from evenfed.report.charts.figures import DotRow, Dots, Spans

MANY = 250
"""Dots of a row above which it becomes a histogram."""
ALL = 1500
"""Dots of a figure above which every row becomes one."""
_BINS = 60
_FOOT = 40


def is_narrow(width: float) -> bool:
    """Whether a drawing is for a phone."""
    return width < 500


def _foot(canvas: Canvas, scale: Scale, top: float, bottom: float, axis: str,
          references: Sequence[tuple[str, float]]) -> None:  # fmt: skip
    """Grid lines, tick labels, the axis' name, and reference lines."""
    for value in scale.ticks(4 if is_narrow(canvas.width) else 6):
        x = scale(value)
        canvas.rule(x, top, x, bottom)
        canvas.text(x, bottom + 15, number(value), anchor="middle", size=11, fill=canvas.theme.soft)
    canvas.text(scale.start, bottom + 33, axis, size=12, fill=canvas.theme.soft,
                room=canvas.width - scale.start)  # fmt: skip
    for label, value in references:
        x = scale(value)
        canvas.rule(x, top - 4, x, bottom, color=canvas.theme.soft, dash="3 3")
        right = x + width_of(label, 11) > canvas.width - 4
        canvas.text(x + (-4 if right else 4), top - 7, label, size=11, fill=canvas.theme.soft,
                    anchor="end" if right else "start")  # fmt: skip


def draw_dots(figure: Dots, width: float, theme: Theme) -> Canvas:
    """One row a label; on a phone the label stands above its row."""
    narrow = is_narrow(width)
    rows = [r for r in figure.rows if any(math.isfinite(d.value) for d in r.dots)]
    step = 52 if narrow else 36
    top = 20.0 if figure.references else 8.0
    canvas = Canvas(width, top + step * len(rows) + _FOOT, theme)
    widest = max([width_of(r.label, bold=True) for r in rows] or [0.0])
    labels = 0.0 if narrow else min(200, widest + 16)
    remarks = 0.0 if narrow else max([width_of(r.remark, 11) for r in rows] or [0.0]) + 22
    values = [d.value for r in rows for d in r.dots] + [v for _, v in figure.references]
    low, high = nice(values, figure.low, figure.high)
    scale = Scale(low, high, labels + 8, width - remarks - 8)
    bottom = top + step * len(rows)
    crowded = figure.dense or sum(len(row.dots) for row in rows) > ALL
    _foot(canvas, scale, top, bottom, figure.axis, figure.references)
    for i, row in enumerate(rows):
        y = top + step * i + (34 if narrow else step / 2)
        at = (0.0, y - 18) if narrow else (0.0, y + 4)
        canvas.text(*at, row.label, weight=600, room=width * 0.5 if narrow else labels - 10)
        canvas.text(width, at[1], row.remark, anchor="end", size=11, fill=theme.soft)
        canvas.rule(scale.start, y, scale.end, y)
        (_histogram if crowded or len(row.dots) > MANY else _dots)(canvas, row, scale, y)
    return canvas


def _dots(canvas: Canvas, row: DotRow, scale: Scale, y: float) -> None:
    theme = canvas.theme
    found = [d for d in row.dots if math.isfinite(d.value)]
    for dot in found:
        canvas.add(
            "circle", f"{dot.name}: {dot.value:.3f}" if dot.name else f"{dot.value:.3f}",
            class_="mark", cx=scale(dot.value), cy=f"{y:g}", r=5,
            fill=theme.muted if dot.muted else theme.color(row.color), fill_opacity="0.5",
            stroke=theme.paper, stroke_width="0.75",
        )  # fmt: skip
    mean = sum(d.value for d in found) / len(found)
    x = scale(mean)
    canvas.add("rect", f"mean {mean:.3f}", class_="mark", x=f"{x - 1.5:g}", y=f"{y - 10:g}",
               width=3, height=20, fill=theme.ink)  # fmt: skip


def _histogram(canvas: Canvas, row: DotRow, scale: Scale, y: float) -> None:
    found = [d.value for d in row.dots if math.isfinite(d.value)]
    size = (scale.high - scale.low) / _BINS
    bins = [0] * _BINS
    for value in found:
        bins[min(int((value - scale.low) / size), _BINS - 1)] += 1
    for i, count in enumerate(bins):
        if count:
            begin, height = scale.low + i * size, 22 * count / max(bins)
            a, b = scale(begin), scale(begin + size)
            canvas.add(
                "rect", f"{count} from {begin:.3f} to {begin + size:.3f}", class_="mark", x=a,
                y=f"{y + 10 - height:.1f}", width=f"{max(b - a - 0.5, 0.5):.1f}",
                height=f"{height:.1f}", fill=canvas.theme.color(row.color), fill_opacity="0.75",
            )  # fmt: skip
    x = scale(sum(found) / len(found))
    canvas.add("rect", f"mean {sum(found) / len(found):.3f}", class_="mark", x=f"{x - 1.5:g}",
               y=f"{y - 12:g}", width=3, height=24, fill=canvas.theme.ink)  # fmt: skip


def _shown(value: float, low: float | None, high: float | None) -> str:
    # of large numbers nobody reads what stands behind the point
    places = 2 if max(abs(v) for v in (value, low or 0.0, high or 0.0)) < 1000 else 0
    span = "" if low is None or high is None else f" ({low:,.{places}f} to {high:,.{places}f})"
    return f"{value:,.{places}f}{span}"


def draw_spans(figure: Spans, width: float, theme: Theme) -> Canvas:
    """One line a value; equal labels stand once, above the parts on a phone."""
    narrow = is_narrow(width)
    spans = [s for s in figure.spans if math.isfinite(s.value)]
    heads = [i == 0 or s.label != spans[i - 1].label for i, s in enumerate(spans)]
    parts = any(s.part for s in spans)
    step, gap = 22, 24 if narrow and parts else 8
    top = 20.0 if figure.references else 6.0
    canvas = Canvas(width, top + step * len(spans) + gap * sum(heads) + _FOOT, theme)
    part_room = min(max([width_of(s.part, 11.5) for s in spans] or [0]) + 12, width * 0.28)
    label_room = min(
        max([width_of(s.label, bold=True) for s in spans] or [0]) + 14, 200 if not narrow else 120
    )
    left = (part_room if narrow else label_room + part_room) if parts else label_room
    right = max([width_of(_shown(s.value, s.low, s.high), 11) for s in spans] or [0]) + 12
    values = [v for s in spans for v in (s.value, s.low, s.high) if v is not None]
    low, high = nice([*values, *(v for _, v in figure.references)], figure.low, figure.high)
    scale = Scale(low, high, left + 4, width - right)
    _foot(canvas, scale, top, canvas.height - _FOOT, figure.axis, figure.references)
    y = top
    for head, span in zip(heads, spans, strict=True):
        y += gap if head else 0
        middle = y + step / 2
        color = theme.muted if span.muted else theme.color(span.color)
        if head:
            at = middle - step + 5 if narrow and parts else middle + 4
            canvas.text(
                0, at, span.label, weight=600, room=width if narrow and parts else label_room - 8
            )
        if parts:
            ink = theme.muted if span.muted else theme.ink
            canvas.text(left - 8, middle + 4, span.part, anchor="end", size=11.5,
                        room=part_room - 8, fill=ink)  # fmt: skip
        if span.low is not None and span.high is not None:
            canvas.rule(scale(span.low), middle, scale(span.high), middle, color=color, width=2.5)
        shown = _shown(span.value, span.low, span.high)
        tip = " ".join(w for w in (span.label, span.part) if w) + f": {shown}"
        canvas.add("circle", tip, class_="mark", cx=scale(span.value), cy=f"{middle:g}", r=5,
                   fill=color)  # fmt: skip
        canvas.text(width, middle + 4, shown, anchor="end", size=11,
                    fill=theme.muted if span.muted else theme.soft)  # fmt: skip
        y += step
    return canvas
