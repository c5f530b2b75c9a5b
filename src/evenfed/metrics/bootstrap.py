"""Confidence intervals: over examples by resampling counts, over seeds by Student's t.

Resampling a client's rows with replacement and counting them again is the same as drawing its
confusion counts from a multinomial over its (group, label, predicted) cells. A statistic that
is a function of those counts therefore has its exact bootstrap without any row.

Sums of losses and of regression values are not functions of the counts. Where the sums of their
squares are known, each cell's sum is drawn from the normal distribution with the cell's mean and
variance; otherwise they are NaN in the replicates, and the interval says that there is none.

Intervals are by percentiles. A maximum over groups is biased upwards in a bootstrap, most of all
near 0: read such an interval as an upper bound on the disparity, not as a test that it is not 0.
Where so all percentiles lie beyond the estimate, the interval is widened to reach it: that can only
raise its coverage, and no value stands outside its own interval.

References
----------
B. Efron, R. Tibshirani. An Introduction to the Bootstrap. 1993, chapters 6, 8 and 13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from evenfed.core.counts import Counts
from evenfed.core.errors import ConfigError, DataError
from evenfed.metrics.client import FloatArray, divide, to_numpy

Statistic = Callable[[Counts], npt.ArrayLike]
"""Takes counts with leading axes, returns one value for each entry of them."""

CHUNK_ELEMENTS = 2**22
"""Counts held at once; replicates beyond are drawn in turn. No effect on the numbers."""


@dataclass(frozen=True)
class Interval:
    """A value with its confidence interval.

    Parameters
    ----------
    estimate : float
        The statistic on the counts themselves.
    low, high : float or None
        The interval; None where there is none, and `note` says why.
    level : float
        Nominal coverage.
    undefined : int
        Replicates in which the statistic was NaN (e.g. a small group vanished); left out.
    """

    estimate: float
    low: float | None
    high: float | None
    level: float
    undefined: int = 0
    note: str = ""


def interval(
    counts: Counts,
    statistic: Statistic,
    *,
    seed: int,
    level: float = 0.95,
    n: int = 1000,
    pool: bool = True,
    resample_clients: bool = False,
    vectorized: bool = True,
    loss_squares: torch.Tensor | None = None,
) -> Interval:
    """Bootstrap interval of one statistic; see `intervals`.

    Examples
    --------
    >>> from evenfed.metrics.client import accuracy
    >>> confusion = torch.tensor([[[[50.0, 10.0], [10.0, 30.0]]]])
    >>> counts = Counts(confusion, torch.zeros(1, 1, 2), torch.zeros(1, 1, 5))
    >>> result = interval(counts, accuracy, seed=0)
    >>> result.estimate, result.low < 0.8 < result.high
    (0.8, True)
    """
    return intervals(
        counts,
        {"value": statistic},
        seed=seed,
        level=level,
        n=n,
        pool=pool,
        resample_clients=resample_clients,
        vectorized=vectorized,
        loss_squares=loss_squares,
    )["value"]


def intervals(
    counts: Counts,
    statistics: Mapping[str, Statistic],
    *,
    seed: int,
    level: float = 0.95,
    n: int = 1000,
    pool: bool = True,
    resample_clients: bool = False,
    vectorized: bool = True,
    loss_squares: torch.Tensor | None = None,
) -> dict[str, Interval]:
    """Bootstrap intervals of several statistics from the same replicates.

    Parameters
    ----------
    counts : Counts
        Stacked over clients `(K, G, C, C)`, or one client's `(G, C, C)`.
    statistics : mapping of name to callable
        With `pool`, each takes counts `(n, G, C, C)` summed over clients and returns `(n,)`;
        without, it takes `(n, K, G, C, C)`. The functions of `metrics.group` keep leading axes
        and fit as they are. With `vectorized=False` it is called once a replicate, without `n`.
    seed : int
        The same seed gives the same interval.
    level : float
        Nominal coverage.
    n : int
        Replicates.
    pool : bool
        Whether statistics are of the federation's counts or of the clients'.
    resample_clients : bool
        False: the clients are fixed (strata) and the interval speaks of new examples of these
        clients. True: clients are drawn too, and it speaks of new clients.
    loss_squares : Tensor, optional
        Sums of the squared loss, of the shape of `counts.loss`; makes intervals of losses
        possible, by normal approximation in each (group, label) cell.

    Examples
    --------
    >>> from evenfed.metrics.client import accuracy
    >>> from evenfed.metrics.group import demographic_parity_difference
    >>> confusion = torch.tensor([[[40.0, 10.0], [10.0, 40.0]], [[60.0, 0.0], [20.0, 20.0]]])
    >>> counts = Counts(confusion, torch.zeros(2, 2), torch.zeros(2, 5))
    >>> both = intervals(counts, {"acc": accuracy, "dp": demographic_parity_difference}, seed=1)
    >>> {name: round(value.estimate, 6) for name, value in both.items()}
    {'acc': 0.8, 'dp': 0.3}
    """
    if not 0 < level < 1 or n < 2:
        raise ConfigError(f"level is in (0, 1) and n at least 2, got {level} and {n}")
    if counts.confusion.ndim == 3:
        counts = Counts(counts.confusion[None], counts.loss[None], counts.moments[None])
        loss_squares = None if loss_squares is None else loss_squares[None]
    if counts.confusion.ndim != 4:
        raise DataError(f"expected counts (K, G, C, C), got {tuple(counts.confusion.shape)}")
    draws: dict[str, list[FloatArray]] = {name: [] for name in statistics}
    for replicate in _replicates(counts, n, seed, resample_clients, loss_squares):
        batch = replicate.total(1) if pool else replicate
        for name, statistic in statistics.items():
            draws[name].append(_evaluate(statistic, batch, vectorized))
    observed = counts.total() if pool else counts
    return {
        name: _summary(float(np.asarray(statistic(observed))), np.concatenate(draws[name]), level)
        for name, statistic in statistics.items()
    }


def _evaluate(statistic: Statistic, batch: Counts, vectorized: bool) -> FloatArray:
    size = batch.confusion.shape[0]
    if vectorized:
        values = np.asarray(statistic(batch), dtype=np.float64)
    else:
        rows = (Counts(batch.confusion[i], batch.loss[i], batch.moments[i]) for i in range(size))
        values = np.array([float(np.asarray(statistic(row))) for row in rows])
    if values.shape != (size,):
        raise ConfigError(
            f"the statistic returned shape {values.shape} for {size} replicates; it must keep "
            "the leading axis, or be passed with vectorized=False"
        )
    return values


def _summary(estimate: float, values: FloatArray, level: float) -> Interval:
    defined = values[~np.isnan(values)]
    undefined = int(values.size - defined.size)
    if np.isnan(estimate):
        return Interval(estimate, None, None, level, undefined, "the statistic is undefined here")
    if defined.size == 0:
        note = "no interval: it depends on sums whose spread the counts do not hold"
        return Interval(estimate, None, None, level, undefined, note)
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return Interval(
        estimate, min(float(low), estimate), max(float(high), estimate), level, undefined
    )


def _replicates(
    counts: Counts, n: int, seed: int, resample_clients: bool, loss_squares: torch.Tensor | None
) -> Iterator[Counts]:
    """Yield replicates in chunks `(r, K, G, C, C)`.

    Every client has its own stream, read in the order of the replicates: the numbers do not
    depend on how the replicates are cut into chunks.
    """
    confusion = to_numpy(counts.confusion)
    clients, shape = confusion.shape[0], confusion.shape[1:]
    flat = confusion.reshape(clients, -1)
    if (flat < 0).any() or (flat != np.round(flat)).any():
        raise DataError("a bootstrap needs whole counts; these are weighted")
    streams = np.random.default_rng(seed).spawn(2 * clients + 1)
    slots = np.broadcast_to(np.arange(clients), (n, clients))
    if resample_clients:
        slots = streams[-1].integers(0, clients, size=(n, clients))
    rows = max(1, CHUNK_ELEMENTS // flat.size)
    for start in range(0, n, rows):
        slot = slots[start : start + rows]
        drawn = np.zeros((slot.size, flat.shape[1]))
        loss = np.full((slot.size, *counts.loss.shape[1:]), np.nan)
        moments = np.full((slot.size, *counts.moments.shape[1:]), np.nan)
        ends = np.cumsum(np.bincount(slot.ravel(), minlength=clients))
        places = np.split(np.argsort(slot, axis=None, kind="stable"), ends[:-1])
        for k, here in enumerate(places):
            drawn[here] = _multinomial(streams[k], flat[k], here.size)
            cells = drawn[here].reshape(-1, *shape).sum(-1)
            normal = streams[clients + k]
            if loss_squares is not None:
                sums = to_numpy(counts.loss[k]), to_numpy(loss_squares[k])
                loss[here] = _normal_loss(normal, cells, confusion[k].sum(-1), *sums)
            if shape[-1] == 1:
                sums_k = to_numpy(counts.moments[k])
                moments[here, :, :2] = _normal_means(normal, cells, flat[k], sums_k)
        yield Counts(
            torch.from_numpy(drawn.reshape(*slot.shape, *shape)),
            torch.from_numpy(loss.reshape(*slot.shape, *loss.shape[1:])),
            torch.from_numpy(moments.reshape(*slot.shape, *moments.shape[1:])),
        )


def _multinomial(stream: np.random.Generator, cells: FloatArray, draws: int) -> FloatArray:
    """Draw counts `(draws, cells)` of as many examples as there are, with replacement."""
    result = np.zeros((draws, cells.size))
    filled = np.flatnonzero(cells)
    if filled.size:
        # Only filled cells: rounding of the probabilities must not fill an empty one.
        share = cells[filled] / cells.sum()
        result[:, filled] = stream.multinomial(int(cells.sum()), share, size=draws)
    return result


def _normal_loss(
    stream: np.random.Generator,
    cells: FloatArray,
    size: FloatArray,
    loss: FloatArray,
    squares: FloatArray,
) -> FloatArray:
    """Draw loss sums `(r, G, C)` of drawn cells: normal with each cell's mean and variance."""
    mean = np.nan_to_num(divide(loss, size))
    spread = np.sqrt(np.maximum(np.nan_to_num(divide(squares, size)) - mean**2, 0.0))
    return np.asarray(cells * mean + np.sqrt(cells) * spread * stream.standard_normal(cells.shape))


def _normal_means(
    stream: np.random.Generator, cells: FloatArray, size: FloatArray, moments: FloatArray
) -> FloatArray:
    """Draw sums of y and prediction `(r, G, 2)`, jointly normal with each group's covariance."""
    mean = np.nan_to_num(divide(moments, size[:, None]))
    y, p = mean[:, 0], mean[:, 1]
    var_y, var_p = np.maximum(mean[:, 2] - y * y, 0.0), np.maximum(mean[:, 3] - p * p, 0.0)
    slope = np.nan_to_num(divide(mean[:, 4] - y * p, var_y))
    rest = np.sqrt(np.maximum(var_p - slope**2 * var_y, 0.0))
    count = cells[..., 0]
    z = stream.standard_normal((*count.shape, 2))
    step_y = np.sqrt(count * var_y) * z[..., 0]
    step_p = slope * step_y + np.sqrt(count) * rest * z[..., 1]
    return np.stack([count * y + step_y, count * p + step_p], -1)


@dataclass(frozen=True)
class SeedSummary:
    """Mean over seeds, sample standard deviation (n - 1) and Student's t interval of the mean.

    With one seed there is no spread, and with a value that is not finite no mean: NaN.
    """

    mean: float
    std: float
    low: float
    high: float
    seeds: int
    level: float
    not_finite: int = 0


def over_seeds(values: npt.ArrayLike, level: float = 0.95) -> SeedSummary:
    """Summary of one value a seed.

    Examples
    --------
    >>> summary = over_seeds([0.8, 0.9, 1.0])
    >>> [round(x, 4) for x in (summary.mean, summary.std, summary.low, summary.high)]
    [0.9, 0.1, 0.6516, 1.1484]
    """
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1 or vector.size == 0 or not 0 < level < 1:
        raise DataError(f"expected one value a seed and a level in (0, 1), got {vector.shape}")
    nan, seeds = float("nan"), int(vector.size)
    not_finite = int((~np.isfinite(vector)).sum())
    if not_finite:
        return SeedSummary(nan, nan, nan, nan, seeds, level, not_finite)
    mean = float(vector.mean())
    if seeds == 1:
        return SeedSummary(mean, nan, nan, nan, seeds, level)
    from scipy import special  # a tenth of a second that a run of one seed need not wait for

    std = float(vector.std(ddof=1))
    half = float(special.stdtrit(seeds - 1, (1 + level) / 2)) * std / seeds**0.5
    return SeedSummary(mean, std, mean - half, mean + half, seeds, level)
