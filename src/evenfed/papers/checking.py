"""Compares a fresh quick run with the stored one."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evenfed.papers.store import Results

LEAST = 0.002
"""Smallest tolerance: what another version of a kernel may do to a trained model's accuracy."""
SPREADS = 3.0


@dataclass(frozen=True)
class Difference:
    """A cell whose mean moved by more than it may."""

    row: str
    column: str
    metric: str
    stored: float
    fresh: float
    tolerance: float

    def __str__(self) -> str:
        cell = f"{self.row}, {self.column}, {self.metric}"
        return f"{cell}: {self.stored:.4f} stored, {self.fresh:.4f} now (± {self.tolerance:.4f})"


def differences(stored: Results, fresh: Results) -> list[Difference]:
    """Cells of the stored results that the fresh ones do not repeat.

    The tolerance is three times the stored standard deviation over seeds, and at least 0.002.
    """
    found = []
    for row, column, metric in cells(stored):
        before = stored.values(row, column, metric)
        now = fresh.values(row, column, metric)
        old = _mean(before)
        new = _mean(now) if len(now) == len(before) else math.inf
        spread = math.sqrt(_mean([(v - old) ** 2 for v in before]) * _bessel(len(before)))
        tolerance = max(LEAST, SPREADS * spread)
        both_undefined = math.isnan(old) and math.isnan(new)
        if not both_undefined and not abs(new - old) <= tolerance:
            found.append(Difference(row, column, metric, old, new, tolerance))
    return found


def cells(results: Results) -> list[tuple[str, str, str]]:
    """Every (row, column, metric) with a number."""
    found = {
        (row, run.column, metric): None
        for run in results.runs
        for row, values in run.outcome.values.items()
        for metric in values
    }
    return list(found)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _bessel(n: int) -> float:
    return n / (n - 1) if n > 1 else 0.0
