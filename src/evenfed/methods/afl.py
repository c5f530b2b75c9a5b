"""AFL: the worst mixture of the clients, found together with the model.

Mohri, Sivek, Suresh, "Agnostic Federated Learning" (ICML 2019), algorithm Stochastic-AFL.

Minimises `max_lambda sum_i lambda_i F_i(w)` over mixtures `lambda` on the simplex of the clients.
A round takes both steps from the same point `(w, lambda)`: with `g_i` the gradient and `F_i` the
loss of client i at `w`,
`w+ = w - eta sum_i lambda_i g_i`, `lambda+ = P(lambda + eta_lambda F)`,
`P` the Euclidean projection to the simplex. The model handed out is the mean of the iterates
`w_1 ... w_T`, for which the paper's guarantee holds.

`multi_step` replaces `-eta g_i` by the change of the model in local training (weights on models).

Beyond the paper, for a round in which only `m` of `K` clients answer: `lambda` is normalised over
those in the step of `w` (a mixture without any of them does not move `w`), and the step of
`lambda` is `K/m F_i` for them and 0 for the rest, which is its unbiased estimate where clients are
sampled uniformly.

Not as in public code (fair_flearn, which later papers ran; the authors' own was not found): its
projection tests the r-th largest entry against a sum that leaves that entry out, and so is no
projection; where it samples by size it drops `lambda` from the step of `w`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.simplex import project_to_simplex
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.methods.base import EVALUATION, Reveal, Server, check_choice, check_not_negative
from evenfed.methods.reporting import (
    LOSS,
    ReportsLoss,
    all_sizes,
    one_step,
    one_step_advice,
    places,
)

_NOTHING = 1e-100
"""Weight that stands for none in a mean, which needs a positive sum."""


@dataclass(frozen=True)
class AFL(ReportsLoss):
    """Agnostic federated learning.

    Parameters
    ----------
    eta_lambda : float
        Rate of the mixture; 0 keeps it where it starts.
    multi_step : bool
        Whether clients train for `local.epochs` (`local.steps`) instead of one step with all
        their data, which is the paper's and ignores `local.batch`.
    output : {"average", "last"}
        The model handed out: the mean of the iterates (the paper's) or the last one.
    weighting : {"uniform", "size", "auto"}
        Where the mixture starts.
    """

    name: ClassVar[str] = "afl"
    title: ClassVar[str] = "AFL"
    paper: ClassVar[str] = "Mohri et al., ICML 2019"
    reveals: ClassVar[tuple[Reveal, ...]] = (
        Reveal("train", "update", "model", "change of the model by the client's training", True),
        LOSS,
        EVALUATION,
    )
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"eta_lambda": (0.01, 0.1, 1.0)}

    eta_lambda: float = 0.1
    multi_step: bool = False
    output: Literal["average", "last"] = "average"
    weighting: Literal["auto", "size", "uniform"] = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self.name, eta_lambda=self.eta_lambda)
        check_choice(self.name, "output", self.output, ("average", "last"))

    @property
    def batch_hint(self) -> int:
        """Rows of one local step."""
        return self.local.batch if self.multi_step else 0

    def advice(self, federation: Federation) -> list[str]:
        """Warn where options of local training are not used."""
        return [] if self.multi_step else one_step_advice("afl", self.local, "multi_step=true")

    def draw(self, generator: torch.Generator, state: Tree, size: int) -> Tree:
        """The batches of a client: one with all its data, or those of local training."""
        local = self.local if self.multi_step else one_step(self.local)
        return local.draw(generator, state, size)

    def start(self, federation: Federation) -> Server:
        """The model, the mean of no iterates yet, and the first mixture `(K,)`.

        Entries of the mixture are in the order of `federation.everyone`.
        """
        mixture = torch.ones(len(federation), dtype=torch.float64)
        if self.weights(federation) == "size":
            mixture = all_sizes(self.name, federation)
        return {
            "params": self.first,
            "average": self.first,
            "count": torch.zeros((), dtype=torch.int64),
            "mixture": mixture / mixture.sum(),
        }

    def round(self, federation: Federation, server: Server) -> Server:
        """One exchange: losses and steps at one model, then both moves."""
        mixture: Tensor = server["mixture"]
        asked = mixture[places(federation, federation.cohort)]
        mean = federation.mean(
            self.train,
            self.broadcast(federation, server),
            weights=asked.clamp(min=_NOTHING),
            draws=self.draw,
            keep=("loss",),
        )
        step = self.server_lr if mean.weight > _NOTHING * (len(asked) + 1) else 0.0
        params = trees.add(server["params"], mean.value["update"], step)
        losses = mean.kept["loss"].double().cpu()
        share = len(federation) / len(losses)
        gradient = torch.zeros_like(mixture)
        gradient[places(federation, mean.clients)] = share * losses
        new = project_to_simplex(mixture + self.eta_lambda * gradient)
        self.noted(federation, losses, new)
        count = server["count"] + 1
        moved = trees.subtract(params, server["average"])
        return {
            "params": params,
            "average": trees.add(server["average"], moved, 1.0 / float(count)),
            "count": count,
            "mixture": new,
        }

    def deployed(self, server: Server) -> Tree:
        """The mean of the iterates, or the last one."""
        return server["average" if self.output == "average" else "params"]
