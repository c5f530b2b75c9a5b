"""What personalised methods share: a model that stays at the client, and which one it uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import grad

from evenfed.core import tree as trees
from evenfed.core.composed import Whole
from evenfed.core.examples import Examples
from evenfed.core.task import Params, Task
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.methods.base import Server
from evenfed.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Personalized(FedAvg):
    """A method whose clients keep a model of their own beside a global one.

    A client that has not trained yet uses the global model.
    """

    personal: ClassVar[bool] = True

    def client_state(self, generator: torch.Generator, size: int) -> Tree:
        """The client's own model, and whether it was trained."""
        return {"params": self.first, "trained": torch.zeros(())}

    def start(self, federation: Federation) -> Server:
        """The model, and the rate of the last round so far, for clients that come later."""
        return {"params": self.first, "lr": self.local.rate(0, federation.rounds)}

    def round(self, federation: Federation, server: Server) -> Server:
        """One exchange: train and average."""
        rate = self.local.rate(federation.round, federation.rounds)
        return {**super().round(federation, server), "lr": rate}

    def deployed(self, server: Server) -> Tree:
        """The global model, and the rate with which a client makes it its own."""
        return {"params": server["params"], "lr": server["lr"]}

    def own(self, deployed: Tree, state: Tree) -> Params:
        """The client's own model; the global one where it has none yet."""
        trained = state["trained"] > 0
        return trees.map(  # type: ignore[no-any-return]
            lambda mine, theirs: torch.where(trained, mine, theirs),
            state["params"],
            deployed["params"],
        )

    def parameters(self, deployed: Tree, state: Tree) -> Params:
        """The client's own model; the global one for who has no state."""
        return self.own(deployed, state) if trees.leaves(state) else deployed["params"]

    def adapted(self, deployed: Tree, data: Examples) -> Tree:
        """A new client makes the global model its own, as in one round of training."""
        generator = torch.Generator().manual_seed(0)
        state = {**self.client_state(generator, len(data)), "params": deployed["params"]}
        draws = self.draw(generator, state, len(data))
        with torch.no_grad():
            return self.train(deployed, state, data, draws)[1]


def kept(params: Params, state: Tree) -> dict[str, Tree | Tensor]:
    """The state of a client that has just trained its own model."""
    return {"params": params, "trained": torch.ones_like(state["trained"])}


@dataclass(frozen=True)
class PersonalStep(Whole):
    """A step of `{"theta": personal model, "w": what is shared}`: the batch loss is theta's."""

    task: Task

    def __call__(self, params: Tree, batch: Examples, context: Tree) -> tuple[Tree, Tree]:
        """The step along the gradient; no extras."""
        gradient = grad(self.task.mean_loss)(params["theta"], batch)
        return self.completed(gradient, params, batch, context), ()

    def regarded(self, params: Tree, context: Tree) -> tuple[Params, Tree]:
        """The personal model."""
        return params["theta"], context

    def batch_loss(self, part: Params, batch: Examples, context: Tree) -> Tensor:
        """Its mean loss."""
        return self.task.mean_loss(part, batch)
