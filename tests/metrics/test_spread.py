"""Intervals of the worst and of the spread: cases by hand, and coverage by simulation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from evenfed.metrics.spread import Means, Shares, lowest_interval, lowest_mean, std_interval


def shares(right: list[float], n: list[float]) -> Shares:
    return Shares(np.array(right), np.array(n))


def test_of_one_share_the_upper_end_is_clopper_and_pearsons_the_lower_jeffreys() -> None:
    low, high = lowest_interval(shares([6.0], [20.0]), seed=0)
    assert low == pytest.approx(stats.beta(6.5, 14.5).ppf(0.025), abs=0.02)
    assert high == pytest.approx(stats.beta(7, 14).ppf(0.975), abs=0.02)


def test_a_worst_client_of_whom_nothing_is_right_has_an_interval() -> None:
    """None of 8: shares above 1 - 0.025 ** (1 / 8) = 0.369 are refused at 2.5 %."""
    low, high = lowest_interval(shares([0.0, 190.0], [8.0, 200.0]), seed=0)
    assert low == 0.0
    assert high == pytest.approx(0.369, abs=0.035)


def test_where_all_are_right_the_worst_and_the_spread_have_an_interval() -> None:
    found = shares([8.0] * 5, [8.0] * 5)
    low, high = lowest_interval(found, seed=0)
    assert high == 1.0
    assert 0.3 < low < 0.8
    spread = std_interval(found, seed=0)
    assert spread is not None
    assert spread[0] == 0.0
    assert 0.02 < spread[1] < 0.3


def test_one_value_has_no_spread_and_intervals_reach_their_value() -> None:
    assert std_interval(shares([3.0], [8.0]), seed=0) is None
    rng = np.random.default_rng(1)
    for seed in range(5):
        n = rng.integers(1, 12, 30).astype(float)
        found = Shares(rng.binomial(n.astype(int), 0.7).astype(float), n)
        low, high = lowest_interval(found, 3, seed=seed)
        assert low <= lowest_mean(found.values, 3) <= high
        spread = std_interval(found, seed=seed)
        assert spread is not None
        assert spread[0] <= found.values.std() <= spread[1]


def test_with_many_examples_the_spread_has_the_interval_of_the_delta_method() -> None:
    """Two shares p and q: their standard deviation is half of their distance."""
    p, q, n = 0.9, 0.6, 4000.0
    spread = std_interval(shares([p * n, q * n], [n, n]), seed=0)
    half = 1.96 * np.sqrt((p * (1 - p) + q * (1 - q)) / n) / 2
    assert spread == pytest.approx((0.15 - half, 0.15 + half), abs=0.1 * half)


def alike(k: int) -> np.ndarray:
    return np.full(k, 0.8)


def apart(k: int) -> np.ndarray:
    return np.where(np.arange(k) < k // 5, 0.6, 0.95)


@pytest.mark.parametrize("truth", [alike, apart])
def test_intervals_cover_what_stands_behind_measured_shares(
    truth: Callable[[int], np.ndarray],
) -> None:
    """A bootstrap of the same 15 clients alike covers their lowest share about half the time."""
    rng, runs, k = np.random.default_rng(0), 40, 15
    behind = truth(k)
    hits = np.zeros(3)
    for seed in range(runs):
        n = rng.integers(10, 60, k)
        found = Shares(rng.binomial(n, behind).astype(float), n.astype(float))
        spread = std_interval(found, seed=seed)
        assert spread is not None
        spans = [
            (lowest_interval(found, seed=seed, apart=spread[0]), behind.min()),
            (lowest_interval(found, 3, seed=seed, apart=spread[0]), np.sort(behind)[:3].mean()),
            (spread, behind.std()),
        ]
        hits += [low - 1e-9 <= value <= high + 1e-9 for (low, high), value in spans]
    # at 95 % fewer than 34 of 40 have a chance of 0.003
    assert (hits >= 34).all(), hits


def test_intervals_cover_what_stands_behind_measured_means() -> None:
    """Of 12 equal means; the lowest of them that is measured lies below all of that."""
    rng, runs = np.random.default_rng(2), 40
    hits = np.zeros(2)
    for seed in range(runs):
        rows = rng.normal(1.0, 1.0, (12, 25))
        found = Means(rows.mean(1), rows.std(1, ddof=1) / 5, np.full(12, 25.0))
        spread = std_interval(found, seed=seed)
        assert spread is not None
        low, high = lowest_interval(found, 2, seed=seed, apart=spread[0])
        hits += [low <= 1.0 <= high, spread[0] <= 1e-9]
    assert (hits >= 34).all(), hits
