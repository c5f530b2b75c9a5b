"""Gaussian kernels around given centres, on standardised features."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evenfed.core.errors import ConfigError
from evenfed.core.tree import register_dataclass


def feature_sums(x: Tensor, weight: Tensor) -> Tensor:
    """Sums of the features and of their squares `(2, D)`, float64, of examples `(n, ...)`.

    Examples
    --------
    >>> feature_sums(torch.tensor([[1.0], [3.0]]), torch.ones(2)).tolist()
    [[4.0], [10.0]]
    """
    if not x.is_floating_point():
        raise ConfigError("kernels need features that are numbers, not tokens")
    flat = x.reshape(len(x), -1).double()
    real = weight.double()
    return torch.stack([real @ flat, real @ flat.square()])


@register_dataclass
@dataclass(frozen=True)
class Kernels:
    """`K_m(x) = exp(-b |(x - mean) / scale - c_m|^2 / D)` for `M` centres.

    Parameters
    ----------
    centres : Tensor `(M, D)`
    mean, scale : Tensor `(D,)`
        Of the features.
    b : Tensor, a scalar
        `1 / (2 width^2)`; 0 for an infinite width, where every kernel is one everywhere.
    """

    centres: Tensor
    mean: Tensor
    scale: Tensor
    b: Tensor

    @classmethod
    def drawn(
        cls, generator: torch.Generator, sums: Tensor, total: float, count: int, width: float
    ) -> Kernels:
        """Kernels with centres drawn from a normal distribution of the features' mean and spread.

        `sums` are those of `feature_sums` over `total` examples.
        """
        mean = sums[0] / total
        spread = (sums[1] / total - mean.square()).clamp(min=0).sqrt()
        scale = torch.where(spread > 1e-8, spread, 1.0)  # a constant feature says nothing
        centres = torch.randn(count, len(mean), generator=generator)
        return cls(centres, mean.float(), scale.float(), torch.tensor(0.5 / width**2))

    def __call__(self, x: Tensor) -> Tensor:
        """Values `(n, M)` at examples `(n, ...)`."""
        flat = (x.reshape(len(x), -1) - self.mean) / self.scale
        # |z - c|^2 by a product: far less memory than all the differences
        squares = flat.square().sum(-1, keepdim=True) + self.centres.square().sum(-1)
        distance = (squares - 2 * flat @ self.centres.mT).clamp(min=0) / flat.shape[-1]
        return torch.exp(-self.b * distance)
