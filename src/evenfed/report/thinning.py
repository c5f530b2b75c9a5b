"""Keeps a page below a size: what is drawn and listed is thinned, in fixed steps, and it is said.

A page that would be larger than `LIMIT` takes the steps of `STEPS` in their order until it fits:
first what a reader misses least. Sentences, the table of metrics, cost, ledger and settings are
never touched. Figures and tables that `evenfed report DIR --figures svg --tables csv` writes are
whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evenfed.report.charts import Dots, Figure, Line, Lines
from evenfed.report.sections import Grid, Page, Section
from evenfed.report.words import count

LIMIT = 6_000_000
"""Bytes of a page."""
WHOLE = frozenset({"metrics", "cost", "ledger", "certificates", "audit"})
"""Keys of tables that are never cut: they have a few rows a method."""

Thin = Callable[[Section], Section]


@dataclass(frozen=True)
class Step:
    """One way to show less, and how the page says it."""

    words: str
    thin: Thin


def fitted(page: Page, draw: Callable[[Page], str], limit: int = LIMIT) -> str:
    """The page as text of at most `limit` bytes, thinned as far as it takes.

    Where even the last step does not suffice, the page says how large it is.
    """
    text, size = _drawn(page, draw)
    said: list[str] = []
    for step in STEPS:
        if size <= limit:
            break
        thinner = _thinned(page, step.thin)
        if thinner is None:
            continue
        said.append(step.words)
        page = replace(thinner, thinned=_sentence(said, limit))
        text, size = _drawn(page, draw)
    if size > limit:
        more = f" It is still {size / 1e6:.1f} MB."
        text = draw(replace(page, thinned=_sentence(said, limit) + more))
    return text


def _drawn(page: Page, draw: Callable[[Page], str]) -> tuple[str, int]:
    text = draw(page)
    return text, len(text.encode())


def _sentence(said: Sequence[str], limit: int) -> str:
    return (
        f"To stay below {limit / 1e6:g} MB this page shows less than the runs hold: "
        f"{'; '.join(said)}. `evenfed report DIR --figures svg --tables csv` writes figures and "
        "tables whole."
    )


def _thinned(page: Page, thin: Thin) -> Page | None:
    """The page with every section thinned; None where that changes nothing."""
    parts = [replace(part, sections=[thin(s) for s in part.sections]) for part in page.parts]
    pairs = zip(page.parts, parts, strict=True)
    same = all(
        new is old for a, b in pairs for old, new in zip(a.sections, b.sections, strict=True)
    )
    return None if same else replace(page, parts=parts)


def _with(section: Section, **changes: Sequence[Any]) -> Section:
    """The section with other figures or tables; itself where they are the same ones."""
    kept = all(
        len(new) == len(old := getattr(section, name))
        and all(a is b for a, b in zip(new, old, strict=True))
        for name, new in changes.items()
    )
    return section if kept else replace(section, **changes)  # type: ignore[arg-type]


def curves(most: int) -> Thin:
    """Curves of at most so many points: evenly chosen, with the first and the last."""

    def line(one: Line) -> Line:
        n = len(one.x)
        if n <= most:
            return one
        at = [round(i * (n - 1) / (most - 1)) for i in range(most)]
        low, high = (
            None if part is None else [part[i] for i in at] for part in (one.low, one.high)
        )
        return replace(one, x=[one.x[i] for i in at], y=[one.y[i] for i in at], low=low, high=high)

    def figure(one: Figure) -> Figure:
        if not isinstance(one, Lines) or all(len(each.x) <= most for each in one.lines):
            return one
        return replace(one, lines=[line(each) for each in one.lines])

    return lambda section: _with(section, figures=[figure(f) for f in section.figures])


def rows(most: int) -> Thin:
    """Tables by client, by group and the like of at most so many rows."""

    def grid(one: Grid) -> Grid:
        if one.key in WHOLE or len(one.rows) <= most:
            return one
        left = f"{count(len(one.rows) - most, 'more row')} left out."
        folded = one.folded and f"The first {count(most, 'row')} of {len(one.rows)}"
        return replace(
            one, rows=one.rows[:most], marks=one.marks[:most], notes=[*one.notes, left],
            folded=folded,
        )  # fmt: skip

    return lambda section: _with(section, grids=[grid(g) for g in section.grids])


def _histograms(section: Section) -> Section:
    """Distributions over clients as histograms."""
    return _with(
        section,
        figures=[
            replace(f, dense=True) if isinstance(f, Dots) and not f.dense else f
            for f in section.figures
        ],
    )


def _global_fronts(section: Section) -> Section:
    """An explorer without the fronts of single clients and of further seeds."""
    if section.explorer is None:
        return section
    entries: list[dict[str, Any]] = []
    for entry in section.explorer["entries"]:
        parts = {k: v for k, v in entry["parts"].items() if k == ""}
        if parts and entry["method"] not in [e["method"] for e in entries]:
            entries.append({**entry, "parts": parts})
    if len(entries) == len(section.explorer["entries"]) and all(
        len(a["parts"]) == len(b["parts"])
        for a, b in zip(entries, section.explorer["entries"], strict=True)
    ):
        return section
    return replace(section, explorer={**section.explorer, "entries": entries} if entries else None)


def _first_figure(section: Section) -> Section:
    return _with(section, figures=section.figures[:1])


def _no_figures(section: Section) -> Section:
    bare = _with(section, figures=[])
    return bare if bare.explorer is None else replace(bare, explorer=None)


STEPS = (
    Step("curves have at most 200 points", curves(200)),
    Step("tables by client and group end after 100 rows", rows(100)),
    Step("distributions over clients are histograms", _histograms),
    Step(
        "the front explorer holds the global models of one seed (front.json has all)",
        _global_fronts,
    ),
    Step("curves have at most 40 points", curves(40)),
    Step("tables by client and group end after 20 rows", rows(20)),
    Step("each section has one figure", _first_figure),
    Step("there are no figures", _no_figures),
)
