"""FedMinMax: the model whose worst group over all clients is best.

Papadaki, Martinez, Bertran, Sapiro, Rodrigues, "Minimax Demographic Group Fairness in Federated
Learning" (FAccT 2022).

`min_w max_{mu in simplex} sum_a mu_a R_a(w)`, with `R_a` the mean loss of group a over all clients
and `rho_a = m_a / N` its share of the examples. A round, from `(w, mu)`: client k descends
`(1/m_k) sum_i (mu_a / rho_a) l_i` (a the group of example i) and sends its loss sums by group at
the received `w`; the server averages models by size, and
`mu <- P(mu + eta_mu R(w))`, `P` the Euclidean projection to the simplex; `mu` starts as `rho`. The
model handed out is the mean of `w_1 ... w_T`.

The paper takes one full-batch step a round (`local.batch = 0`, `local.epochs = 1`); more are as in
public ports of it. Not as in some of those: no floor under `mu`, and a projection that starts from
the last `mu`. A group that nobody of a cohort has is given the mean loss of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.examples import Examples
from evenfed.core.simplex import project_to_simplex
from evenfed.core.task import Params
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.methods.base import EVALUATION, Need, Reveal, Server, check_choice, check_not_negative
from evenfed.methods.fedavg import FedAvg
from evenfed.methods.group_loss import Cells, cell_factors, counted, risks

COUNTED = Reveal("count", "counts", "counts", "numbers of examples by group, once", True)


@dataclass(frozen=True)
class FedMinMax(FedAvg):
    """FedMinMax.

    Parameters
    ----------
    eta_mu : float
        Rate of the groups' weights; 0 is FedAvg.
    iterate : {"average", "last"}
        The model handed out: the mean of the iterates (the paper's) or the last one.
    """

    name: ClassVar[str] = "fedminmax"
    title: ClassVar[str] = "FedMinMax"
    paper: ClassVar[str] = "Papadaki et al., FAccT 2022"
    needs: ClassVar[tuple[Need, ...]] = ("groups",)
    reveals: ClassVar[tuple[Reveal, ...]] = (
        COUNTED,
        Reveal("train", "update", "model", "change of the model by the client's training", True),
        Reveal("train", "sums", "sums", "sums of losses by group at the received model", True),
        Reveal("train", "counts", "counts", "numbers of examples by group, every round", True),
        EVALUATION,
    )
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"eta_mu": (0.001, 0.01, 0.1, 0.2)}

    eta_mu: float = 0.1
    iterate: Literal["average", "last"] = "average"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self.name, eta_mu=self.eta_mu)
        check_choice(self.name, "iterate", self.iterate, ("average", "last"))

    @property
    def cells(self) -> Cells:
        """The groups."""
        return Cells(self.task.groups)

    def start(self, federation: Federation) -> Server:
        """The model; weights of the groups once they are counted."""
        none = torch.zeros(self.task.groups, dtype=torch.float64)
        return {
            "params": self.first, "average": self.first, "rounds": none.sum(), "rho": none,
            "mu": none,
        }  # fmt: skip

    def count(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: its examples by group."""
        return {"counts": self.cells.counts(data)}, state

    def trained(self, broadcast: Tree, data: Examples, draws: Tree) -> Params:
        """The client's model after training with the groups' importance weights."""
        return self.local.run(
            self.task, broadcast["params"], data, draws, lr=broadcast["lr"],
            weights=cell_factors, context=self.cells.table(broadcast["importance"]),
        )  # fmt: skip

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: loss sums by group of the received model, then training from it."""
        found = self.cells.losses(self.task, broadcast["params"], data)
        upload, state = super().train(broadcast, state, data, draws)
        return {**upload, **found}, state

    def round(self, federation: Federation, server: Server) -> Server:
        """One exchange: train, average, move the weights towards the worst group."""
        if not float(server["rho"].sum()):
            counts = counted(federation, self.count)
            rho = counts / counts.sum()
            server = {**server, "rho": rho, "mu": rho}
        rho, mu = server["rho"], server["mu"]
        present = rho > 0
        importance = torch.where(present, mu / rho.clamp(min=1e-300), 0.0)
        found = federation.mean(
            self.train,
            {**self.broadcast(federation, server), "importance": importance.float()},
            weights={
                "update": self.weights(federation),
                "sums": federation.evenly,
                "counts": federation.evenly,
            },
            draws=self.draw,
        ).value
        losses: Tensor = risks(found, present)
        federation.note(
            train_loss=float(found["sums"].sum() / found["counts"].sum()),
            worst_group_loss=float(losses[present].max()),
            largest_group_weight=float(mu.max()),
        )
        new = torch.zeros_like(mu)
        new[present] = project_to_simplex(mu[present] + self.eta_mu * losses[present])
        params = trees.add(server["params"], found["update"], self.server_lr)
        rounds = server["rounds"] + 1
        step = trees.subtract(params, server["average"])
        average = trees.add(server["average"], step, 1.0 / float(rounds))
        return {"params": params, "average": average, "rounds": rounds, "rho": rho, "mu": new}

    def deployed(self, server: Server) -> Tree:
        """The mean of the iterates, or the last one."""
        return server["average" if self.iterate == "average" else "params"]
