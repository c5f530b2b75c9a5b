"""Interval of a share: how far `right` of `n` examples tell the rate behind them.

References
----------
E. B. Wilson. Probable Inference, the Law of Succession, and Statistical Inference. JASA 1927.
"""

from __future__ import annotations

import math

from scipy import special


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
    z = float(special.ndtri((1 + level) / 2))
    share, weight = right / n, z * z / n
    middle = (share + weight / 2) / (1 + weight)
    half = z * math.sqrt(share * (1 - share) / n + weight / (4 * n)) / (1 + weight)
    return max(0.0, middle - half), min(1.0, middle + half)
