"""EBA: aggregation with weights of maximum entropy; the aggregation part of FedEBA+.

Wang, Wang, Shi, Karimireddy, Tang, "Entropy-driven Fair and Effective Federated Learning"
(arXiv 2301.12407; ICML 2026), rebuilt: docs/methods/fedeba.md says which part rests on what.

Symbols: `F_i` loss of client i, `q_i` its share of the examples (the prior), `tau` the temperature.
Among all weights with a given mean loss, `p_i` proportional to `q_i exp(F_i / tau)` has the largest
entropy relative to the prior. With `tau = 1/t` these are the weights of the tilted loss (TERM).

Robust loss (`robust` = `gamma` > 0), against wrong labels. The paper replaces `F_i` by a
cross-entropy plus `gamma` times a self-distillation loss on augmented data, after Jiang, Sun, Wang,
Liu, "Towards Federated Learning against Noisy Labels via Local Self-Regularization" (CIKM 2022).
With logits `z` of an input, `z'` of its augmented view and `sigma` the softmax:
`m = (sigma(z) + sigma(z')) / 2`, `s_c = m_c^2 / sum_d m_d^2`,
`l = log sum_c exp(s_c) - s_y + gamma JS(sigma(3 z), sigma(3 z'))`.
The cross-entropy takes the sharpened prediction `s` where logits are usual, as the public code of
Jiang et al. does. That is what makes it robust: labels at random cost at most 1 more than right
ones, and almost the same for every prediction. Ours on purpose: the mean of the two views (there a
random mixture), inputs shrunk to 80 % (there rotated images), JS as a sum over classes (there their
mean), no warm-up of `gamma` and no entropy term.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.task import Params, Task
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.methods.base import EVALUATION, Reveal, Server, check_not_negative
from evenfed.methods.fedavg import FedAvg
from evenfed.methods.tilting import Tilting

UPDATE = Reveal("train", "update", "model", "change of the model by the client's training", False)
LOSS = Reveal("train", "loss", "scalar", "loss of the model on the training data", False)


@dataclass(frozen=True)
class EBA(FedAvg):
    """Entropy-based aggregation.

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
        against noisy labels.
    """

    name: ClassVar[str] = "eba"
    title: ClassVar[str] = "EBA"
    paper: ClassVar[str] = "Wang et al., ICML 2026 (rebuilt)"
    reveals: ClassVar[tuple[Reveal, ...]] = (UPDATE, LOSS, EVALUATION)
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"tau": (0.05, 0.1, 0.5, 1.0, 2.0, 5.0)}

    tau: float = 2.0
    tau_mode: Literal["absolute", "relative"] = "absolute"
    tau_decay: float = 0.0
    tau_power: float = 1.0
    p_max: float = 1.0
    loss_at: Literal["global", "local_final"] = "global"
    robust: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self.name, tau_decay=self.tau_decay, robust=self.robust)
        if not self.tau > 0:
            raise ConfigError(f"{self.name}: tau must be greater than 0, but is {self.tau}")
        if not 0 < self.p_max <= 1:
            raise ConfigError(f"{self.name}: p_max must be in (0, 1], but is {self.p_max}")

    def steps(self, federation: Federation) -> int:
        """Local steps of the largest client in a round, where its size is known."""
        sizes = federation.population.sizes()
        if self.local.steps or sizes is None or not self.local.batch:
            return self.local.steps or self.local.epochs
        return self.local.epochs * -(-int(sizes.max()) // self.local.batch)

    def advice(self, federation: Federation) -> list[str]:
        """Warn where weights this sharp were seen to make training swing."""
        reach = self.local.lr * self.steps(federation)
        if self.tau_mode == "relative" or self.tau > 0.2 or reach < 0.3:
            return []
        return [
            f"{self.name}: tau = {self.tau} with local rate x steps = {reach:.2g} lets one client "
            "decide a round, and training swing; raise tau (2) or set tau_mode='relative'"
        ]

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

    def trained(self, broadcast: Tree, data: Examples, draws: Tree) -> Params:
        """The client's model after local training."""
        return self.local.run(
            self.task, broadcast["params"], data, draws, lr=broadcast["lr"],
            term=self.to_robust if self.robust else None,
        )  # fmt: skip

    def sent(self, broadcast: Tree, new: Params, data: Examples) -> dict[str, Tree]:
        """The upload: the change of the model and the loss behind its weight."""
        at = new if self.loss_at == "local_final" else broadcast["params"]
        update = trees.subtract(new, broadcast["params"])
        return {"update": update, "loss": self.loss(at, data)}

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: local training; sends the change of the model and a loss."""
        return self.sent(broadcast, self.trained(broadcast, data, draws), data), state

    def round(self, federation: Federation, server: Server) -> Server:
        """One exchange: train, average with entropy weights."""
        answer = self.tilting.exchange(
            federation,
            self.train,
            self.broadcast(federation, server),
            draws=self.draw,
            prior=self.weights(federation),
        )
        return {"params": self.moved(server["params"], answer.value["update"])}

    def moved(self, params: Params, update: Tree) -> Params:
        """The model after the server's step."""
        return trees.add(params, update, self.server_lr)  # type: ignore[no-any-return]
