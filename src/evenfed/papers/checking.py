"""Compares a fresh quick run with the stored one, seed by seed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evenfed.papers.recipe import Table
from evenfed.papers.store import Results, Run

UNITS, SHARE = 2.0, 0.02
"""Tolerance: units of the last digit that a metric shows, or a share of the number if that is more.
Runs are seeded, so that rounding, by another processor or another kernel, is all that may tell them
apart: it may turn a prediction or two."""

ROUNDINGS = (
    {"MKL_CBWR": "COMPATIBLE"},
    {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
)
"""Variables with which products, sums and convolutions round as on older processors."""
FEW = 6
"""Rounding moves the numbers of so many jobs at most; more of them are not run again for it."""


@dataclass(frozen=True)
class Difference:
    """A number, or a word, that is not what it was."""

    row: str
    column: str
    name: str
    seed: int
    stored: float | str | None
    fresh: float | str | None

    @property
    def cell(self) -> Cell:
        """Where it is."""
        return self.row, self.column, self.name, self.seed

    def __str__(self) -> str:
        cell = f"{self.row}, {self.column}, {self.name}, seed {self.seed}"
        return f"{cell}: {_shown(self.stored)} stored, {_shown(self.fresh)} now"


def differences(table: Table, stored: Results, fresh: Results) -> list[Difference]:
    """What the fresh results do not repeat, numbers within their tolerance, and words.

    A cell that only one of them has is a difference too.
    """
    digits = {m.key: m.digits for m in table.metrics[stored.setting.protocol]}
    before, now = cells(stored.runs), cells(fresh.runs)
    return [
        Difference(*cell, before.get(cell), now.get(cell))
        for cell in before | now
        if not _same(before.get(cell), now.get(cell), UNITS * 10.0 ** -digits.get(cell[2], 3))
    ]


def _same(old: float | str | None, new: float | str | None, least: float) -> bool:
    if isinstance(old, str) and isinstance(new, str):
        parts = [re.split(r"(\d+(?:\.\d+)?)", text) for text in (old, new)]
        if len(parts[0]) != len(parts[1]) or parts[0][::2] != parts[1][::2]:
            return False
        numbers = zip(*(map(float, part[1::2]) for part in parts), strict=True)
        return all(_same(a, b, 0.0) for a, b in numbers)
    if isinstance(old, str) or isinstance(new, str) or old is None or new is None:
        return False
    if math.isnan(old) or math.isnan(new):
        return math.isnan(old) and math.isnan(new)
    return abs(new - old) <= max(least, SHARE * abs(old))


def beyond_rounding(
    moved: Sequence[Difference], otherwise: Sequence[Sequence[Run]]
) -> list[Difference]:
    """Differences that rounding does not explain.

    It does where the stored number is no further from those of the same job, rounded as it is here
    and as elsewhere, than they are from each other; a word, where it is one of theirs.

    Parameters
    ----------
    otherwise : sequence of sequences of Run
        The jobs of these cells, one sequence a way of rounding.
    """
    found = [cells(runs) for runs in otherwise]
    return [
        difference
        for difference in moved
        if not _rounded(difference, [of[difference.cell] for of in found if difference.cell in of])
    ]


def _rounded(difference: Difference, others: Sequence[float | str]) -> bool:
    stored, fresh = difference.stored, difference.fresh
    if isinstance(stored, str):
        return stored in others
    numbers = [v for v in (fresh, *others) if isinstance(v, float) and math.isfinite(v)]
    if stored is None or not math.isfinite(stored) or len(numbers) < 2:
        return False
    low, high = min(numbers), max(numbers)
    return 2 * low - high <= stored <= 2 * high - low


Cell = tuple[str, str, str, int]


def cells(runs: Iterable[Run]) -> dict[Cell, float | str]:
    """Every number and word by row, column, name and seed."""
    found: dict[Cell, float | str] = {}
    for run in runs:
        for outcome in (run.outcome.values, run.outcome.facts):
            for row, named in outcome.items():
                for name, value in named.items():
                    found[row, run.column, name, run.seed] = value
    return found


def _shown(value: float | str | None) -> str:
    if value is None:
        return "nothing"
    return value if isinstance(value, str) else f"{value:.4f}"
