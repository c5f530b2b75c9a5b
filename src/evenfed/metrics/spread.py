"""Intervals of the worst of several values and of their standard deviation.

The lowest of many measured values is lower than the lowest of what they measure, and measured
values are further apart: chance adds to both. Resampling adds chance once more, so that its
percentiles may all lie on one side of what they should cover. Here each end is found for itself,
with `T` the statistic and `v` the values measured:

- the end on the bad side of the worst, and the upper end of a standard deviation: the percentile
  of `T` over values that are plausible given the examples (a share: Beta(right + 1/2,
  wrong + 1/2), Jeffreys' posterior; a mean: Student's t around it). Chance pushes it outwards, so
  it covers at least as often as it says;
- the other end: the last value of `T` of which `T(v)` is not too extreme an outcome (the inversion
  of a test). Of a standard deviation: distances from the mean are scaled. Of the worst: all values
  are shifted alike, after they were drawn together to what surely is between them, as told by the
  lower end of their standard deviation: the more alike values are, the more of them could have
  been the lowest by chance.

Of one share these are Jeffreys' lower and Clopper and Pearson's upper end. No interval of shares
has the width 0, also where all or none are right. An interval is widened to reach its value.

References
----------
L. D. Brown, T. T. Cai, A. DasGupta. Interval Estimation for a Binomial Proportion. 2001.
J. Carpenter. Test Inversion Bootstrap Confidence Intervals. JRSS B 1999.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from evenfed.metrics.client import FloatArray

_DRAWS = 2**17
"""Values drawn at once: at least 300 replicates, at most 1200."""
_STEPS = 10
"""Halvings of the range in which an end is looked for."""


@dataclass(frozen=True)
class Shares:
    """Shares `right / n` `(K,)`, each of at least one example."""

    right: FloatArray
    n: FloatArray

    @property
    def values(self) -> FloatArray:
        """The shares."""
        return np.asarray(self.right / self.n)

    @property
    def variances(self) -> FloatArray:
        """What chance adds to each, never 0."""
        a, b = self.right + 0.5, self.n - self.right + 0.5
        return np.asarray(a * b / ((a + b) ** 2 * (a + b + 1)))

    def plausible(self, stream: np.random.Generator, draws: int) -> FloatArray:
        """Shares `(draws, K)` that may stand behind those measured."""
        a, b = self.right + 0.5, self.n - self.right + 0.5
        return stream.beta(a, b, size=(draws, len(a)))

    def measured(self, stream: np.random.Generator, truth: FloatArray, draws: int) -> FloatArray:
        """Shares `(draws, K)` that would be measured if `truth` stood behind them."""
        n = self.n.astype(np.int64)
        return stream.binomial(n, np.clip(truth, 0.0, 1.0), size=(draws, len(n))) / self.n


@dataclass(frozen=True)
class Means:
    """Means `(K,)` with their standard errors, each of `n >= 2` examples."""

    values: FloatArray
    errors: FloatArray
    n: FloatArray

    @property
    def variances(self) -> FloatArray:
        """What chance adds to each."""
        return np.asarray(self.errors**2)

    def plausible(self, stream: np.random.Generator, draws: int) -> FloatArray:
        """Means `(draws, K)` that may stand behind those measured."""
        return self.measured(stream, self.values, draws)

    def measured(self, stream: np.random.Generator, truth: FloatArray, draws: int) -> FloatArray:
        """Means `(draws, K)` that would be measured if `truth` stood behind them."""
        steps = stream.standard_t(self.n - 1, size=(draws, len(self.n)))
        return np.asarray(truth + self.errors * steps)


def lowest_mean(values: FloatArray, size: int) -> FloatArray:
    """Mean of the `size` lowest of the last axis.

    Examples
    --------
    >>> float(lowest_mean(np.array([3.0, 1.0, 2.0]), 2))
    1.5
    """
    return np.asarray(np.partition(values, size - 1, axis=-1)[..., :size].mean(-1))


def lowest_interval(
    found: Shares | Means,
    size: int = 1,
    *,
    seed: int,
    level: float = 0.95,
    apart: float | None = None,
) -> tuple[float, float]:
    """Interval of the mean of the `size` lowest of the values behind those measured.

    Parameters
    ----------
    apart : float, optional
        The lower end of `std_interval`, where it is known already.

    Examples
    --------
    >>> low, high = lowest_interval(Shares(np.array([0.0, 8.0]), np.array([8.0, 8.0])), seed=0)
    >>> low, bool(0.3 < high < 0.4)  # Clopper and Pearson: none of 8 is at most 0.369
    (0.0, True)
    """
    values, draws = found.values, _draws(found)
    estimate, tail = float(lowest_mean(values, size)), (1 - level) / 2
    plausible = lowest_mean(found.plausible(np.random.default_rng(seed), draws), size)
    low = float(np.quantile(plausible, tail))
    if apart is None:
        apart = (std_interval(found, seed=seed, level=level) or (0.0, 0.0))[0]
    drawn, stop = _drawn_together(found, apart), 1.0 if isinstance(found, Shares) else np.inf
    reach = 8 * float(np.sqrt(found.variances.max())) + float(np.ptp(values))

    def too_low(shift: float) -> bool:
        truth = np.minimum(drawn + shift, stop)
        seen = lowest_mean(found.measured(np.random.default_rng(seed + 1), truth, draws), size)
        return bool((seen <= estimate + 1e-12).mean() < tail)

    shift = _turn(too_low, -reach, min(reach, stop - float(drawn.min())))
    high = float(lowest_mean(np.minimum(drawn + shift, stop), size))
    return min(low, estimate), max(high, estimate)


def std_interval(
    found: Shares | Means, *, seed: int, level: float = 0.95
) -> tuple[float, float] | None:
    """Interval of the standard deviation of the values behind those measured; None of one value.

    Examples
    --------
    >>> found = Shares(np.array([8.0, 8.0, 8.0]), np.array([8.0, 8.0, 8.0]))
    >>> low, high = std_interval(found, seed=0)  # no spread was seen, but there may be some
    >>> low, bool(0.05 < high < 0.3)
    (0.0, True)
    """
    values, draws = found.values, _draws(found)
    if len(values) < 2:
        return None
    estimate, tail, middle = float(values.std()), (1 - level) / 2, float(values.mean())
    plausible = found.plausible(np.random.default_rng(seed), draws).std(-1)
    high = float(np.quantile(plausible, 1 - tail))
    if estimate <= 0:
        return 0.0, high
    shape = (values - middle) / estimate

    def usual(c: float) -> bool:
        stream = np.random.default_rng(seed + 1)
        seen = found.measured(stream, middle + c * shape, draws).std(-1)
        return bool((seen >= estimate - 1e-12).mean() >= tail)

    low = 0.0 if usual(0.0) else _turn(usual, 0.0, estimate)
    return min(low, estimate), max(high, estimate)


def _draws(found: Shares | Means) -> int:
    return int(np.clip(_DRAWS // max(len(found.n), 1), 300, 1200))


def _drawn_together(found: Shares | Means, apart: float) -> FloatArray:
    """The values, nearer to their mean: as far apart as they surely are."""
    values, surely = found.values, apart**2
    kept = surely / np.maximum(surely + found.variances, np.finfo(np.float64).tiny)
    return np.asarray(values.mean() + kept * (values - values.mean()))


def _turn(holds: Callable[[float], bool], start: float, end: float) -> float:
    """Where `holds` turns from false at `start` to true; `end` where it never does."""
    if not holds(end):
        return end
    for _ in range(_STEPS):
        middle = (start + end) / 2
        start, end = (start, middle) if holds(middle) else (middle, end)
    return end
