"""FedAvg on a loss in which every group counts the same.

The baseline "FedAvg trained on loss weighted by groups" of Hu, Wu, Smith (SaTML 2024), which the
paper names and does not define; this is the usual reading.

With `m_a` the examples of group a over all clients, `N` all examples and `A` the groups that have
any, example i of group a gets the factor `N / (|A| m_a)`. Averaged by size, clients then minimise
`sum_k (m_k / N) (1/m_k) sum_i N / (|A| m_a) l_i = (1/|A|) sum_a R_a`: the mean of the groups' mean
losses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from evenfed.core.examples import Examples
from evenfed.core.task import Params
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.methods.base import EVALUATION, Need, Reveal, Server
from evenfed.methods.fedavg import UPDATE, FedAvg
from evenfed.methods.group_loss import Cells, cell_factors, counted


@dataclass(frozen=True)
class GroupWeighted(FedAvg):
    """FedAvg with group-weighted losses; no options of its own."""

    name: ClassVar[str] = "group_weighted"
    title: ClassVar[str] = "FedAvg, group-weighted"
    paper: ClassVar[str] = "baseline of Hu et al., SaTML 2024"
    needs: ClassVar[tuple[Need, ...]] = ("groups",)
    reveals: ClassVar[tuple[Reveal, ...]] = (
        Reveal("count", "counts", "counts", "numbers of examples by group, once", True),
        UPDATE,
        EVALUATION,
    )

    @property
    def cells(self) -> Cells:
        """The groups."""
        return Cells(self.task.groups)

    def start(self, federation: Federation) -> Server:
        """The model; factors of the groups once they are counted."""
        return {"params": self.first, "factors": torch.zeros(self.task.groups)}

    def count(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: its examples by group."""
        return {"counts": self.cells.counts(data)}, state

    def broadcast(self, federation: Federation, server: Server) -> dict[str, Tree]:
        """What clients receive to train: the model, the rate and the groups' factors."""
        return {**super().broadcast(federation, server), "factors": server["factors"]}

    def trained(self, broadcast: Tree, data: Examples, draws: Tree) -> Params:
        """The client's model after training with weighted losses."""
        return self.local.run(
            self.task, broadcast["params"], data, draws, lr=broadcast["lr"],
            weights=cell_factors, context=self.cells.table(broadcast["factors"]),
        )  # fmt: skip

    def round(self, federation: Federation, server: Server) -> Server:
        """One exchange, after one more in which groups are counted."""
        if not float(server["factors"].sum()):
            counts = counted(federation, self.count)
            present = counts > 0
            even = counts.sum() / (present.sum() * counts.clamp(min=1))
            server = {**server, "factors": torch.where(present, even, 0.0).float()}
        return {**server, **super().round(federation, server)}
