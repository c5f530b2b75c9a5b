"""GIFAIR-FL: a penalty on the spread of the clients' losses.

Yue, Nouiehed, Al Kontar, "GIFAIR-FL: A Framework for Group and Individual Fairness in Federated
Learning" (INFORMS Journal on Data Science, 2023; arXiv 2108.02741), individual fairness.

Minimises `sum_i a_i F_i + lambda sum_{i<j} |F_i - F_j|`. Its gradient gives client i the weight
`a_i + lambda r_i` with `r_i = sum_j sign(F_i - F_j)`, which runs from `-(n-1)` for the smallest
loss to `n-1` for the largest; equal losses share. No weight is negative for
`lambda = c lambda_max`, `lambda_max = min_i a_i / (n-1)` and `c` below 1.

`apply = "weights"`: those weights on the changes of the models, with the losses of the received
model, all in one reply. `apply = "steps"`: the factor `1 + lambda r_i / a_i` on the gradient in
client i's local steps and FedAvg's mean, with the losses that the trained models had when the
clients last took part (no factor for a client without one). Both agree for one local step and
equal losses.

Not as in public code (FairFL; the authors' own was not readable): ranks there order equal losses
by chance. The form for groups of clients is not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.span import mixture
from evenfed.core.task import Params
from evenfed.core.tree import Tree
from evenfed.engines.exchange import PerClient
from evenfed.engines.federation import Federation
from evenfed.methods.base import EVALUATION, Reveal, Server, check_choice
from evenfed.methods.reporting import SINGLE, ReportsLoss, all_sizes, places, shares_of


@dataclass(frozen=True)
class GIFAIR(ReportsLoss):
    """GIFAIR-FL for single clients.

    Parameters
    ----------
    c : float
        Strength of the penalty, in [0, 1) as a share of the largest that keeps all weights
        positive; 0 is FedAvg.
    apply : {"weights", "steps"}
        Where the penalty acts: in the weights of the mean, or in the clients' steps.
    """

    name: ClassVar[str] = "gifair"
    title: ClassVar[str] = "GIFAIR-FL"
    paper: ClassVar[str] = "Yue et al., INFORMS J. Data Science 2023"
    reveals: ClassVar[tuple[Reveal, ...]] = (
        SINGLE,
        Reveal(
            "train", "loss", "scalar",
            "loss on the training data, of the received model (steps: of the trained one)", False,
        ),
        EVALUATION,
    )  # fmt: skip
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"c": (0.1, 0.5, 0.9)}

    c: float = 0.1
    apply: Literal["weights", "steps"] = "weights"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.name, "apply", self.apply, ("weights", "steps"))
        if not 0 <= self.c < 1:
            raise ConfigError(f"{self.name}: c must be in [0, 1), but is {self.c}")

    def penalty(self, losses: Tensor, shares: Tensor) -> Tensor:
        """`lambda r_i` `(n,)`."""
        if len(losses) < 2:
            return torch.zeros_like(shares)
        ranks = torch.sign(losses[:, None] - losses).sum(1)
        return self.c * float(shares.min()) / (len(losses) - 1) * ranks

    def start(self, federation: Federation) -> Server:
        """The model; for `steps` also the last loss of every client and whether it has one."""
        if self.apply == "weights":
            return {"params": self.first}
        zeros = torch.zeros(len(federation), dtype=torch.float64)
        return {"params": self.first, "losses": zeros, "known": zeros}

    def factored(self, gradient: Params, params: Params, batch: Examples, factor: Tree) -> Params:
        """`(1 + lambda r_i / a_i) g`."""
        return trees.scale(gradient, factor)  # type: ignore[no-any-return]

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: local training; sends the change of the model and a loss."""
        if self.apply == "weights":
            return super().train(broadcast, state, data, draws)
        new = self.local.run(
            self.task, broadcast["params"], data, draws,
            lr=broadcast["lr"], gradient=self.factored, context=broadcast["factor"],
        )  # fmt: skip
        update = trees.subtract(new, broadcast["params"])
        return {"update": update, "loss": self.task.mean_loss(new, data)}, state

    def round(self, federation: Federation, server: Server) -> Server:
        """One exchange: train, average with the penalty's weights or steps."""
        if self.apply == "steps":
            return self._round_of_steps(federation, server)
        replies = federation.map(self.train, self.broadcast(federation, server), draws=self.draw)
        losses = replies.uploads["loss"].double().cpu()
        shares = shares_of(self.weights(federation), replies.sizes)
        weights = shares + self.penalty(losses, shares)
        self.noted(federation, losses, weights)
        move = mixture(weights, replies.uploads["update"])
        return {"params": trees.add(server["params"], move, self.server_lr)}

    def _round_of_steps(self, federation: Federation, server: Server) -> Server:
        rows = places(federation, federation.cohort)
        sizes = torch.ones(len(rows), dtype=torch.float64)
        if self.weights(federation) == "size":
            sizes = all_sizes(self.name, federation)[rows]
        shares = sizes / sizes.sum()
        factor = torch.ones_like(shares)
        known = server["known"][rows] > 0
        penalty = self.penalty(server["losses"][rows][known], shares[known])
        factor[known] += penalty / shares[known]
        sent = {**self.broadcast(federation, server), "factor": PerClient(factor.float())}
        mean = federation.mean(
            self.train, sent, weights=self.weights(federation), draws=self.draw, keep=("loss",)
        )
        fresh = mean.kept["loss"].double().cpu()
        self.noted(federation, fresh, shares)
        seen = places(federation, mean.clients)
        losses, known = server["losses"].clone(), server["known"].clone()
        losses[seen], known[seen] = fresh, 1.0
        params = trees.add(server["params"], mean.value["update"], self.server_lr)
        return {"params": params, "losses": losses, "known": known}
