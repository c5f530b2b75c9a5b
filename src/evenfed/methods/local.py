"""Local: every client trains alone. What a client has without the federation: a lower reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from evenfed.core.examples import Examples
from evenfed.core.task import Params
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.methods.base import EVALUATION, Reveal, Server
from evenfed.methods.training import TrainsLocally


@dataclass(frozen=True)
class Local(TrainsLocally):
    """Local training alone; nothing is exchanged but evaluations."""

    name: ClassVar[str] = "local"
    title: ClassVar[str] = "Local"
    paper: ClassVar[str] = "reference without exchange"
    reveals: ClassVar[tuple[Reveal, ...]] = (EVALUATION,)
    exchanges: ClassVar[int] = 0
    personal: ClassVar[bool] = True

    def client_state(self, generator: torch.Generator, size: int) -> Tree:
        """The first weights, the same for all clients."""
        return {"params": self.first}

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: go on training the client's own model; sends nothing."""
        new = self.trained({**broadcast, **state}, data, draws)
        return {}, {"params": new}

    def round(self, federation: Federation, server: Server) -> Server:
        """Everybody in the cohort trains alone."""
        rate = self.local.rate(federation.round, federation.rounds)
        federation.map(self.train, {"lr": rate}, draws=self.draw, counted=False)
        return server

    def parameters(self, deployed: Tree, state: Tree) -> Params:
        """The client's own model."""
        return state["params"]  # type: ignore[no-any-return]
