"""When a measured number agrees with a printed one, and when an ordering holds.

**Verdict.** Ours is the mean over seeds with its 95 % interval of Student's t. The printed mean
*agrees* if it lies inside that interval, widened by the printed standard deviation (where there is
one) and by half a unit of the last printed digit. A printed mean of `r` runs without a spread is
uncertain too: its runs are taken to scatter as our `n` do, and the interval is that of a difference
of two means, `sqrt(1 + n / r)` times as wide. Outside, ours is *better* or *worse*. *Not
comparable* is a cell that the recipe marks as such, one without a mean or with fewer than three
seeds, and one whose interval is so wide that agreement would say nothing.

**Claim.** "A is better than B" is judged by the differences within seeds: *holds* if their 95 %
interval lies above 0, *fails* if it lies below, *not told apart* if it holds 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from evenfed.metrics.bootstrap import SeedSummary, over_seeds
from evenfed.papers.recipe import Metric, Published

Word = Literal["agrees", "better", "worse", "not comparable"]
WORDS: tuple[Word, ...] = ("agrees", "better", "worse", "not comparable")
Judgement = Literal["holds", "fails", "not told apart"]
LEAST_SEEDS = 3


@dataclass(frozen=True)
class Verdict:
    """A word, why, and ours less the printed figure."""

    word: Word
    reason: str = ""
    difference: float = math.nan


def summary(values: Sequence[float]) -> SeedSummary:
    """Mean and interval over seeds."""
    return over_seeds(values)


def judge(
    ours: Sequence[float],
    theirs: Published,
    metric: Metric,
    incomparable: str | None = None,
) -> Verdict:
    """The verdict on a cell.

    Examples
    --------
    >>> metric = Metric("accuracy", "accuracy")
    >>> judge([0.80, 0.81, 0.82], Published(0.83), metric).word
    'agrees'
    >>> judge([0.80, 0.81, 0.82], Published(0.84), metric).word
    'worse'
    >>> judge([0.80, 0.81, 0.82], Published(0.84, runs=3), metric).word
    'agrees'
    """
    found = summary(ours)
    difference = found.mean - theirs.value
    if incomparable is not None:
        return Verdict("not comparable", incomparable, difference)
    if found.not_finite:
        why = f"undefined in {found.not_finite} of {found.seeds} seeds"
        return Verdict("not comparable", why)
    if found.seeds < LEAST_SEEDS:
        why = f"{found.seeds} seeds; a verdict takes {LEAST_SEEDS}"
        return Verdict("not comparable", why, difference)
    half = (found.high - found.low) / 2
    both = math.sqrt(1 + found.seeds / theirs.runs) if theirs.runs and theirs.sd is None else 1.0
    if abs(difference) <= both * half + (theirs.sd or 0.0) + theirs.rounding:
        if both * half > metric.wide:
            why = (
                f"the interval of the difference is wider than ± {metric.wide:g}, too wide to tell"
            )
            return Verdict("not comparable", why, difference)
        return Verdict("agrees", "", difference)
    return Verdict("better" if (difference > 0) == metric.higher else "worse", "", difference)


def compare(ours: Sequence[float], than: Sequence[float], metric: Metric) -> Judgement:
    """Whether an ordering holds, seed by seed.

    Examples
    --------
    >>> metric = Metric("error", "error", higher=False)
    >>> compare([0.1, 0.2, 0.3], [0.2, 0.31, 0.39], metric)
    'holds'
    """
    sign = 1.0 if metric.higher else -1.0
    gaps = [sign * (a - b) for a, b in zip(ours, than, strict=True)]
    if len(gaps) < LEAST_SEEDS or not all(math.isfinite(gap) for gap in gaps):
        return "not told apart"
    found = summary(gaps)
    if found.low > 0:
        return "holds"
    return "fails" if found.high < 0 else "not told apart"
