"""Compares a fresh quick run with the stored one, seed by seed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evenfed.papers.store import Results

LEAST = 0.002
"""Smallest tolerance: what another version of a kernel may do to a trained model's accuracy."""
SHARE = 0.05
"""Of a number; runs are seeded, so that a kernel's rounding is all that may tell them apart."""


@dataclass(frozen=True)
class Difference:
    """A number, or a word, that is not what it was."""

    row: str
    column: str
    name: str
    seed: int
    stored: float | str | None
    fresh: float | str | None

    def __str__(self) -> str:
        cell = f"{self.row}, {self.column}, {self.name}, seed {self.seed}"
        return f"{cell}: {_shown(self.stored)} stored, {_shown(self.fresh)} now"


def differences(stored: Results, fresh: Results) -> list[Difference]:
    """What the fresh results do not repeat: numbers to 5 %, or 0.002, and words.

    A cell that was not run again is a difference too.
    """
    before, now = cells(stored), cells(fresh)
    return [
        Difference(*cell, old, now.get(cell))
        for cell, old in before.items()
        if not _same(old, now.get(cell))
    ]


def _same(old: float | str, new: float | str | None) -> bool:
    if isinstance(old, str) or isinstance(new, str) or new is None:
        return old == new
    if math.isnan(old) or math.isnan(new):
        return math.isnan(old) and math.isnan(new)
    return abs(new - old) <= max(LEAST, SHARE * abs(old))


Cell = tuple[str, str, str, int]


def cells(results: Results) -> dict[Cell, float | str]:
    """Every number and word by row, column, name and seed."""
    found: dict[Cell, float | str] = {}
    for run in results.runs:
        for outcome in (run.outcome.values, run.outcome.facts):
            for row, named in outcome.items():
                for name, value in named.items():
                    found[row, run.column, name, run.seed] = value
    return found


def _shown(value: float | str | None) -> str:
    if value is None:
        return "nothing"
    return value if isinstance(value, str) else f"{value:.4f}"
