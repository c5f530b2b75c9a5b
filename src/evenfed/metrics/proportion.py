"""Intervals of a share and of a mean: how far the examples counted tell the value behind them.

References
----------
E. B. Wilson. Probable Inference, the Law of Succession, and Statistical Inference. JASA 1927.
"""

from __future__ import annotations

import math
from statistics import NormalDist


def wilson(right: float, n: float, level: float = 0.95) -> tuple[float, float] | None:
    """Wilson's score interval of `right / n`; None without examples.

    It stays inside [0, 1] and keeps its coverage near the ends and with few examples.

    Examples
    --------
    >>> [round(end, 4) for end in wilson(8, 10)]  # Newcombe 1998 gives 0.4902 to 0.9433
    [0.4902, 0.9433]
    >>> wilson(0, 0) is None
    True
    """
    if n <= 0:
        return None
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, weight = right / n, z * z / n
    middle = (share + weight / 2) / (1 + weight)
    half = z * math.sqrt(share * (1 - share) / n + weight / (4 * n)) / (1 + weight)
    return max(0.0, middle - half), min(1.0, middle + half)


def mean_interval(
    total: float, squares: float, n: float, level: float = 0.95
) -> tuple[float, float] | None:
    """Normal interval of a mean from the sum of `n` values and of their squares.

    None with fewer than two values or where a sum is not finite.

    Examples
    --------
    >>> low, high = mean_interval(10.0, 30.0, 5)  # variance (30 - 5 * 2**2) / 4 = 2.5
    >>> round((high - low) / 2 / 1.959964, 4) == round((2.5 / 5) ** 0.5, 4)
    True
    """
    if n < 2 or not (math.isfinite(total) and math.isfinite(squares)):
        return None
    mean = total / n
    variance = max(squares - n * mean * mean, 0.0) / (n - 1)
    half = NormalDist().inv_cdf((1 + level) / 2) * math.sqrt(variance / n)
    return mean - half, mean + half
