"""FedAvg: average of local models.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep Networks
from Decentralized Data" (AISTATS 2017).

Symbols: `w_t` the model (`params`), `w_i` a client's model after local training, `a_i = n_i / n`
the share of its examples. `w_{t+1} = w_t + eta * sum_i a_i (w_i - w_t)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from evenfed.core import tree as trees
from evenfed.core.examples import Examples
from evenfed.core.task import Params
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.methods.base import EVALUATION, Reveal, Server, check_not_negative
from evenfed.methods.training import TrainsLocally

UPDATE = Reveal(
    "train", "update", "model", "change of the model by the client's training, every round", True
)


@dataclass(frozen=True)
class FedAvg(TrainsLocally):
    """FedAvg.

    Parameters
    ----------
    local : LocalTraining
        Optimiser, rate, batch and epochs of local training.
    server_lr : float
        Step along the mean update; 1 is the paper's.
    weighting : {"auto", "size", "uniform"}
        Weights of the clients. `auto` is by size where clients are sampled uniformly and uniform
        where they are sampled by size: both give the mean over examples without bias.
    """

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "FedAvg"
    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"
    reveals: ClassVar[tuple[Reveal, ...]] = (UPDATE, EVALUATION)

    server_lr: float = 1.0
    weighting: Literal["auto", "size", "uniform"] = "auto"

    def __post_init__(self) -> None:
        check_not_negative(self.name, server_lr=self.server_lr)

    def weights(self, federation: Federation) -> Literal["size", "uniform"]:
        """The weights of a mean over the cohort."""
        return federation.weighting if self.weighting == "auto" else self.weighting

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: local training; sends the change of the model."""
        new = self.trained(broadcast, data, draws)
        return {"update": trees.subtract(new, broadcast["params"])}, state

    def mean_update(self, federation: Federation, server: Server) -> Params:
        """`sum_i a_i (w_i - w_t)`: one exchange."""
        mean = federation.mean(
            self.train,
            self.broadcast(federation, server),
            weights=self.weights(federation),
            draws=self.draw,
        )
        return mean.value["update"]  # type: ignore[no-any-return]

    def round(self, federation: Federation, server: Server) -> Server:
        """One exchange: train and average."""
        update = self.mean_update(federation, server)
        return {"params": trees.add(server["params"], update, self.server_lr)}
