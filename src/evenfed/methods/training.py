"""What methods with local training share: the rate that is sent, the batches, the client's work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

import torch

from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.local import GradientHook, LocalTraining, Term, Weights
from evenfed.core.task import Params
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.methods.base import Method, Server


class Added(TypedDict, total=False):
    """What a method adds to local training, see `LocalTraining.run`."""

    term: Term
    weights: Weights
    gradient: GradientHook
    context: Tree


@dataclass(frozen=True)
class TrainsLocally(Method):
    """A method whose clients train from a model they receive or keep.

    Parameters
    ----------
    local : LocalTraining
        Optimiser, rate, batch and epochs of local training.
    """

    local: LocalTraining = field(default_factory=LocalTraining)

    def broadcast(self, federation: Federation, server: Server) -> dict[str, Tree]:
        """What clients receive to train: the model and the round's rate."""
        rate = self.local.rate(federation.round, federation.rounds)
        return {"params": server["params"], "lr": rate}

    def draw(self, generator: torch.Generator, state: Tree, size: int) -> Tree:
        """The batches of a client."""
        return self.local.draw(generator, state, size)

    def added(self, broadcast: Tree) -> Added:
        """What goes into every local step beside the loss; default: nothing."""
        return {}

    def trained(self, broadcast: Tree, data: Examples, draws: Tree) -> Params:
        """The client's model after local training, from the received one."""
        return self.local.run(
            self.task, broadcast["params"], data, draws,
            lr=broadcast["lr"], **self.added(broadcast),
        )  # fmt: skip


def check_plain_steps(owner: str, local: LocalTraining) -> None:
    """Refuse local training that a method with its own steps cannot use."""
    if local.optimizer != "sgd" or local.momentum or local.clip:
        raise ConfigError(
            f"{owner}: its steps are plain SGD; use local.optimizer='sgd' without "
            "local.momentum and local.clip"
        )
