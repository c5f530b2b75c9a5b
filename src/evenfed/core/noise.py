"""Noise that is a function of a number: the same on every engine, in any order, without a state.

A client function may not draw. Where it needs as many random numbers as the model has parameters,
one drawn number (`salt`) stands for all of them: each coordinate hashes its position with the salt.
The hash is `lowbias32` of Wellons, "Prospecting for Hash Functions" (2018); normal values follow
from uniform ones by Box and Muller (1958).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.tree import Tree

_MASK = 0xFFFFFFFF
_NORMAL, _OTHER = 0x1B873593, 0x68E31DA4
"""Told apart from the salt itself: the two uniform numbers behind a normal one."""


def draw_salts(generator: torch.Generator, *shape: int) -> Tensor:
    """Salts of a given shape, int64."""
    return torch.randint(_MASK, shape, generator=generator)


def rademacher_like(tree: Tree, salt: Tensor) -> Tree:
    """Signs +1 and -1, independent and equally likely, in the shape of a tree.

    Examples
    --------
    >>> rademacher_like(torch.zeros(2, 3), torch.tensor(7)).abs().sum().item()
    6.0
    """
    return _like(tree, lambda index: 1 - 2 * (_hashed(index, salt) & 1))


def normal_like(tree: Tree, salt: Tensor) -> Tree:
    """Standard normal values, independent, in the shape of a tree."""

    def values(index: Tensor) -> Tensor:
        radius = (-2 * _uniform(index, salt ^ _NORMAL).log()).sqrt()
        return radius * (2 * math.pi * _uniform(index, salt ^ _OTHER)).cos()

    return _like(tree, values)


def _like(tree: Tree, values: Callable[[Tensor], Tensor]) -> Tree:
    """Values of the positions of a tree, counted through all its tensors."""
    leaves, structure = trees.flatten(tree)
    made, begin = [], 0
    for leaf in leaves:
        index = torch.arange(begin, begin + leaf.numel(), device=leaf.device)
        made.append(values(index).to(leaf.dtype).view(leaf.shape))
        begin += leaf.numel()
    return trees.unflatten(made, structure)


def _uniform(index: Tensor, salt: Tensor) -> Tensor:
    """Uniform in (0, 1]."""
    return (_hashed(index, salt).to(torch.float32) + 0.5) / 2**32


def _hashed(index: Tensor, salt: Tensor) -> Tensor:
    """32 random bits in an int64, of a position and a salt."""
    return _mixed(_mixed(index & _MASK) ^ _mixed(salt & _MASK))


def _mixed(h: Tensor) -> Tensor:
    # products wrap around in int64; the lower 32 bits are right all the same
    h = ((h ^ (h >> 16)) * 0x7FEB352D) & _MASK
    h = ((h ^ (h >> 15)) * 0x846CA68B) & _MASK
    return h ^ (h >> 16)
