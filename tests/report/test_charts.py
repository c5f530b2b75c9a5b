"""Drawings place what they are given where it belongs."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenfed.report.charts import (
    NARROW,
    WIDE,
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
    draw,
    standalone,
)
from evenfed.report.charts.canvas import PRINT, SERIES, Scale, nice, width_of
from evenfed.report.charts.planes import _spread, draw_scatter
from evenfed.report.charts.rows import MANY

SVG = "{http://www.w3.org/2000/svg}"
FIGURES: list[Figure] = [
    Dots("dots", "A <title>", "Words & more.", "value", [DotRow("a", [Dot(0.2, "x"), Dot(0.8)])]),
    Lines(
        "lines", "T", "W.", "round", "v", [Line("a", [1, 2], [0.5, 0.7], [0.4, 0.6], [0.6, 0.8])]
    ),
    Bars(
        "bars", "T", "W.", "v", ["c1", "c2"], [BarRow("a", [1.0, -0.5]), BarRow("b", [None, 2.0])]
    ),
    Spans("spans", "T", "W.", "v", [Span("a", 0.5, 0.4, 0.6, "g"), Span("a", 0.7, part="h")]),
    Heat("heat", "T", "W.", ["r1", "r2"], ["c1"], [[0.2], [None]]),
    Scatter("front", "T", "W.", "d", "e", [Cloud("m", [0.1, 0.2], [0.3, 0.2])], [("c", 0.0, 0.4)]),
]


def parsed(figure: Figure, width: float = WIDE) -> ET.Element:
    return ET.fromstring(standalone(figure, width))


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("figure", FIGURES, ids=lambda f: f.key)
def test_a_figure_is_wellformed_and_stays_inside(figure: Figure, width: float) -> None:
    root = parsed(figure, width)
    assert root.attrib["role"] == "img"
    assert figure.text in root.attrib["aria-label"]
    height = float(root.attrib["height"])
    assert float(root.attrib["width"]) == width
    for node in root.iter():
        for key, limit in (("cx", width), ("cy", height), ("x", width), ("y", height)):
            if key in node.attrib:
                assert -1 <= float(node.attrib[key]) <= limit + 1
    assert "var(" in draw(figure)


def test_dots_lie_where_their_values_are() -> None:
    values = [0.0, 0.25, 0.5, 1.0]
    figure = Dots("d", "", "", "v", [DotRow("a", [Dot(v) for v in values])], low=0.0, high=1.0)
    xs = [float(c.attrib["cx"]) for c in parsed(figure).iter(f"{SVG}circle")]
    steps = [(x - xs[0]) / (xs[-1] - xs[0]) for x in xs]
    assert steps == pytest.approx(values, abs=1e-3)


def test_many_dots_become_a_histogram_that_counts_them_all() -> None:
    values = [i / 999 for i in range(1000)]
    assert len(values) > MANY
    root = parsed(Dots("d", "", "", "v", [DotRow("a", [Dot(v) for v in values])]))
    assert not list(root.iter(f"{SVG}circle"))
    tips = [t.text or "" for t in root.iter(f"{SVG}title")]
    counts = [int(m[1]) for tip in tips if (m := re.match(r"(\d+) from", tip))]
    assert sum(counts) == 1000


def test_a_crowded_figure_has_histograms_only() -> None:
    few = [DotRow("a", [Dot(i / 100) for i in range(100)])]
    assert len(list(parsed(Dots("d", "", "", "v", few * 15)).iter(f"{SVG}circle"))) == 1500
    assert not list(parsed(Dots("d", "", "", "v", few * 16)).iter(f"{SVG}circle"))


def test_bars_are_as_high_as_their_values_on_one_scale() -> None:
    rows = [BarRow("a", [1.0, 2.0]), BarRow("b", [4.0, -1.0])]
    root = parsed(Bars("b", "", "", "v", ["x", "y"], rows))
    bars = [r for r in root.iter(f"{SVG}rect") if r.attrib.get("class") == "mark"]
    heights = [float(r.attrib["height"]) for r in bars]
    assert [h / heights[0] for h in heights] == pytest.approx([1, 2, 4, 1], rel=0.03)
    # the negative one hangs from the line on which the others stand
    assert float(bars[3].attrib["y"]) == pytest.approx(
        float(bars[2].attrib["y"]) + heights[2], abs=0.2
    )


def test_a_value_stands_inside_its_interval() -> None:
    root = parsed(Spans("s", "", "", "v", [Span("a", 0.5, 0.3, 0.6)]))
    (dot,) = (c for c in root.iter(f"{SVG}circle"))
    lines = [r for r in root.iter(f"{SVG}line") if r.attrib["stroke"] == SERIES[0]]
    (line,) = lines
    low, x, high = (float(v) for v in (line.attrib["x1"], dot.attrib["cx"], line.attrib["x2"]))
    assert (x - low) / (high - low) == pytest.approx(2 / 3, abs=0.01)


def test_a_gap_in_a_line_is_left_out() -> None:
    root = parsed(Lines("l", "", "", "round", "v", [Line("a", [1, 2, 3], [1.0, None, 2.0])]))
    (path,) = root.iter(f"{SVG}polyline")
    assert len(path.attrib["points"].split()) == 2


def test_bands_are_drawn_for_few_lines_only() -> None:
    def bands(n: int) -> int:
        line = Line("a", [1, 2], [1.0, 2.0], [0.5, 1.5], [1.5, 2.5])
        return len(list(parsed(Lines("l", "", "", "r", "v", [line] * n)).iter(f"{SVG}polygon")))

    assert bands(3) == 3
    assert bands(4) == 0


@given(st.lists(st.floats(20, 200), min_size=1, max_size=12))
def test_labels_do_not_cover_each_other(wanted: list[float]) -> None:
    placed = sorted(_spread(wanted, 14, 20, 200))
    assert all(b - a >= 14 - 1e-6 for a, b in pairwise(placed))


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_round_and_inside(low: float, span: float) -> None:
    scale = Scale(low, low + span, 0, 100)
    ticks = scale.ticks(5)
    slack = 1e-6 * max(abs(low), span)
    assert all(low - slack <= t <= low + span + slack for t in ticks)
    assert len(ticks) <= 11


def test_an_axis_of_one_value_has_a_width() -> None:
    low, high = nice([0.5, 0.5])
    assert low < 0.5 < high


def test_ticks_of_rounds_are_whole_numbers() -> None:
    assert 0.5 in Scale(0, 3, 0, 100).ticks(7)
    assert Scale(0, 3, 0, 100).ticks(7, whole=True) == [0, 1, 2, 3]
    figure = Lines("f", "t", "", "round", "loss", [Line("a", [0, 2, 3], [7.2, 7.5, 7.8])])
    assert ">2<" in draw(figure)
    assert ">0.5<" not in draw(figure)


def test_clouds_of_a_figure_are_all_named_inside_it_and_told_apart() -> None:
    clouds = [Cloud(f"a method of number {i}", [0.1, 0.2], [0.2, 0.1]) for i in range(10)]
    canvas = draw_scatter(Scatter("k", "t", "d", "x", "y", clouds, []), 720, PRINT)
    drawn = ET.fromstring(canvas.svg("t", "d"))
    texts = [e for e in drawn.iter() if e.tag.endswith("text")]
    places = {e.text: (float(e.get("x", 0)), float(e.get("y", 0))) for e in texts}
    for cloud in clouds:
        left, _ = places[cloud.label]
        assert left + width_of(cloud.label, 12.5, bold=True) <= 720
    assert len({places[cloud.label] for cloud in clouds}) == 10
    marks = [e for e in drawn.iter() if e.tag.endswith("circle") and e.get("r") == "4.5"]
    assert len({(e.get("fill"), e.get("stroke")) for e in marks}) == 10
