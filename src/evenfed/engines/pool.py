"""All clients' data in one place: what a federation never does, as a reference."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenfed.core.examples import Examples
from evenfed.engines.exchange import Population


class Pool:
    """A population of one client with the examples of all, in the order of exchanges."""

    name = "pool"

    def __init__(self, population: Population) -> None:
        self.population = population
        order = population.order()
        self._order = np.arange(len(population)) if order is None else order
        self._splits: dict[str, Examples] = {}

    def __len__(self) -> int:
        return 1

    def client(self, index: int) -> Pool:
        """The pool itself."""
        return self

    def key(self, index: int) -> int:
        """Its key."""
        return 0

    def order(self) -> None:
        """One client has no order."""
        return

    def split(self, name: Any) -> Examples:
        """Everybody's examples of a split."""
        if name not in self._splits:
            parts = [self.population.client(int(i)).split(name) for i in self._order]
            self._splits[name] = Examples.concatenate(parts)
        return self._splits[name]

    def sizes(self, split: Any = "train") -> NDArray[np.int64]:
        """One size."""
        return np.array([len(self.split(split))], dtype=np.int64)
