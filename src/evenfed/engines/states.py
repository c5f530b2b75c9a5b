"""What stays at the clients between exchanges, kept for them by the simulator."""

from __future__ import annotations

from collections.abc import Callable

import torch

from evenfed.core import tree as trees
from evenfed.core.randomness import generator
from evenfed.core.tree import Tree

StateFunction = Callable[[torch.Generator, int], Tree]
"""`(generator, size) -> state`: a client's state before its first exchange."""


class StateStore:
    """States by client index. A round's changes count only once they are committed."""

    def __init__(self, start: StateFunction, seed: int) -> None:
        self.start = start
        self.seed = seed
        self.kept: dict[int, Tree] = {}
        self.pending: dict[int, Tree] = {}
        first = start(generator(seed, "state"), 1)
        self.stateless = first if not trees.leaves(first) else None
        """The empty state of a method whose clients keep nothing."""

    def get(self, index: int, key: int, size: int) -> Tree:
        """The client's state, or its first one."""
        if self.stateless is not None:
            return self.stateless
        for store in (self.pending, self.kept):
            if index in store:
                return store[index]
        return self.start(generator(self.seed, "state", 0, key), size)

    def put(self, index: int, state: Tree) -> None:
        """Remember a state for the rest of the round; rows of a chunk are copied out of it."""
        if self.stateless is None:
            self.pending[index] = trees.map(torch.clone, state)

    def commit(self) -> None:
        """Make the round's changes permanent."""
        self.kept.update(self.pending)
        self.pending.clear()

    def saved(self) -> None:
        """A checkpoint holds what is committed: nothing to do where the states are here."""

    def rollback(self) -> None:
        """Forget the round's changes."""
        self.pending.clear()
