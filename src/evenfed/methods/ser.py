"""SER: FedAvg or FedProx, with local training regularised against changes of gradients' signs.

Khan, "Sign-Entropy Regularization for Personalized Federated Learning", Entropy 27(6):601 (2025).
A reconstruction from the abstract: the paper's equations and results were not within reach.

Symbols: `w_t` the global model, `w_i` client i's model after its regularised local round, `rho`
the strength (`local.ser.rho`), `u` the correction. The server's side is FedAvg's. A local step
follows `g + u + mu (w - w_t)`: with `mu > 0` this is SER on FedProx, whose pull the regulariser
does not see. The model that a client uses is `w_i` from the latest global model, by the same code
as in training: no second model is trained, nothing more is sent. That last round has the base rate
`local.lr`, whatever the schedule: at a rate that ends near 0 it would leave the global model as it
is. The regulariser itself is an option of local training (`local.regularizer`) that any method can
use.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.func import grad

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.local import LocalTraining
from evenfed.core.regularizer import first_batch
from evenfed.core.sign_entropy import same_batch_entropy
from evenfed.core.task import Params
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.methods.base import Server, check_choice
from evenfed.methods.fedprox import FedProx

_LEAST = 0.25
"""Smallest factor of `rho` for a client."""


@dataclass(frozen=True)
class SER(FedProx):
    """SER, as reconstructed.

    Parameters
    ----------
    local : LocalTraining
        As FedAvg's; its regulariser is always on.
    mu : float
        Strength of FedProx's proximal term; 0 is SER on FedAvg.
    adaptive : bool
        Whether a client's strength is `rho` times the sign entropy, between 0.25 and 1, that it
        measured at the end of its last round.
    deploy : {"local", "global"}
        The model that clients use: each its own after a local round, or the global one.
    """

    name: ClassVar[str] = "ser"
    title: ClassVar[str] = "SER (reconstruction)"
    paper: ClassVar[str] = "after Khan, Entropy 2025"
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {
        "local.ser.rho": (0.0, 0.01, 0.05, 0.1, 0.3, 0.5),
        "local.ser.kappa": (0.5, 1.0, 2.0),
    }

    local: LocalTraining = field(default_factory=lambda: LocalTraining(regularizer="ser"))
    mu: float = 0.0
    adaptive: bool = False
    deploy: Literal["local", "global"] = "local"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.name, "deploy", self.deploy, ("local", "global"))
        if self.local.regularizer != "ser":
            object.__setattr__(self, "local", replace(self.local, regularizer="ser"))

    def client_state(self, generator: torch.Generator, size: int) -> Tree:
        """A model of its own once it has trained, and its sign entropy where `rho` adapts."""
        state: dict[str, Tree] = {}
        if self.deploy == "local":
            state |= {"params": self.first, "trained": torch.zeros(())}
        if self.adaptive:
            state["entropy"] = torch.ones(())
        return state or ()

    def local_round(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[Params, Tree]:
        """The client's model after a regularised round from the received one, and its new state."""
        strength = state["entropy"].clamp(min=_LEAST) if self.adaptive else None
        lr = broadcast["lr"]
        new = self.local.run(
            self.task, broadcast["params"], data, draws,
            lr=lr, strength=strength, **self.added(broadcast),
        )  # fmt: skip
        kept: dict[str, Tree] = {}
        if self.deploy == "local":
            kept |= {"params": new, "trained": torch.ones_like(state["trained"])}
        if self.adaptive:
            at = partial(grad(self.task.mean_loss), data=first_batch(data, draws))
            kept["entropy"] = same_batch_entropy(at, new, lr, self.local.ser.kappa)
        return new, kept or ()

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: a regularised local round; sends the change of the model."""
        new, state = self.local_round(broadcast, state, data, draws)
        return {"update": trees.subtract(new, broadcast["params"])}, state

    def personalize(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: the same local round; the result stays at the client."""
        return {}, self.local_round(broadcast, state, data, draws)[1]

    def finish(self, federation: Federation, server: Server) -> Server:
        """Every client takes its local round from the last global model."""
        if self.deploy == "local":
            federation.map(
                self.personalize,
                self.deployed(server),
                draws=self.draw,
                clients=federation.everyone,
            )
        return server

    def deployed(self, server: Server) -> Tree:
        """The global model, and the rate of the local round: the base rate."""
        return {"params": server["params"], "lr": self.local.rate(0, 1)}

    def parameters(self, deployed: Tree, state: Tree) -> Params:
        """The client's own model, or the global one where it has none."""
        if self.deploy == "global" or not trees.leaves(state):
            return deployed["params"]  # type: ignore[no-any-return]
        self._check_kept(state)
        own = state["trained"] > 0
        return trees.map(  # type: ignore[no-any-return]
            lambda mine, theirs: torch.where(own, mine, theirs), state["params"], deployed["params"]
        )

    def outputs(self, deployed: Tree, state: Tree, x: Tensor) -> Tensor:
        """Outputs of the model that the client uses."""
        self._check_kept(state)
        return super().outputs(deployed, state, x)

    def _check_kept(self, state: Tree) -> None:
        if self.deploy == "local" and "params" not in state:
            raise ConfigError(
                "ser: clients kept no models of their own in a run of deploy='global'"
            )

    def adapted(self, deployed: Tree, data: Examples) -> Tree:
        """A new client takes a local round from the global model."""
        generator = torch.Generator().manual_seed(0)
        state = self.client_state(generator, len(data))
        draws = self.draw(generator, state, len(data))
        with torch.no_grad():
            return self.local_round(deployed, state, data, draws)[1]
