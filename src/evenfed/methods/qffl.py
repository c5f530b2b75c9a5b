"""q-FFL, solved by q-FedAvg: clients with larger losses count more.

Li, Sanjabi, Beirami, Smith, "Fair Resource Allocation in Federated Learning" (ICLR 2020).

Minimises `sum_i a_i F_i^(q+1) / (q+1)`. With `L = 1/eta`, `F_i` the loss of the received model on
all training data of client i (before it trains) and `d_i = w_t - w_i`: `Delta_i = F_i^q L d_i`,
`h_i = q F_i^(q-1) ||L d_i||^2 + L F_i^q`, `w_{t+1} = w_t - sum Delta_i / sum h_i`. The sums are
unweighted where clients are sampled by size (as published), else weighted by size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.examples import Examples
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.methods.base import EVALUATION, Reveal, Server, check_not_negative
from evenfed.methods.fedavg import FedAvg


@dataclass(frozen=True)
class QFFL(FedAvg):
    """q-FFL.

    Parameters
    ----------
    q : float
        Strength of fairness; 0 is FedAvg, large q comes near to the worst client alone.
    """

    name: ClassVar[str] = "qffl"
    title: ClassVar[str] = "q-FFL (q-FedAvg)"
    paper: ClassVar[str] = "Li et al., ICLR 2020"
    reveals: ClassVar[tuple[Reveal, ...]] = (
        Reveal("train", "update", "model", "change of the model by the client's training", False),
        Reveal("train", "loss", "scalar", "loss of the received model on the training data", False),
        EVALUATION,
    )
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {
        "q": (0.001, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0)
    }

    q: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self.name, q=self.q)

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: loss of the received model, then local training."""
        loss = self.task.mean_loss(broadcast["params"], data)
        upload, state = super().train(broadcast, state, data, draws)
        return {**upload, "loss": loss}, state

    def step(self, upload: Tree, inverse_rate: Tensor) -> Tree:
        """A client's `Delta_i` and `h_i`, computed by the server."""
        # 1e-10 as in the authors' code: a loss of zero must not give 0^(q-1)
        loss = upload["loss"].double() + 1e-10
        gradient = trees.scale(upload["update"], -inverse_rate.float())  # L d_i
        power = loss**self.q
        norm = trees.squared_norm(gradient).double()
        return {
            "delta": trees.scale(gradient, power.float()),
            "h": self.q * loss ** (self.q - 1) * norm + inverse_rate * power,
            "loss": upload["loss"],
        }

    def round(self, federation: Federation, server: Server) -> Server:
        """One exchange: train, weigh by losses, step."""
        broadcast = self.broadcast(federation, server)
        if not float(broadcast["lr"]):  # L = 1 / eta: a schedule that ends at 0 moves nothing
            return server
        mean = federation.mean(
            self.train,
            broadcast,
            weights=self.weights(federation),
            draws=self.draw,
            each=partial(self.step, inverse_rate=1.0 / broadcast["lr"]),
            keep=("loss",),
        )
        losses = mean.kept["loss"]
        federation.note(train_loss=float(losses.mean()), worst_train_loss=float(losses.max()))
        step = trees.scale(mean.value["delta"], float(self.server_lr / mean.value["h"]))
        return {"params": trees.subtract(server["params"], step)}
