"""Differentiable measures of how far predictions depend on the group, for any number of groups.

All are functions of a batch; padding has weight 0. With more than two classes every class's
probability is looked at. For two groups and two classes:

- `covariance`: `|mean_i (a_i - a_mean)(f_i - f_mean)|` with `a` the group's code and `f` the
  probability of class 1 (Eq. 2 of HetPFL, made a quantity to shrink by the absolute value). More
  groups: half the sum over groups of the absolute covariance with the group's indicator. A
  small group counts little.
- `demographic_parity`: the largest `|E[f | group] - E[f]|`, so that a small group counts fully.
- `equal_opportunity`: the same among the examples of class 1 (more classes: of each class).
- `squared_covariance`: `mean_i (a_i - a_mean)^2 (s_i - s_mean)^2` on logits `s`, added up over
  classes: what the public code of PraFFL and HetPFL computes. It is positive where group and
  prediction are independent and zero only for a constant score: it measures the spread of the
  score, not fairness. Here for comparison alone.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from evenfed.core.softmax import softmax

Fairness = Literal["covariance", "demographic_parity", "equal_opportunity", "squared_covariance"]
FAIRNESS: tuple[Fairness, ...] = (
    "covariance", "demographic_parity", "equal_opportunity", "squared_covariance",
)  # fmt: skip


def fairness_loss(
    kind: Fairness, outputs: Tensor, y: Tensor, group: Tensor, weight: Tensor, groups: int
) -> Tensor:
    """The measure for several models at once.

    Parameters
    ----------
    outputs : Tensor
        Logits `(N, B, C)`, or one logit `(N, B)`, of N models.
    y, group, weight : Tensor
        Labels, group codes, and 1 for real examples `(B,)`.
    groups : int
        Number of groups.

    Returns
    -------
    Tensor
        `(N,)`, at least 0; a batch of one group has 0 (but for `squared_covariance`).

    Examples
    --------
    >>> outputs = torch.tensor([[[0.0, 9.0], [9.0, 0.0]]])
    >>> y, group = torch.tensor([1, 0]), torch.tensor([1, 0])
    >>> fairness_loss("demographic_parity", outputs, y, group, torch.ones(2), 2).round(decimals=2)
    tensor([0.5000])
    """
    if outputs.ndim == 2:
        outputs = torch.stack([torch.zeros_like(outputs), outputs], -1)
    share = weight / weight.sum().clamp(min=1)
    if kind == "squared_covariance":
        code = group.to(outputs.dtype)
        away = (code - (share * code).sum()).square() * share  # (B,)
        spread = (outputs - (share.unsqueeze(-1) * outputs).sum(-2, keepdim=True)).square()
        return (away.unsqueeze(-1) * spread).sum((-2, -1))
    f = softmax(outputs)  # (N, B, C)
    code = torch.arange(groups, device=group.device)
    member = (group.unsqueeze(-1) == code).to(f.dtype) * share.unsqueeze(-1)  # (B, G)
    if kind == "covariance":
        mean = (share.unsqueeze(-1) * f).sum(-2, keepdim=True)
        return (member.mT @ (f - mean)).abs().sum((-2, -1)) / 4
    if kind == "demographic_parity":
        return _largest_gap(f, member.unsqueeze(-1).expand(*member.shape, f.shape[-1]))
    klass = torch.arange(f.shape[-1], device=y.device)
    if len(klass) == 2:
        f, klass = f[..., 1:], klass[1:]
    own = (y.unsqueeze(-1) == klass).to(f.dtype)  # (B, C)
    return _largest_gap(f, member.unsqueeze(-1) * own.unsqueeze(-2))


def _largest_gap(f: Tensor, member: Tensor) -> Tensor:
    """`max |E[f | group] - E[f]|` over groups that are there; weights `member` are `(B, G, C)`."""
    size = member.sum(0)  # (G, C)
    sums = torch.einsum("nbc,bgc->ngc", f, member)
    tiny = torch.finfo(f.dtype).tiny
    overall = sums.sum(-2, keepdim=True) / size.sum(0).clamp(min=tiny)
    gaps = (sums / size.clamp(min=tiny) - overall).abs()
    return torch.where(size > 0, gaps, 0).flatten(-2).amax(-1)
