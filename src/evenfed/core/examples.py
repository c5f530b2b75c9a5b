"""The tensors of one client, or of a batch of its examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evenfed.core.tree import register_dataclass


@register_dataclass
@dataclass(frozen=True)
class Examples:
    """`n` labelled examples with their group.

    Parameters
    ----------
    x : Tensor
        Features `(n, ...)`: float `(n, d)` for tables, `(n, C, H, W)` for images,
        int64 `(n, T)` for tokens.
    y : Tensor
        Labels `(n,)`: int64 class codes, or float32 for regression.
    group : Tensor
        Codes `(n,)`, int64, of the (intersection of) sensitive attributes.
    mask : Tensor
        `(n,)`, bool; False marks padding, which must never change a result.
    """

    x: Tensor
    y: Tensor
    group: Tensor
    mask: Tensor

    @classmethod
    def of(cls, x: Tensor, y: Tensor, group: Tensor | None = None) -> Examples:
        """Wrap real examples: nothing is padding; without groups all are in group 0.

        Examples
        --------
        >>> len(Examples.of(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)))
        3
        """
        if group is None:
            group = torch.zeros(len(y), dtype=torch.int64)
        return cls(x, y, group, torch.ones(len(y), dtype=torch.bool))

    def __len__(self) -> int:
        return int(self.y.shape[0])

    @property
    def weight(self) -> Tensor:
        """The mask as float32 `(n,)`."""
        return self.mask.to(torch.float32)

    def padded(self, size: int) -> Examples:
        """Pad to `size` rows by repeating the first row, marked as padding.

        A real row is repeated because a row of zeros may give NaN in a model that
        normalises, and zero times NaN is NaN.
        """
        extra = size - len(self)
        if extra <= 0:
            return self

        def grow(t: Tensor) -> Tensor:
            return torch.cat([t, t[:1].expand(extra, *t.shape[1:])])

        mask = torch.cat([self.mask, torch.zeros(extra, dtype=torch.bool, device=self.mask.device)])
        return Examples(grow(self.x), grow(self.y), grow(self.group), mask)

    def take(self, rows: Tensor) -> Examples:
        """The examples at `rows` (int64 or bool)."""
        return Examples(self.x[rows], self.y[rows], self.group[rows], self.mask[rows])

    @staticmethod
    def concatenate(parts: Sequence[Examples]) -> Examples:
        """All examples of `parts`, in order."""
        return Examples(
            torch.cat([p.x for p in parts]),
            torch.cat([p.y for p in parts]),
            torch.cat([p.group for p in parts]),
            torch.cat([p.mask for p in parts]),
        )
