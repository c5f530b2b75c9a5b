"""Multipliers of two-sided constraints `|g_c| <= slack`: projected gradient ascent."""

from __future__ import annotations

import torch
from torch import Tensor


def ascended(
    multipliers: Tensor, values: Tensor, *, slack: float, rate: float, bound: float
) -> Tensor:
    """Multipliers `(2, c)` of `g <= slack` and `-g <= slack` after one step at `values` `(c,)`.

    Examples
    --------
    >>> ascended(torch.zeros(2, 1), torch.tensor([0.5]), slack=0.1, rate=1.0, bound=10.0)
    tensor([[0.4000],
            [0.0000]])
    """
    excess = torch.stack([values, -values]) - slack
    return (multipliers + rate * excess).clamp(0.0, bound)


def signed(multipliers: Tensor) -> Tensor:
    """`nu = lambda_+ - lambda_-` `(c,)`: the weight of `g` in the Lagrangian.

    Examples
    --------
    >>> signed(torch.tensor([[0.0, 2.0], [1.0, 0.0]]))
    tensor([-1.,  2.])
    """
    return multipliers[0] - multipliers[1]
