"""Stack clients for one vectorised call, so that padding depends on no neighbour.

A client of `n` examples is padded to a capacity that follows from the dataset alone, not from
the clients that happen to share its chunk. Its numbers therefore do not depend on the chunk size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.examples import Examples
from evenfed.core.tree import Tree

_WASTE = 1.15
"""Largest capacity relative to a size that uses it."""
_GRADIENT = 24
"""What a small model's gradient of an example costs, in copies of the example."""
_CALL = 1 << 19
"""Bytes that are copied while the operations of a step of a small model are called."""


@dataclass(frozen=True)
class Steps:
    """Local steps, as many for a small client as for a large one.

    Then padding is no more than memory that is written, while each capacity of a cohort calls all
    operations of all steps again.
    """

    count: int
    rows: int
    """Examples of all steps."""
    bytes: int
    """Of one example."""
    tokens: int = 1
    """Of one example: a recurrent model calls its operations for each."""

    def client(self, capacity: int) -> int:
        """Cost of a client, as bytes that are copied."""
        return self.bytes * (capacity + _GRADIENT * self.rows)

    @property
    def call(self) -> int:
        """Cost of a call for any number of clients."""
        return _CALL * self.count * self.tokens


def capacities(
    sizes: NDArray[np.int64], share: float = 1.0, steps: Steps | None = None
) -> dict[int, int]:
    """Map every size of a dataset to its capacity: few capacities, little padding.

    A client alone is computed twice, so sizes share a capacity where padding costs less than that.

    Parameters
    ----------
    share : float
        Share of the clients in a cohort.
    steps : Steps, optional
        What clients compute, where it does not grow with their data.

    Examples
    --------
    >>> capacities(np.array([100, 95, 10, 100]))
    {10: 10, 95: 100, 100: 100}
    >>> capacities(np.array([100, 60]))
    {60: 100, 100: 100}
    >>> capacities(np.array([100, 95, 10, 100]), steps=Steps(count=5, rows=50, bytes=400))
    {10: 100, 95: 100, 100: 100}
    """
    groups: list[_Group] = []
    for size, count in zip(*np.unique(sizes[sizes > 0], return_counts=True), strict=True):
        if not groups or size > groups[-1].sizes[0] * _WASTE:
            groups.append(_Group([], 0))
        groups[-1].sizes.append(int(size))
        groups[-1].clients += int(count)
    # the cheapest way to join neighbours: up to each group, the cost and where the last join begins
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end in range(1, len(groups) + 1):
        found = (math.inf, 0)
        clients, capacity = 0, groups[end - 1].sizes[-1]
        for begin in reversed(range(end)):
            clients += groups[begin].clients
            each = capacity if steps is None else steps.client(capacity)
            cost = best[begin][0] + each * _computed(clients, share)
            if steps is not None:
                cost += steps.call * (1 - (1 - share) ** clients)
            found = min(found, (cost, -begin))
        best.append((found[0], -found[1]))
    table = {0: 0} if (sizes == 0).any() else {}
    end = len(groups)
    while end:
        begin = best[end][1]
        own = [size for group in groups[begin:end] for size in group.sizes]
        table.update(dict.fromkeys(own, own[-1]))
        end = begin
    return dict(sorted(table.items()))


@dataclass
class _Group:
    """Sizes that are nearly alike, and how many clients have them."""

    sizes: list[int]
    clients: int


def _computed(clients: int, share: float) -> float:
    """How many clients a capacity computes in a round, in the mean: one alone counts twice."""
    drawn = clients * share
    return drawn + drawn * (1 - share) ** (clients - 1)


def grid_capacity(size: int) -> int:
    """Capacity where the sizes of other clients are unknown: four leading bits, rounded up.

    Examples
    --------
    >>> [grid_capacity(n) for n in (0, 7, 8, 100, 1001)]
    [0, 7, 8, 104, 1024]
    """
    step = 1 << max(0, size.bit_length() - 4)
    return -(-size // step) * step


def stack_examples(parts: Sequence[Examples], capacity: int) -> Examples:
    """`(c, capacity, ...)`; a view where the parts already lie side by side in memory."""
    if all(len(p) == capacity for p in parts):
        return Examples(*map(_side_by_side, zip(*map(trees.leaves, parts), strict=True)))
    # each as `Examples.padded`, in one copy
    stacked = Examples(*(_tall(t, len(parts), capacity) for t in trees.leaves(parts[0])))
    for i, part in enumerate(parts):
        n = len(part)
        for whole, own in zip(trees.leaves(stacked), trees.leaves(part), strict=True):
            whole[i, :n] = own
            whole[i, n:] = own[:1]
        stacked.mask[i, n:] = False
    return stacked


def _tall(like: Tensor, clients: int, capacity: int) -> Tensor:
    return like.new_empty((clients, capacity, *like.shape[1:]))


def _side_by_side(rows: Sequence[Tensor]) -> Tensor:
    first = rows[0]
    if len(rows) == 1:
        return first.unsqueeze(0)
    pitch = rows[1].storage_offset() - first.storage_offset()
    same = first.is_contiguous() and pitch > 0
    for i, row in enumerate(rows):
        same = same and (
            row.data_ptr() == first.data_ptr() + i * pitch * first.element_size()
            and row.shape == first.shape
            and row.stride() == first.stride()
            and row.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        )
    if same and pitch >= first.numel():
        return first.as_strided((len(rows), *first.shape), (pitch, *first.stride()))
    return torch.stack(list(rows))


def grow(tree: Tree, like: Tree) -> Tree:
    """Pad every tensor with zeros at its end to the shape of its counterpart in `like`."""

    def pad(t: Tensor, target: Tensor) -> Tensor:
        if t.shape == target.shape:
            return t
        out = torch.zeros(target.shape, dtype=t.dtype, device=t.device)
        out[tuple(slice(0, n) for n in t.shape)] = t
        return out

    return trees.map(pad, tree, like)


def finite_rows(tree: Tree, rows: int) -> NDArray[np.bool_]:
    """Which rows `(rows,)` of a stacked tree hold finite numbers only."""
    good = torch.ones(rows, dtype=torch.bool)
    for leaf in trees.leaves(tree):
        if leaf.is_floating_point() and leaf.numel():
            flat = leaf.reshape(rows, -1)
            # a sum is not finite if a term is not; a float32 sum may also overflow, so look again
            ok = torch.isfinite(flat.sum(-1))
            if not bool(ok.all()):
                ok = torch.isfinite(flat.sum(-1, dtype=torch.float64))
            good &= ok.cpu()
    return np.asarray(good.numpy(), dtype=np.bool_)
