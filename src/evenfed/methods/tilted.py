"""Options of entropy weights, for methods that weigh clients by their losses.

Shared by EBA, FedEBA+ and its relatives (all clients of a round) and FOCUS (those of a cluster).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

from torch import Tensor

from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.task import Params, Task
from evenfed.core.tree import Tree
from evenfed.methods.base import check_choice, check_not_negative
from evenfed.methods.fedavg import FedAvg
from evenfed.methods.tilting import Tilting
from evenfed.methods.training import Added


@dataclass(frozen=True)
class Tilts(FedAvg):
    """A method with entropy weights, and with a robust loss on request.

    Parameters
    ----------
    tau : float
        Temperature; infinite gives FedAvg's weights, near 0 all weight goes to the worst client.
    tau_mode : {"absolute", "relative"}
        `relative` multiplies tau by the spread (standard deviation) of the cohort's losses.
    tau_decay, tau_power : float
        `tau_t = tau / (1 + tau_decay * t) ** tau_power`.
    p_max : float
        Largest weight of a client, against clients with noisy labels; 1 is off. At or below one
        over the cohort's size all weights are equal, whatever the losses and the prior.
    loss_at : {"global", "local_final"}
        Losses behind the weights: of the received model, or of the client's trained one.
    robust : float
        Greater than 0: train and weigh by the robust loss, with this weight of self-distillation;
        against noisy labels. See `eba`.
    """

    tau: float = 2.0
    tau_mode: Literal["absolute", "relative"] = "absolute"
    tau_decay: float = 0.0
    tau_power: float = 1.0
    p_max: float = 1.0
    loss_at: Literal["global", "local_final"] = "global"
    robust: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.name, "tau_mode", self.tau_mode, ("absolute", "relative"))
        check_choice(self.name, "loss_at", self.loss_at, ("global", "local_final"))
        check_not_negative(self.name, tau_decay=self.tau_decay, robust=self.robust)
        if not self.tau > 0:
            raise ConfigError(f"{self.name}: tau must be greater than 0, but is {self.tau}")
        if not 0 < self.p_max <= 1:
            raise ConfigError(f"{self.name}: p_max must be in (0, 1], but is {self.p_max}")

    @property
    def tilting(self) -> Tilting:
        """How losses become weights."""
        return Tilting(self.tau, self.tau_mode, self.tau_decay, self.tau_power, self.p_max)

    def bound(self, task: Task, first: Params) -> Self:
        """A copy that knows its task and the first weights, ready to run."""
        if self.robust and (task.kind == "regression" or task.loss is not None):
            raise ConfigError(f"{self.name}: robust needs classes, and brings its own loss")
        return super().bound(task, first)

    def loss(self, params: Params, data: Examples) -> Tensor:
        """The loss behind weights and fair gradient."""
        return (self.robust_loss if self.robust else self.task.mean_loss)(params, data)

    def robust_loss(self, params: Params, data: Examples) -> Tensor:
        """Cross-entropy of sharpened predictions, plus self-distillation between two views."""
        if not data.x.is_floating_point():
            raise ConfigError(f"{self.name}: robust needs inputs that are numbers")
        views = [self.task.outputs(params, x) for x in (data.x, 0.8 * data.x)]
        a, b = (self.task.probabilities(z) for z in views)
        s = (a + b).square()
        s = s / s.sum(-1, keepdim=True)
        losses = s.logsumexp(-1) - s.gather(-1, data.y.long().unsqueeze(-1)).squeeze(-1)
        u, v = (self.task.probabilities(3 * z).clamp(min=1e-6) for z in views)
        middle = ((u + v) / 2).log()
        apart = (u * (u.log() - middle) + v * (v.log() - middle)).sum(-1) / 2
        real = data.weight
        return ((losses + self.robust * apart) * real).sum() / real.sum().clamp(min=1)

    def to_robust(self, params: Params, batch: Examples, context: Tree) -> Tensor:
        """What turns the loss of a batch into the robust one."""
        return self.robust_loss(params, batch) - self.task.mean_loss(params, batch)

    def added(self, broadcast: Tree) -> Added:
        """The robust loss, where it is asked for."""
        return {"term": self.to_robust} if self.robust else {}
