"""Centralized: all data in one place. What pooling would give: an upper reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from evenfed.core import tree as trees
from evenfed.engines.federation import Federation
from evenfed.methods.base import EVALUATION, Reveal, Server
from evenfed.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Centralized(FedAvg):
    """Training on the union of all clients' examples; a round is `local.epochs` passes over it."""

    name: ClassVar[str] = "centralized"
    title: ClassVar[str] = "Centralized"
    paper: ClassVar[str] = "reference on pooled data"
    reveals: ClassVar[tuple[Reveal, ...]] = (
        Reveal("pool", "examples", "rows", "all training examples, once: nothing stays", False),
        EVALUATION,
    )
    exchanges: ClassVar[int] = 0

    def round(self, federation: Federation, server: Server) -> Server:
        """Train on the pool."""
        pool = federation.pool
        pool.begin(federation.round)
        mean = pool.mean(self.train, self.broadcast(federation, server), draws=self.draw)
        return {"params": trees.add(server["params"], mean.value["update"])}
