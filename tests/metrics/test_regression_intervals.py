"""Intervals of R2 and of the mean squared error cover what stands behind them."""

from __future__ import annotations

import numpy as np
import torch

from evenfed.core.counts import Counts, count_values
from evenfed.metrics.regression import r2_interval, squared_error_interval

SIZES, NOISE = (80, 120), 0.6


def counted(rows: list[tuple[np.ndarray, np.ndarray]]) -> Counts:
    parts = []
    for y, said in rows:
        one = torch.ones(len(y), dtype=torch.float64)
        values = torch.from_numpy(said), torch.from_numpy(y)
        parts.append(count_values(*values, one.long() * 0, one, one, groups=1))
    fields = ("confusion", "loss", "moments")
    return Counts(*(torch.stack([getattr(part, name) for part in parts]) for name in fields))


def test_intervals_cover_the_values_behind_two_clients() -> None:
    """By hand: `y = k + u`, said is `0.8 y + 0.1 + 0.6 v`, with `u` and `v` standard normal.

    The error at client k is `0.2 (k + u) - 0.1 - 0.6 v`, its mean square
    `(0.2 k - 0.1)^2 + 0.04 + 0.36`; the variance of y is 1 and that between clients, `w (1 - w)`.
    """
    rng, runs, share = np.random.default_rng(0), 200, SIZES[1] / sum(SIZES)
    error = 0.1**2 + 0.04 + NOISE**2  # 0.2 k - 0.1 is -0.1 or 0.1
    explained = 1 - error / (1 + share * (1 - share))
    hits = np.zeros(2)
    for _ in range(runs):
        rows = []
        for k, n in enumerate(SIZES):
            y = k + rng.normal(size=n)
            rows.append((y, 0.8 * y + 0.1 + NOISE * rng.normal(size=n)))
        spans = (r2_interval(counted(rows)), squared_error_interval(counted(rows)))
        for i, (span, value) in enumerate(zip(spans, (explained, error), strict=True)):
            assert span is not None
            hits[i] += span[0] <= value <= span[1]
    # at 95 % fewer than 180 of 200 have a chance of 0.002; half as wide they cover 67 %
    assert (hits >= 180).all(), hits


def test_without_higher_moments_or_errors_there_is_none() -> None:
    y = np.linspace(0, 1, 20)
    counts = counted([(y, y + 0.1 * np.sin(9 * y))])
    fewer = Counts(counts.confusion, counts.loss, counts.moments[..., :6])
    assert r2_interval(fewer) is None
    assert squared_error_interval(fewer) is None
    assert r2_interval(counted([(y, y)])) is None
    assert squared_error_interval(counted([(y, y)])) is None
    assert r2_interval(counted([(np.ones(20), y)])) is None
