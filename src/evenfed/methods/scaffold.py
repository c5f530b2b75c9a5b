"""SCAFFOLD: control variates against client drift.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning" (ICML 2020), option II.

Symbols: `c_i` the client's control variate (its state), `c` their mean (at the server). A local
step follows `g - c_i + c`; afterwards `c_i+ = c_i - c - (w_i - w_t) / (K eta)` with `K` steps of
rate `eta`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.task import Params
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.methods.base import EVALUATION, Reveal, Server
from evenfed.methods.fedavg import UPDATE, FedAvg


@dataclass(frozen=True)
class Scaffold(FedAvg):
    """SCAFFOLD.

    Parameters
    ----------
    weighting : {"uniform", "size", "auto"}
        The paper's objective is the plain mean over clients, hence `uniform`.
    """

    name: ClassVar[str] = "scaffold"
    title: ClassVar[str] = "SCAFFOLD"
    paper: ClassVar[str] = "Karimireddy et al., ICML 2020"
    reveals: ClassVar[tuple[Reveal, ...]] = (
        UPDATE,
        Reveal("train", "control", "model", "change of the control variate, every round", True),
        EVALUATION,
    )

    weighting: Literal["auto", "size", "uniform"] = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local.optimizer != "sgd" or self.local.momentum or self.local.clip:
            raise ConfigError(
                "scaffold: the control variates follow from plain SGD steps; use "
                "local.optimizer='sgd' without momentum and clip"
            )

    def start(self, federation: Federation) -> Server:
        """The model and a control variate of zero."""
        return {"params": self.first, "control": trees.zeros_like(self.first)}

    def client_state(self, generator: torch.Generator, size: int) -> Tree:
        """A control variate of zero."""
        return {"control": trees.zeros_like(self.first)}

    def corrected(self, gradient: Params, params: Params, batch: Examples, shift: Tree) -> Params:
        """`g - c_i + c`."""
        return trees.add(gradient, shift)  # type: ignore[no-any-return]

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: corrected local training; sends the changes of model and control."""
        shift = trees.subtract(broadcast["control"], state["control"])  # c - c_i
        new = self.local.run(
            self.task, broadcast["params"], data, draws,
            lr=broadcast["lr"], gradient=self.corrected, context=shift,
        )  # fmt: skip
        update = trees.subtract(new, broadcast["params"])
        scale = 1.0 / (self.local.step_count(draws) * broadcast["lr"])
        # option II: c_i+ - c_i = -c - (w_i - w_t) / (K eta), rounded to the model's precision
        control = trees.map(lambda c, d: (-c - d * scale).to(c.dtype), broadcast["control"], update)
        return {"update": update, "control": control}, {
            "control": trees.add(state["control"], control)
        }

    def round(self, federation: Federation, server: Server) -> Server:
        """One exchange: train, average both."""
        broadcast = {**self.broadcast(federation, server), "control": server["control"]}
        weights = self.weights(federation)
        mean = federation.mean(self.train, broadcast, weights=weights, draws=self.draw)
        return {
            "params": trees.add(server["params"], mean.value["update"], self.server_lr),
            "control": trees.add(
                server["control"], mean.value["control"], self._share(federation, mean.weight)
            ),
        }

    def _share(self, federation: Federation, weight: float) -> float:
        """Weight of those that answered among all clients: c moves by `(1/N) sum of changes`."""
        if self.weights(federation) == "uniform":
            return weight / len(federation)
        sizes = federation.population.sizes()
        if sizes is None:
            raise ConfigError("scaffold: weighting='size' needs the sizes of all clients")
        return weight / float(sizes.sum())
