"""Fine-tuning: FedAvg, after which every client trains the global model on its own data.

The simplest personalisation, studied for example by Wang, Mathews, Kiddon, Eichner, Beaufays,
Ramage, "Federated Evaluation of On-device Personalization" (arXiv 1910.10252), and used as a
baseline in Ditto's and other papers.

Symbols: `w_T` FedAvg's last model, `u_i` what client i predicts with: `w_T` after `tune_epochs`
passes over the client's training data with the options of local training, at the base rate
`local.lr` whatever the schedule: at a rate that ends near 0 tuning would leave the global model as
it is. Nothing is sent. With no epochs it is FedAvg. The baseline in Ditto's public code also holds
`u_i` near `w_T` by a proximal term; here that is left to Ditto itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.local import LocalTraining
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.methods.base import Server, check_not_negative
from evenfed.methods.personal import Personalized, kept


@dataclass(frozen=True)
class FineTuning(Personalized):
    """Local fine-tuning after FedAvg.

    Parameters
    ----------
    tune_epochs : int
        Passes over a client's data after the last round; 0 is FedAvg.
    tune_lr : float, optional
        Their rate; default: the base rate `local.lr`.
    """

    name: ClassVar[str] = "finetune"
    title: ClassVar[str] = "Fine-tuning"
    paper: ClassVar[str] = "FedAvg, then local training"
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"tune_epochs": (1, 3, 5, 10)}

    tune_epochs: int = 5
    tune_lr: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self.name, tune_epochs=self.tune_epochs)
        if self.tune_lr is not None and not self.tune_lr > 0:
            raise ConfigError(f"{self.name}: tune_lr must be greater than 0, but is {self.tune_lr}")

    @property
    def tuning(self) -> LocalTraining:
        """Local training as it is done after the last round."""
        return replace(self.local, epochs=self.tune_epochs, steps=0)

    def draw_tuning(self, generator: torch.Generator, state: Tree, size: int) -> Tree:
        """The batches of a client after the last round."""
        return self.tuning.draw(generator, state, size)

    def tune(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: trains the received model and keeps it; sends nothing."""
        lr = broadcast["lr"]
        if self.tune_lr is not None:
            lr = torch.full_like(lr, self.tune_lr)
        mine = self.tuning.run(self.task, broadcast["params"], data, draws, lr=lr)
        return {}, kept(mine, state)

    def deployed(self, server: Server) -> Tree:
        """The global model, and the rate of tuning."""
        return {"params": server["params"], "lr": self.local.rate(0, 1)}

    def finish(self, federation: Federation, server: Server) -> Server:
        """Every client makes the last global model its own."""
        if self.tune_epochs:
            federation.map(
                self.tune,
                self.deployed(server),
                draws=self.draw_tuning,
                clients=federation.everyone,
            )
        return server

    def adapted(self, deployed: Tree, data: Examples) -> Tree:
        """A new client tunes the global model on its own examples."""
        generator = torch.Generator().manual_seed(0)
        state = self.client_state(generator, len(data))
        if not self.tune_epochs:
            return state
        draws = self.draw_tuning(generator, state, len(data))
        with torch.no_grad():
            return self.tune(deployed, state, data, draws)[1]
