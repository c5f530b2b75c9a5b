"""Small quadratic programmes over weights: on the simplex, each weight within its bounds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evenfed.core.errors import EvenfedError

Vector = NDArray[np.float64]

_RIDGE = 1e-10
"""Added to the quadratic form, relative to its mean diagonal: makes the solution unique."""
_TINY = 1e-12
_NOISE = 1e-11
"""Gain in slope, relative to the largest, below which freeing a weight is not worth it."""


def minimize_weights(
    quadratic: Vector, linear: Vector, *, start: Vector, lower: Vector, upper: Vector
) -> Vector:
    """Minimise `x' Q x / 2 + c' x` subject to `sum x = sum start` and `lower <= x <= upper`.

    A primal active-set method: steps to the minimum over the free weights until a bound stops
    it, then frees the weight that gains most. Cost is some `n` solves of at most `n` equations.
    Among several solutions it takes the one of least norm (by a ridge).

    Parameters
    ----------
    quadratic : array `(n, n)`
        Symmetric, positive semidefinite.
    start : array `(n,)`
        A feasible point, from which it begins.

    Examples
    --------
    >>> start = np.full(2, 0.5)
    >>> q, c = np.diag([1.0, 3.0]), np.zeros(2)
    >>> x = minimize_weights(q, c, start=start, lower=start - 0.5, upper=start + 0.5)
    >>> [round(v, 6) for v in x.tolist()]
    [0.75, 0.25]
    """
    n = len(start)
    form = quadratic + _RIDGE * max(float(np.trace(quadratic)) / n, _TINY) * np.eye(n)
    x = start.astype(np.float64)
    movable = upper - lower > _TINY
    free, side = movable.copy(), np.zeros(n)
    for _ in range(100 * n + 100):
        where = np.flatnonzero(free)
        if not len(where):
            return x
        step = _newton(form[np.ix_(where, where)], (form @ x + linear)[where])
        ends = np.where(step > 0, upper[where], lower[where])
        room = np.full(len(where), np.inf)
        np.divide(ends - x[where], step, out=room, where=np.abs(step) > _TINY)
        stop = int(room.argmin())
        x[where] += min(1.0, max(0.0, float(room[stop]))) * step
        if room[stop] < 1:
            held = where[stop]
            x[held], side[held], free[held] = ends[stop], np.sign(step[stop]), False
            continue
        # the minimum over the free weights: their slopes are one level, up to rounding
        slope = form @ x + linear
        level = slope[where].mean()
        gain = np.where(side < 0, level - slope, np.where(side > 0, slope - level, -np.inf))
        best = int(gain.argmax())
        if gain[best] <= _NOISE * max(1.0, float(np.abs(slope).max())):
            return x
        free[best], side[best] = True, 0.0
    raise EvenfedError(f"a quadratic programme of {n} weights did not settle")


def _newton(form: Vector, slope: Vector) -> Vector:
    """The step to the minimum that keeps the sum."""
    k = len(slope)
    system = np.ones((k + 1, k + 1))
    system[:k, :k], system[k, k] = form, 0.0
    step: Vector = np.linalg.solve(system, np.append(-slope, 0.0))[:k]
    result: NDArray[np.float64] = step - step.mean()
    return result
