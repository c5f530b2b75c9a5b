"""Which examples a client looks at in each local step: drawn before it trains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from evenfed.core.tree import register_dataclass


@register_dataclass
@dataclass(frozen=True)
class Batches:
    """The batches of one local training.

    Parameters
    ----------
    index : Tensor
        `(S, B)`, int64: rows of each of `S` batches. `B = 0` means that every step sees all
        rows (full batch), without a copy.
    mask : Tensor
        `(S, B)`, bool (`(S, 1)` for full batch): False for padding. A step whose mask is all
        False is not taken; such steps stand at the end.
    """

    index: Tensor
    mask: Tensor

    @property
    def steps(self) -> int:
        """Number of steps `S`, padding included."""
        return int(self.mask.shape[-2])

    def shortened(self, fraction: float) -> Batches:
        """The first `fraction` of the real steps (at least one); the rest becomes padding."""
        real = int(self.mask.any(-1).sum())
        keep = max(1, math.ceil(fraction * real))
        row = torch.arange(self.steps).unsqueeze(-1) < keep
        return Batches(self.index, self.mask & row)


def draw_batches(
    generator: torch.Generator, size: int, *, batch: int, epochs: int, steps: int = 0
) -> Batches:
    """Draw the batches of one client with `size` examples.

    Parameters
    ----------
    batch : int
        Examples a batch; 0 is full batch. The last short batch of an epoch is kept.
    epochs : int
        Passes over the data, each in a new random order. Ignored where `steps` is given.
    steps : int
        Exact number of steps, over as many passes as that takes; 0 to count by epochs.

    Examples
    --------
    >>> b = draw_batches(torch.Generator().manual_seed(0), 5, batch=2, epochs=1)
    >>> b.mask.tolist()
    [[True, True], [True, True], [True, False]]
    """
    if batch <= 0:
        count = steps or epochs
        return Batches(
            torch.zeros(count, 0, dtype=torch.int64), torch.ones(count, 1, dtype=torch.bool)
        )
    count, passes, mask = _layout(size, batch, epochs, steps)
    width = math.ceil(size / batch) * batch
    orders = [torch.randperm(size, generator=generator) for _ in range(passes)]
    if width > size:
        rest = torch.zeros(width - size, dtype=torch.int64)
        orders = [part for order in orders for part in (order, rest)]
    index = torch.cat(orders) if len(orders) > 1 else orders[0]
    return Batches(index.view(-1, batch)[:count], mask)


@lru_cache(maxsize=4096)
def _layout(size: int, batch: int, epochs: int, steps: int) -> tuple[int, int, Tensor]:
    """Steps, passes over the data, and the mask, which clients of one size share."""
    per_epoch = math.ceil(size / batch)
    count = steps or epochs * per_epoch
    passes = math.ceil(count / per_epoch)
    real = torch.arange(per_epoch * batch) < size
    return count, passes, real.view(per_epoch, batch).repeat(passes, 1)[:count]
