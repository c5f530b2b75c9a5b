"""Trees of several clients, stacked on the first axis, as vectors: inner products and mixtures."""

from __future__ import annotations

import torch
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.tree import Tree


def gram(stacked: Tree, other: Tree | None = None) -> Tensor:
    """Inner products `(n, m)` of the rows of two stacked trees (or of one with itself), float64.

    Examples
    --------
    >>> gram({"w": torch.eye(2), "b": torch.ones(2)}).tolist()
    [[2.0, 1.0], [1.0, 2.0]]
    """
    total: Tensor | None = None
    others = trees.leaves(stacked if other is None else other)
    for a, b in zip(trees.leaves(stacked), others, strict=True):
        left, right = a.reshape(len(a), -1), b.reshape(len(b), -1)
        # one leaf at a time in float64: a whole stack would take twice its memory at once
        products = (left.double() @ right.double().T).cpu()
        total = products if total is None else total + products
    assert total is not None
    return total


def mixture(weights: Tensor, stacked: Tree) -> Tree:
    """`sum_i weights_i row_i` of a stacked tree, summed in float64.

    Examples
    --------
    >>> mixture(torch.tensor([1.0, 2.0]), {"w": torch.eye(2)})
    {'w': tensor([1., 2.])}
    """

    def mixed(leaf: Tensor) -> Tensor:
        p = weights.to(device=leaf.device, dtype=torch.float64)
        result: Tensor = torch.tensordot(p, leaf.double(), dims=1).to(leaf.dtype)
        return result

    return trees.map(mixed, stacked)
