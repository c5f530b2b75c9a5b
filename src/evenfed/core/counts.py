"""What a client sends about a model's predictions: counts and loss sums, never rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evenfed.core.tree import register_dataclass


@register_dataclass
@dataclass(frozen=True)
class Counts:
    """Sums over the examples of one client (or several: every field adds up).

    Leading axes (clients `K`, models) may stand before the ones given here.
    Classification with `G` groups and `C` classes; regression has `C = 1` and keeps the
    number of examples in `confusion[g, 0, 0]`.

    Parameters
    ----------
    confusion : Tensor
        `(G, C, C)`, float64: examples by group, true label, predicted label.
    loss : Tensor
        `(G, C)`, float64: sum of the loss by group and true label.
    moments : Tensor
        Float64. Regression: `(G, 11)`, sums of y, prediction, y^2, prediction^2, y * prediction
        and the squared loss by group, then, with e = y - prediction, of y^3, y^4, e^2 y, e^2 y^2
        and e^4, which hold the spread of squared errors and of R2. Classification: `(G, 5)`, the
        sum of the squared loss by group, then zeros.
    """

    confusion: Tensor
    loss: Tensor
    moments: Tensor

    @property
    def cells(self) -> Tensor:
        """Examples by group and true label `(..., G, C)`."""
        return self.confusion.sum(-1)

    @property
    def size(self) -> Tensor:
        """Number of examples `(...)`."""
        return self.confusion.sum((-3, -2, -1))

    @property
    def loss_squares(self) -> Tensor:
        """Sum of the squared loss by group `(..., G)`."""
        return self.moments[..., 5 if self.confusion.shape[-1] == 1 else 0]

    def in_unit(self, offset: float, scale: float) -> Counts:
        """The moments for labels and predictions `offset + scale * value`.

        Losses stay, and the sums of third and fourth powers, which large offsets would spoil.

        Examples
        --------
        >>> y, p, one = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 2.0]), torch.ones(2)
        >>> known = count_values(10 + 3 * p, 10 + 3 * y, one.long() * 0, one, one, groups=1)
        >>> found = count_values(p, y, one.long() * 0, one, one, groups=1).in_unit(10, 3)
        >>> torch.equal(found.moments[:, :6], known.moments[:, :6])
        True
        """
        n = self.confusion.sum((-2, -1))
        y, p, yy, pp, yp, *rest = self.moments.unbind(-1)
        square, product = n * offset * offset, offset * scale
        moments = [
            n * offset + scale * y,
            n * offset + scale * p,
            square + 2 * product * y + scale * scale * yy,
            square + 2 * product * p + scale * scale * pp,
            square + product * (y + p) + scale * scale * yp,
            *rest,
        ]
        return Counts(self.confusion, self.loss, torch.stack(moments, -1))

    def total(self, axis: int = 0) -> Counts:
        """Sum over a leading axis, e.g. over clients."""
        return Counts(self.confusion.sum(axis), self.loss.sum(axis), self.moments.sum(axis))


def count_classes(
    predicted: Tensor,
    y: Tensor,
    group: Tensor,
    loss: Tensor,
    weight: Tensor,
    groups: int,
    classes: int,
) -> Counts:
    """Count one client's predictions; every argument is `(n,)`, `weight` is 0 for padding.

    Examples
    --------
    >>> one = torch.tensor([1]); w = torch.ones(1)
    >>> count_classes(one, one, one * 0, w, w, groups=2, classes=2).confusion[0, 1, 1].item()
    1.0
    """
    w = weight.to(torch.float64)
    cell = group * classes + y
    confusion = torch.zeros(groups * classes * classes, dtype=torch.float64, device=y.device)
    confusion = confusion.index_add(0, cell * classes + predicted, w)
    sums = torch.zeros(groups * classes, dtype=torch.float64, device=y.device)
    losses = loss.to(torch.float64)
    sums = sums.index_add(0, cell, w * losses)
    squares = torch.zeros(groups, dtype=torch.float64, device=y.device)
    squares = squares.index_add(0, group, w * losses * losses)
    return Counts(
        confusion.view(groups, classes, classes),
        sums.view(groups, classes),
        torch.nn.functional.pad(squares.unsqueeze(-1), (0, 4)),
    )


def count_values(
    predicted: Tensor, y: Tensor, group: Tensor, loss: Tensor, weight: Tensor, groups: int
) -> Counts:
    """Sums of one client's predictions in regression; every argument is `(n,)`."""
    w, p, t = weight.to(torch.float64), predicted.to(torch.float64), y.to(torch.float64)
    losses, squared = loss.to(torch.float64), (t - p) ** 2

    def by_group(values: Tensor) -> Tensor:
        start = torch.zeros(groups, dtype=torch.float64, device=y.device)
        return start.index_add(0, group, values)

    moments = torch.stack(
        [
            by_group(w * t),
            by_group(w * p),
            by_group(w * t * t),
            by_group(w * p * p),
            by_group(w * t * p),
            by_group(w * losses * losses),
            by_group(w * t**3),
            by_group(w * t**4),
            by_group(w * squared * t),
            by_group(w * squared * t * t),
            by_group(w * squared * squared),
        ],
        -1,
    )
    size, loss_sum = by_group(w), by_group(w * losses)
    return Counts(size.view(groups, 1, 1), loss_sum.view(groups, 1), moments)
