"""FedAdam: Adam at the server, with the mean change of the model as its gradient.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, "Adaptive Federated Optimization"
(ICLR 2021), Algorithm 2.

Symbols: `x_t` the model (`params`), `Delta_t` the weighted mean of the clients' changes `x_i -
x_t`, `m` and `v` its running first and second moments (coordinate by coordinate), `tau` how
adaptive the step is: `m <- beta1 m + (1 - beta1) Delta`, `v <- beta2 v + (1 - beta2) Delta^2`,
`x_{t+1} = x_t + eta m / (sqrt(v) + tau)`, from `m = 0` and `v = tau^2`. `eta` is `server_lr`.

As published, moments are not corrected for their start; the authors' code takes Keras' optimiser,
which corrects them. `Delta` is weighted by `weighting` (the algorithm: uniform; their experiments:
by size).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.engines.federation import Federation
from evenfed.methods.base import Server
from evenfed.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedAdam(FedAvg):
    """FedAdam.

    Parameters
    ----------
    server_lr : float
        `eta`: about the length of a round's step in each coordinate.
    beta1, beta2 : float
        What a round keeps of the first and of the second moment.
    tau : float
        Added to the root of the second moment; the larger, the nearer to FedAvgM.
    """

    name: ClassVar[str] = "fedadam"
    title: ClassVar[str] = "FedAdam"
    paper: ClassVar[str] = "Reddi et al., ICLR 2021"
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {
        "server_lr": (0.001, 0.01, 0.1, 1.0),
        "tau": (1e-5, 1e-4, 1e-3, 1e-2, 1e-1),
    }

    server_lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.beta1 < 1 or not 0 <= self.beta2 <= 1:
            raise ConfigError(f"{self.name}: beta1 must be in [0, 1), beta2 in [0, 1]")
        if not self.tau > 0:
            raise ConfigError(f"{self.name}: tau must be greater than 0, but is {self.tau}")

    def start(self, federation: Federation) -> Server:
        """The model, `m = 0` and `v = tau^2`."""
        second = trees.map(lambda p: torch.full_like(p, self.tau**2), self.first)
        return {"params": self.first, "m": trees.zeros_like(self.first), "v": second}

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """`v` after a round whose squared mean change is `square`."""
        return self.beta2 * v + (1 - self.beta2) * square

    def round(self, federation: Federation, server: Server) -> Server:
        """One exchange: train, average, step as Adam would."""
        delta = self.mean_update(federation, server)
        m = trees.add(trees.scale(delta, 1 - self.beta1), server["m"], self.beta1)
        v = trees.map(lambda v, d: self.second_moment(v, d * d), server["v"], delta)
        step = trees.map(lambda m, v: m / (v.sqrt() + self.tau), m, v)
        return {"params": trees.add(server["params"], step, self.server_lr), "m": m, "v": v}
