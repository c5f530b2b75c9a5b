"""EquiFL: a fairness term in local training; only weight matrices are averaged.

Makhija, Han, Ghosh, Kim, "Achieving Fairness Across Local and Global Models in Federated Learning"
(arXiv 2406.17102, 2024).

Client k minimises `F_k(w) + mu R_k(w)`, `R_k` the fairness term on its batch. The server averages
the weight matrices of the hidden layers by size; biases and the predictor (the last layer) stay
with the client, which is to keep a client's bias from spreading to others. So every client ends
with its own model.

Sources: public summaries of the paper, which say as much and no more; in particular the formula of
the fairness term is not theirs. Here it is one of `evenfed.core.fairness_loss`, by default the
absolute covariance of group and predicted probability. A weight matrix is any parameter with two
axes or more, the predictor the last of them. Differences on purpose from the code that HetPFL's
authors ran: the loss is the batch's mean, not its sum; the term is no spread of scores; all hidden
layers are shared, not the first alone; each client counts by its size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.fairness_loss import FAIRNESS, Fairness, fairness_loss
from evenfed.core.task import Params
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.methods.base import (
    EVALUATION,
    Need,
    Reveal,
    Server,
    check_choice,
    check_not_negative,
)
from evenfed.methods.fedavg import UPDATE, FedAvg

SHARED = ("hidden", "weights", "all")


@dataclass(frozen=True)
class EquiFL(FedAvg):
    """EquiFL.

    Parameters
    ----------
    mu : float
        Weight of the fairness term.
    fairness : {"covariance", "demographic_parity", "equal_opportunity", "squared_covariance"}
        The term; see `evenfed.core.fairness_loss`.
    shared : {"hidden", "weights", "all"}
        What is averaged: weight matrices of all layers but the last (as published), of all layers,
        or everything, which leaves one model for all.
    """

    name: ClassVar[str] = "equifl"
    title: ClassVar[str] = "EquiFL"
    paper: ClassVar[str] = "Makhija et al., 2024 (arXiv 2406.17102)"
    reveals: ClassVar[tuple[Reveal, ...]] = (
        Reveal("train", "update", "part", "change of the shared weights, every round", True),
        EVALUATION,
    )
    personal: ClassVar[bool] = True
    needs: ClassVar[tuple[Need, ...]] = ("groups", "classes")
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"mu": (0.5, 1.0, 2.0, 5.0, 10.0)}

    mu: float = 2.0
    fairness: Fairness = "covariance"
    shared: Literal["hidden", "weights", "all"] = "hidden"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self.name, mu=self.mu)
        check_choice(self.name, "fairness", self.fairness, FAIRNESS)
        check_choice(self.name, "shared", self.shared, SHARED)
        if self.shared == "all":
            object.__setattr__(self, "reveals", (UPDATE, EVALUATION))

    @property
    def shared_names(self) -> list[str]:
        """Names of the parameters that are averaged."""
        if self.shared == "all":
            return list(self.first)
        matrices = [name for name, value in self.first.items() if value.ndim > 1]
        return matrices[:-1] if self.shared == "hidden" else matrices

    def start(self, federation: Federation) -> Server:
        """The shared part of the model."""
        names = self.shared_names
        if not names:
            raise ConfigError(
                f"{self.name}: with shared='{self.shared}' this model has nothing to average: "
                "it has no hidden layer; take shared='weights' or 'all', or a deeper model"
            )
        return {"params": {name: self.first[name] for name in names}}

    def client_state(self, generator: torch.Generator, size: int) -> Tree:
        """What stays with the client: biases and the predictor."""
        names = set(self.shared_names)
        return {"own": {k: v for k, v in self.first.items() if k not in names}}

    def parameters(self, deployed: Tree, state: Tree) -> Params:
        """The client's model: shared weights and its own ones."""
        return {k: deployed[k] if k in deployed else state["own"][k] for k in self.first}

    def unfairness(self, params: Params, batch: Examples, context: Tree) -> Tensor:
        """`mu R_k`."""
        outputs = self.task.outputs(params, batch.x).unsqueeze(0)
        term = fairness_loss(
            self.fairness, outputs, batch.y, batch.group, batch.weight, self.task.groups
        )
        return self.mu * term[0]

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: fair local training of the whole model; sends the shared part."""
        received = broadcast["params"]
        new = self.local.run(
            self.task, self.parameters(received, state), data, draws,
            lr=broadcast["lr"], term=self.unfairness if self.mu else None,
        )  # fmt: skip
        update = trees.subtract({name: new[name] for name in received}, received)
        return {"update": update}, {"own": {name: new[name] for name in state["own"]}}
