"""Centralized: all data in one place. What pooling would give: an upper reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from evenfed.core import tree as trees
from evenfed.core.examples import Examples
from evenfed.core.tree import Tree
from evenfed.engines.exchange import bytes_of
from evenfed.engines.federation import Federation
from evenfed.methods.base import EVALUATION, Reveal, Server
from evenfed.methods.training import TrainsLocally


@dataclass(frozen=True)
class Centralized(TrainsLocally):
    """Training on the union of all clients' examples; a round is `local.epochs` passes over it."""

    name: ClassVar[str] = "centralized"
    title: ClassVar[str] = "Centralized"
    paper: ClassVar[str] = "reference on pooled data"
    reveals: ClassVar[tuple[Reveal, ...]] = (
        Reveal("pool", "examples", "rows", "all training examples, once: nothing stays", False),
        EVALUATION,
    )
    exchanges: ClassVar[int] = 0

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Train on the pooled examples."""
        return {"params": self.trained(broadcast, data, draws)}, state

    def round(self, federation: Federation, server: Server) -> Server:
        """Train on the pool; all rows are sent there, once."""
        pool = federation.pool
        pool.begin(federation.round)
        replies = pool.map(self.train, self.broadcast(federation, server), draws=self.draw)
        if federation.round == 0:
            federation.traffic.up += bytes_of(pool.population.client(0).split("train"))
        return {"params": trees.row(replies.uploads["params"], 0)}
