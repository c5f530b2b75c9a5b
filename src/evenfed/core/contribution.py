"""What each of several points adds to the area that they dominate together, in two dimensions.

Both coordinates are losses, to be made small. `HVC_i = HV(S) - HV(S without i)`, Definition 1 of
Ye and Tang, "Learning Heterogeneous Performance-Fairness Trade-offs in Federated Learning"
(IJCAI 2025). For areas of measured fronts see `metrics.front`; this form runs inside a descent.
"""

from __future__ import annotations

import torch
from torch import Tensor


def contributions(points: Tensor, reference: Tensor) -> Tensor:
    """HVC of every point, exactly, by one sort: O(N log N).

    Left to right, the area below the reference is cut at every point's first coordinate. In a
    strip the lowest point so far dominates; without it the second lowest would. So the strip's
    part between the two belongs to the lowest point alone.

    Parameters
    ----------
    points : Tensor
        `(..., N, 2)`; what lies beyond the reference adds nothing.
    reference : Tensor
        `(..., 2)`.

    Returns
    -------
    Tensor
        `(..., N)`, each at least 0; equal points add nothing, since each replaces the other.

    Examples
    --------
    >>> contributions(torch.tensor([[0.25, 0.5], [0.5, 0.25], [0.5, 0.5]]), torch.ones(2))
    tensor([0.1250, 0.1250, 0.0000])
    """
    inside = torch.minimum(points, reference.unsqueeze(-2))
    x, order = inside[..., 0].sort(dim=-1, stable=True)
    y = inside[..., 1].gather(-1, order)
    right, top = reference[..., :1], reference[..., 1:]
    lowest, which = y.cummin(-1)
    before = torch.cat([top, lowest[..., :-1]], -1)
    # of the lowest so far and the next point one loses; the lowest loser is the second lowest
    second = torch.maximum(before, y).cummin(-1).values
    strips = (torch.cat([x[..., 1:], right], -1) - x) * (second - lowest)
    return torch.zeros_like(strips).scatter_add(-1, order.gather(-1, which), strips)


def contributions_without(points: Tensor, reference: Tensor) -> Tensor:
    """For every point the mean HVC of the others in the set without it: `(N, 2) -> (N,)`.

    It does not depend on the point itself, so it is a baseline that leaves a score-function
    estimate unbiased.
    """
    n = points.shape[-2]
    others = torch.arange(n, device=points.device).repeat(n, 1)
    kept = others[~torch.eye(n, dtype=torch.bool, device=points.device)].view(n, n - 1)
    return contributions(points[kept], reference.expand(n, 2)).mean(-1)
