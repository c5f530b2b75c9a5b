"""Quadratic programmes over weights against a general solver and against their conditions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from evenfed.core.quadratic import minimize_weights


def by_scipy(
    q: np.ndarray, c: np.ndarray, start: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    found = minimize(
        lambda x: 0.5 * x @ q @ x + c @ x,
        start,
        jac=lambda x: q @ x + c,
        bounds=list(zip(low, high, strict=True)),
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 1000},
    )
    assert found.success, found.message
    return np.asarray(found.x)


def problem(seed: int, n: int, rank: int, eps: float) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, rank))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    start = rng.dirichlet(np.full(n, 3.0))
    low, high = np.maximum(start - eps, 0), np.minimum(start + eps, 1)
    return vectors @ vectors.T, 0.1 * rng.normal(size=n), start, low, high


@pytest.mark.proves("fedmgda", "quadratic programme against SciPy")
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("eps", [0.03, 0.1, 1.0])
def test_agrees_with_scipy(seed: int, eps: float) -> None:
    """The values agree; the weights too, as the form has full rank."""
    n = 2 + seed % 6
    q, c, start, low, high = problem(seed, n, n + 3, eps)
    x = minimize_weights(q, c, start=start, lower=low, upper=high)
    other = by_scipy(q, c, start, low, high)
    np.testing.assert_allclose(x, other, atol=1e-5)


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 6), st.floats(0, 1))
def test_no_exchange_between_two_weights_gains(seed: int, n: int, rank: int, eps: float) -> None:
    """At the minimum of a convex form, moving weight from i to j never lowers it.

    So the slope of every weight that can still fall is at most that of any that can still rise.
    Fewer directions than weights are among the cases.
    """
    q, c, start, low, high = problem(seed, n, rank, eps)
    x = minimize_weights(q, c, start=start, lower=low, upper=high)
    assert x.sum() == pytest.approx(1.0)
    assert (x >= low - 1e-12).all()
    assert (x <= high + 1e-12).all()
    slope = q @ x + c
    falls, rises = slope[x > low + 1e-7], slope[x < high - 1e-7]
    if len(falls) and len(rises):
        assert falls.max() <= rises.min() + 1e-6


@pytest.mark.parametrize("seed", range(6))
def test_clients_that_are_there_twice_settle_too(seed: int) -> None:
    """Equal vectors make the form singular; half the bound gives each pair one client's weight."""
    q, _, start, low, high = problem(seed, 4, 6, 0.1)
    once = minimize_weights(q, np.zeros(4), start=start, lower=low, upper=high)
    twice = minimize_weights(
        np.kron(q, np.ones((2, 2))), np.zeros(8),
        start=np.repeat(start / 2, 2), lower=np.repeat(low / 2, 2), upper=np.repeat(high / 2, 2),
    )  # fmt: skip
    np.testing.assert_allclose(twice.reshape(4, 2).sum(1), once, atol=1e-6)


def test_of_many_solutions_the_even_one() -> None:
    ones = np.ones((4, 4))
    start = np.array([0.7, 0.1, 0.1, 0.1])
    x = minimize_weights(ones, np.zeros(4), start=start, lower=np.zeros(4), upper=np.ones(4))
    np.testing.assert_allclose(x, 0.25, atol=1e-4)


def test_without_room_it_stays() -> None:
    start = np.array([0.2, 0.8])
    x = minimize_weights(np.eye(2), np.zeros(2), start=start, lower=start, upper=start)
    np.testing.assert_array_equal(x, start)
