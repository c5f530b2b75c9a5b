"""The projection to the simplex against a general solver and against its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from evenfed.core.simplex import project_to_simplex

points = st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=6)


def by_scipy(point: np.ndarray) -> np.ndarray:
    """The nearest point by sequential quadratic programming."""
    n = len(point)
    found = minimize(
        lambda x: 0.5 * ((x - point) ** 2).sum(),
        np.full(n, 1 / n),
        jac=lambda x: x - point,
        bounds=[(0, 1)] * n,
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1, "jac": lambda x: np.ones(n)},
        method="SLSQP",
        options={"ftol": 1e-11, "maxiter": 500},
    )
    assert found.success, found.message
    return np.asarray(found.x)


@pytest.mark.proves("afl", "projection to the simplex against SciPy")
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
def test_agrees_with_scipy(seed: int, scale: float) -> None:
    point = scale * np.random.default_rng(seed).normal(size=2 + seed % 7)
    ours = project_to_simplex(torch.from_numpy(point)).numpy()
    np.testing.assert_allclose(ours, by_scipy(point), atol=1e-5)


@given(points)
def test_is_the_nearest_point(values: list[float]) -> None:
    """`x` is nearest exactly if `(v - x) . (e_k - x) <= 0` for every corner `e_k`."""
    point = torch.tensor(values, dtype=torch.float64)
    x = project_to_simplex(point)
    assert float(x.min()) >= 0
    assert float(x.sum()) == pytest.approx(1.0, abs=1e-9)
    corners = torch.eye(len(point), dtype=torch.float64)
    assert float(((corners - x) @ (point - x)).max()) <= 1e-9


@given(points)
def test_a_point_of_the_simplex_stays(values: list[float]) -> None:
    point = torch.tensor(values, dtype=torch.float64).softmax(0)
    torch.testing.assert_close(project_to_simplex(point), point, atol=1e-12, rtol=0)


def test_an_entry_that_the_wrong_rule_would_keep() -> None:
    """By hand: `theta = 0.5` leaves (1, 0), as the second entry lies below it.

    A rule that tests an entry against the sum of the larger ones alone keeps the second,
    `0.3 + (1 - 1.5) / 2 > 0`, takes `theta = 0.4` and ends at (1.1, 0), outside of the simplex.
    """
    x = project_to_simplex(torch.tensor([1.5, 0.3], dtype=torch.float64))
    torch.testing.assert_close(x, torch.tensor([1.0, 0.0], dtype=torch.float64))
