"""What methods share whose clients report the loss of the model that they received."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.local import LocalTraining
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.methods.base import Reveal
from evenfed.methods.fedavg import FedAvg

SINGLE = Reveal("train", "update", "model", "change of the model by the client's training", False)
"""The update where the server needs each client's own."""
LOSS = Reveal("train", "loss", "scalar", "loss of the received model on the training data", False)


@dataclass(frozen=True)
class ReportsLoss(FedAvg):
    """FedAvg whose clients send the loss of the received model along with their update."""

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: loss of the received model, then local training."""
        loss = self.task.mean_loss(broadcast["params"], data)
        upload, state = super().train(broadcast, state, data, draws)
        return {**upload, "loss": loss}, state

    def noted(self, federation: Federation, losses: Tensor, weights: Tensor) -> None:
        """Losses and weights of the round for the history."""
        federation.note(
            train_loss=float(losses.mean()),
            worst_train_loss=float(losses.max()),
            largest_weight=float(weights.max()),
        )


def shares_of(weighting: Literal["size", "uniform"], sizes: Tensor) -> Tensor:
    """Shares `a_i` `(m,)` of clients with these numbers of examples."""
    base = sizes if weighting == "size" else torch.ones_like(sizes)
    return base / base.sum()


def one_step(local: LocalTraining) -> LocalTraining:
    """The same training with one step on all data."""
    return replace(local, batch=0, steps=1)


def one_step_advice(owner: str, local: LocalTraining, instead: str) -> list[str]:
    """A warning where a method of one step a round is told to take several."""
    if local.epochs == 1 and local.steps <= 1:
        return []
    return [f"{owner}: takes one step a round with all data; {instead} uses local.epochs"]


def places(federation: Federation, clients: Any) -> Tensor:
    """Where a server's vector over all clients holds `clients` (indices).

    Entries are in the order of `federation.everyone`, which does not depend on the order in
    which the clients were given.
    """
    place = np.empty(len(federation), dtype=np.int64)
    place[federation.everyone] = np.arange(len(federation))
    return torch.from_numpy(place[clients])


def all_sizes(owner: str, federation: Federation) -> Tensor:
    """Examples of every client `(K,)`, in the order of `federation.everyone`."""
    sizes = federation.population.sizes()
    if sizes is None:
        raise ConfigError(f"{owner}: weighting='size' needs the sizes of all clients")
    return torch.from_numpy(sizes[federation.everyone]).double()
