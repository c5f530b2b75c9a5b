"""FedMGDA+: the common descent direction of the clients.

Hu, Shaloudegi, Zhang, Yu, "Federated Learning Meets Multi-Objective Optimization" (IEEE
Transactions on Network Science and Engineering, 2022; arXiv 2006.11489).

With `d_i = w_t - w_i` the change by local training and `u_i = d_i / ||d_i||`:
`lambda* = argmin ||sum_i lambda_i u_i||^2` subject to `lambda` on the simplex and
`|lambda_i - lambda0_i| <= eps`, then `w_{t+1} = w_t - eta_t sum_i lambda*_i u_i`. For `eps = 1` the
direction hurts nobody to first order (MGDA); for `eps = 0` it is the mean of the normalised
updates. `lambda0` is uniform, or by size.

The step does not shrink with the updates, hence `eta_t = server_lr * server_decay^t`. A client
whose model does not move has `u_i = 0`.

Not as in public code (the authors' own was not found): FairFL divides by a norm of zero; the code
of AAggFF gives everybody the same weight without a word where its solver fails. Here the
programme is always feasible, as `lambda0` is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.core.quadratic import minimize_weights
from evenfed.core.span import gram, mixture
from evenfed.engines.federation import Federation
from evenfed.methods.base import EVALUATION, Reveal, Server
from evenfed.methods.fedavg import FedAvg
from evenfed.methods.reporting import SINGLE, shares_of


@dataclass(frozen=True)
class FedMGDA(FedAvg):
    """FedMGDA+.

    Parameters
    ----------
    eps : float
        How far a client's weight may go from its share; 0 is FedAvg on normalised updates, 1 no
        bound.
    server_lr : float
        Length of the step along the mixture of unit vectors, in the first round.
    server_decay : float
        Factor of that length from round to round.
    weighting : {"uniform", "size", "auto"}
        The shares `lambda0`.
    """

    name: ClassVar[str] = "fedmgda"
    title: ClassVar[str] = "FedMGDA+"
    paper: ClassVar[str] = "Hu et al., IEEE TNSE 2022"
    reveals: ClassVar[tuple[Reveal, ...]] = (SINGLE, EVALUATION)
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {
        "eps": (0.0, 0.03, 0.08, 0.1, 0.5, 1.0),
        "server_decay": (0.95, 0.99, 1.0),
    }

    eps: float = 0.1
    server_decay: float = 1.0
    weighting: Literal["auto", "size", "uniform"] = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.eps <= 1:
            raise ConfigError(f"{self.name}: eps must be in [0, 1], but is {self.eps}")
        if not 0 < self.server_decay <= 1:
            raise ConfigError(
                f"{self.name}: server_decay must be in (0, 1], but is {self.server_decay}"
            )

    def common(self, products: Tensor, shares: Tensor) -> Tensor:
        """`lambda*` `(n,)` from the inner products of the `u_i` `(n, n)` and `lambda0`."""
        start = shares.numpy()
        found = minimize_weights(
            products.numpy(),
            np.zeros(len(start)),
            start=start,
            lower=np.maximum(start - self.eps, 0.0),
            upper=np.minimum(start + self.eps, 1.0),
        )
        return torch.from_numpy(found)

    def round(self, federation: Federation, server: Server) -> Server:
        """One exchange: train, normalise, step along the common direction."""
        replies = federation.map(self.train, self.broadcast(federation, server), draws=self.draw)
        updates = replies.uploads["update"]
        products = gram(updates)
        norms = products.diagonal().sqrt()
        inverse = torch.where(norms > 0, 1.0 / norms.clamp(min=1e-300), 0.0)
        units = products * inverse * inverse[:, None]
        weights = self.common(units, shares_of(self.weights(federation), replies.sizes))
        federation.note(
            largest_weight=float(weights.max()),
            direction_norm=float((weights @ units @ weights).clamp(min=0).sqrt()),
        )
        step = self.server_lr * self.server_decay**federation.round
        direction = mixture(weights * inverse, updates)
        return {"params": trees.add(server["params"], direction, step)}
