"""AAggFF: the weights of the clients as a sequence of decisions with small regret.

Hahn, Kim, Lee, "Pursuing Overall Welfare in Federated Learning through Sequential Decision Making"
(ICML 2024).

The server's decision `p` (on the simplex of all K clients) has the loss `-log(1 + <p, r>)`, `r_i`
the response of client i: its loss at the received model, divided by the cohort's mean and sent
through a distribution function, times `1/K` (silo) or `C` (device, `C` the share of clients in a
round). Both forms follow the regularised leader, `p_{t+1} = argmin sum_s <g_s, p> + R(p)`, from
uniform weights, and weigh the changes of the models in the same round by `p_{t+1}`, normalised
over those that answered.

- `silo`, all clients in every round: online Newton step, with `g = -r / (1 + <p, r>)` and
  `R(p) = alpha/2 |p|^2 + beta/2 sum_s <g_s, p - p_s>^2`, where `alpha = 4 K L`, `beta = 1 / (4 L)`
  and `L = 1/K`.
- `device`: `R` is the entropy, so `p_{t+1}` is proportional to
  `exp(-sqrt(log K) / ((2 + C) sqrt(t + 1)) sum_s g_s)`. Responses of absent clients are estimated
  doubly robustly, `r~_i = m + 1{i answered} (r_i - m) / C` with `m` the mean response, and the
  gradient is linearised at the mean, to be unbiased:
  `g = -r~ / (1 + m) + m <p, r~ - m> / (1 + m)^2`.

Beyond the paper: in the silo form a client that does not answer counts with the mean response.

Not as in the authors' code: there the Newton term lacks `p_s` (it is `beta/2 sum <g_s, p>^2`) and
`alpha` enters twice; the doubly robust estimate lacks `m` for those that answered; the normal
distribution function falls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.examples import Examples
from evenfed.core.quadratic import minimize_weights
from evenfed.core.span import mixture
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.methods.base import EVALUATION, Reveal, Server, check_choice, check_not_negative
from evenfed.methods.reporting import LOSS, SINGLE, places
from evenfed.methods.training import TrainsLocally

_MANY = 300
"""Clients above which the quadratic programme of the silo form takes its time."""

DISTRIBUTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "weibull": lambda x: 1 - (-x.square()).exp(),
    "exponential": lambda x: 1 - (-x).exp(),
    "frechet": lambda x: torch.where(x > 0, (-1 / x.clamp(min=1e-300)).exp(), 0.0),
    "normal": lambda x: 0.5 * torch.erfc((1 - x) / math.sqrt(2)),
    "gumbel": lambda x: (-(1 - x).exp()).exp(),
    "logistic": lambda x: torch.sigmoid(x - 1),
}
"""Distribution functions of a loss relative to the mean."""


@dataclass(frozen=True)
class AAggFF(TrainsLocally):
    """AAggFF.

    Parameters
    ----------
    setting : {"auto", "silo", "device"}
        The form; `auto` is `silo` where all clients take part in every round.
    cdf : {"weibull", "exponential", "frechet", "normal", "gumbel", "logistic"}
        Distribution function that makes responses of losses.
    server_lr : float
        Step along the mean update.
    """

    name: ClassVar[str] = "aaggff"
    title: ClassVar[str] = "AAggFF"
    paper: ClassVar[str] = "Hahn et al., ICML 2024"
    reveals: ClassVar[tuple[Reveal, ...]] = (SINGLE, LOSS, EVALUATION)
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"cdf": tuple(DISTRIBUTIONS)}

    setting: Literal["auto", "silo", "device"] = "auto"
    cdf: Literal["weibull", "exponential", "frechet", "normal", "gumbel", "logistic"] = "weibull"
    server_lr: float = 1.0

    def __post_init__(self) -> None:
        check_choice(self.name, "setting", self.setting, ("auto", "silo", "device"))
        check_choice(self.name, "cdf", self.cdf, tuple(DISTRIBUTIONS))
        check_not_negative(self.name, server_lr=self.server_lr)

    def silo(self, federation: Federation) -> bool:
        """Whether the form is that of silos."""
        if self.setting == "auto":
            return federation.participation.cohort_size(len(federation)) == len(federation)
        return self.setting == "silo"

    def advice(self, federation: Federation) -> list[str]:
        """Warn where the silo form is slow."""
        if not self.silo(federation) or len(federation) <= _MANY:
            return []
        return [
            f"aaggff: setting='silo' solves a programme of {len(federation)} weights in every "
            "round; setting='device' has a closed form"
        ]

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: loss of the received model, then local training."""
        params = broadcast["params"]
        loss = self.task.mean_loss(params, data)
        new = self.trained(broadcast, data, draws)
        return {"update": trees.subtract(new, params), "loss": loss}, state

    def start(self, federation: Federation) -> Server:
        """The model, uniform weights `(K,)`, and the sums over past decisions."""
        k = len(federation)
        zeros = torch.zeros(k, dtype=torch.float64)
        server: Server = {
            "params": self.first,
            "weights": torch.full_like(zeros, 1.0 / k),
            "gradients": zeros,
            "decisions": torch.zeros((), dtype=torch.int64),
        }
        if self.silo(federation):
            server |= {"outer": torch.outer(zeros, zeros), "shift": zeros}
        return server

    def responses(self, losses: Tensor) -> Tensor:
        """The distribution function of losses `(m,)` relative to their mean; in [0, 1]."""
        mean = losses.mean()
        relative = losses / mean if mean > 0 else torch.ones_like(losses)
        return DISTRIBUTIONS[self.cdf](relative)

    def newton(self, server: Server, response: Tensor, rows: Tensor) -> Server:
        """The next decision in the silo form, and its sums."""
        p: Tensor = server["weights"]
        k = len(p)
        r = torch.full_like(p, float(response.mean()) / k)
        r[rows] = response / k
        g = -r / (1 + p @ r)
        gradients = server["gradients"] + g
        outer = server["outer"] + torch.outer(g, g)
        shift = server["shift"] + (g @ p) * g
        alpha, beta = 4.0, k / 4.0  # 4 K L and 1 / (4 L) with L = 1/K
        new = minimize_weights(
            alpha * np.eye(k) + beta * outer.numpy(),
            (gradients - beta * shift).numpy(),
            start=np.full(k, 1.0 / k),
            lower=np.zeros(k),
            upper=np.ones(k),
        )
        weights = torch.from_numpy(new)
        return {"weights": weights, "gradients": gradients, "outer": outer, "shift": shift}

    def leader(self, server: Server, response: Tensor, rows: Tensor, share: float) -> Server:
        """The next decision in the device form, and its sum; `share` is `C`."""
        p: Tensor = server["weights"]
        k = len(p)
        r = share * response
        m = r.mean()
        robust = torch.full_like(p, float(m))
        robust[rows] += (r - m) * (k / len(rows))
        g = -robust / (1 + m) + m * (p @ (robust - m)) / (1 + m) ** 2
        gradients = server["gradients"] + g
        t = int(server["decisions"]) + 1
        rate = math.sqrt(math.log(k)) / ((2 + share) * math.sqrt(t + 1))
        return {"weights": (-rate * gradients).softmax(0), "gradients": gradients}

    def round(self, federation: Federation, server: Server) -> Server:
        """One exchange: losses and updates; decide, then average with the new weights."""
        replies = federation.map(self.train, self.broadcast(federation, server), draws=self.draw)
        losses = replies.uploads["loss"].double().cpu()
        rows, response = places(federation, replies.clients), self.responses(losses)
        if self.silo(federation):
            new = self.newton(server, response, rows)
        else:
            share = len(federation.cohort) / len(federation)
            new = self.leader(server, response, rows, share)
        weights = new["weights"][rows]
        weights = weights / weights.sum().clamp(min=1e-300)
        federation.note(
            train_loss=float(losses.mean()),
            worst_train_loss=float(losses.max()),
            largest_weight=float(weights.max()),
        )
        move = mixture(weights, replies.uploads["update"])
        return {
            "params": trees.add(server["params"], move, self.server_lr),
            "decisions": server["decisions"] + 1,
            **new,
        }
