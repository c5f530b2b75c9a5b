"""The probability simplex: the nearest point of it."""

from __future__ import annotations

import torch
from torch import Tensor


def project_to_simplex(point: Tensor) -> Tensor:
    """The point of `{x >= 0, sum x = 1}` nearest to `point` `(n,)`, in float64.

    By sorting: the nearest point is `max(point - theta, 0)`, and `theta` follows from the largest
    `r` for which the r-th largest entry lies above `(sum of the r largest - 1) / r`.

    References
    ----------
    J. Duchi et al., Efficient projections onto the l1-ball, ICML 2008.

    Examples
    --------
    >>> project_to_simplex(torch.tensor([0.5, 1.5, -1.0])).tolist()
    [0.0, 1.0, 0.0]
    """
    values = point.double()
    largest = values.sort(descending=True).values
    count = torch.arange(1, len(values) + 1, dtype=torch.float64, device=values.device)
    theta = (largest.cumsum(0) - 1) / count
    # the condition holds for the first r entries and for no later one
    r = int((largest > theta).sum())
    return (values - theta[r - 1]).clamp(min=0)
