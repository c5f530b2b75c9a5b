"""FedAvgM: FedAvg with momentum at the server.

Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification" (arXiv 1909.06335).

Symbols: `w_t` the model (`params`), `w_i` a client's model after local training, `a_i` its weight,
`v` the momentum. `v <- beta v + sum_i a_i (w_t - w_i)`, `w_{t+1} = w_t - eta v`; with `nesterov`,
`w_{t+1} = w_t - eta (beta v + sum_i a_i (w_t - w_i))`. The paper has `eta = 1`; `beta = 0` is
FedAvg. Public ports differ in both: one always takes Nesterov's step, another has `beta = 0.01`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.engines.federation import Federation
from evenfed.methods.base import Server
from evenfed.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """FedAvgM.

    Parameters
    ----------
    beta : float
        Share of the momentum that a round keeps; 0 is FedAvg.
    nesterov : bool
        Whether the step looks ahead along the new momentum.
    """

    name: ClassVar[str] = "fedavgm"
    title: ClassVar[str] = "FedAvgM"
    paper: ClassVar[str] = "Hsu et al., 2019 (arXiv 1909.06335)"
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"beta": (0.7, 0.9, 0.97, 0.99)}

    beta: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.beta < 1:
            raise ConfigError(f"{self.name}: beta must be in [0, 1), but is {self.beta}")

    def start(self, federation: Federation) -> Server:
        """The model and a momentum of zero."""
        return {"params": self.first, "momentum": trees.zeros_like(self.first)}

    def round(self, federation: Federation, server: Server) -> Server:
        """One exchange: train, average, step along the momentum."""
        update = self.mean_update(federation, server)  # -sum_i a_i (w_t - w_i)
        momentum = trees.add(update, server["momentum"], self.beta)  # -v
        step = trees.add(update, momentum, self.beta) if self.nesterov else momentum
        return {"params": trees.add(server["params"], step, self.server_lr), "momentum": momentum}
