"""What a report is made of: sections, each with sentences, figures and tables.

How to add a section for a method
---------------------------------
`evenfed.report.panels.panels_of(record)` returns the sections that only some methods have; the
page shows them after "How it converged". A panel reads the `Record` (its history, `measured`,
and what the run left in `record.folder`), works on an unfinished run, whose `measured` is None,
and returns an empty list where there is nothing to show::

    def panels_of(record: Record) -> list[Section]:
        rounds = [line["round"] + 1 for line in record.history if "angle" in line]
        if not rounds:
            return []
        angles = [line["angle"] for line in record.history if "angle" in line]
        figure = Lines("angle", "Angle to the ideal direction", f"It ends at {angles[-1]:.0f}.",
                       "round", "degrees", [Line(record.method, rounds, angles)])
        return [Section("angle", "How fair the update was", ["Sentences from numbers."], [figure])]

Sentences are plain text: the page escapes them. Keys become anchors and file names; the page makes
them unique.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evenfed.report.charts import Figure


@dataclass(frozen=True)
class Grid:
    """A table of texts.

    Parameters
    ----------
    key : str
        Name of its file when it is saved.
    marks : list of list of str
        A class for every cell: `best`, `second`, `muted` (too few examples), `span` (an interval
        in a second line) or none; that of a row's first cell counts for the row (`reference`).
    folded : str
        Where given, the table is hidden behind these words.
    """

    key: str
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    marks: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    folded: str = ""

    def mark(self, row: int, column: int) -> str:
        """The class of a cell."""
        return self.marks[row][column] if self.marks else ""


@dataclass(frozen=True)
class Section:
    """One question that the report answers.

    Parameters
    ----------
    sentences : sequence of str
        The answer in words, computed from the run's numbers.
    facts : sequence of (name, text)
        A short list of terms.
    explorer : mapping, optional
        Data of the front explorer.
    pre : str
        Text that is shown as it is (settings, a command).
    """

    key: str
    title: str
    sentences: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    grids: Sequence[Grid] = ()
    notes: Sequence[str] = ()
    facts: Sequence[tuple[str, str]] = ()
    explorer: Mapping[str, Any] | None = None
    pre: Sequence[tuple[str, str]] = field(default_factory=tuple)
    """(heading, text); a text of many lines is folded."""


@dataclass(frozen=True)
class Part:
    """The sections on one dataset; `name` is empty where there is one dataset."""

    name: str
    sections: Sequence[Section]


@dataclass(frozen=True)
class Page:
    """What the template shows."""

    title: str
    lead: str
    parts: Sequence[Part]
    failures: Sequence[str]
    settings: Section
    thinned: str = ""
    """What is left out to keep the page small; see `thinning`."""

    def sections(self) -> Iterator[Section]:
        """All sections in order."""
        for part in self.parts:
            yield from part.sections
        yield self.settings
