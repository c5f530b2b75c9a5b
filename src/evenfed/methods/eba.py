"""EBA: aggregation with weights of maximum entropy; the aggregation part of FedEBA+.

Wang, Wang, Shi, Karimireddy, Tang, "Entropy-driven Fair and Effective Federated Learning"
(arXiv 2301.12407; ICML 2026), rebuilt: docs/methods/fedeba.md says which part rests on what.

Symbols: `F_i` loss of client i, `q_i` its share of the examples (the prior), `tau` the temperature.
Among all weights with a given mean loss, `p_i` proportional to `q_i exp(F_i / tau)` has the largest
entropy relative to the prior. With `tau = 1/t` these are the weights of the tilted loss (TERM).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.task import Params
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
        Weight of a self-distillation loss on inputs shrunk to 80 %, in training and weights. It
        was not seen to help against noisy labels.
    """

    name: ClassVar[str] = "eba"
    title: ClassVar[str] = "EBA"
    paper: ClassVar[str] = "Wang et al., ICML 2026 (rebuilt)"
    reveals: ClassVar[tuple[Reveal, ...]] = (UPDATE, LOSS, EVALUATION)
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"tau": (0.05, 0.1, 0.5, 1.0, 5.0)}

    tau: float = 0.1
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
        if self.tau_mode == "relative" or self.tau > 0.1 or reach < 1:
            return []
        return [
            f"{self.name}: tau = {self.tau} with local rate x steps = {reach:.2g} lets one client "
            "decide a round, and training swing; raise tau (0.5) or set tau_mode='relative'"
        ]

    @property
    def tilting(self) -> Tilting:
        """How losses become weights."""
        return Tilting(self.tau, self.tau_mode, self.tau_decay, self.tau_power, self.p_max)

    def loss(self, params: Params, data: Examples) -> Tensor:
        """The loss behind the weights."""
        plain = self.task.mean_loss(params, data)
        return plain + self.distillation(params, data, ()) if self.robust else plain

    def distillation(self, params: Params, batch: Examples, context: Tree) -> Tensor:
        """`robust` times the divergence of predictions from those at inputs shrunk to 80 %."""
        if self.task.kind == "regression" or not batch.x.is_floating_point():
            raise ConfigError(f"{self.name}: robust needs classes and inputs that are numbers")
        real = batch.weight
        a = self.task.probabilities(self.task.outputs(params, batch.x)).clamp(min=1e-12)
        b = self.task.probabilities(self.task.outputs(params, 0.8 * batch.x)).clamp(min=1e-12)
        divergence = (a * (a.log() - b.log())).sum(-1)
        return self.robust * (divergence * real).sum() / real.sum().clamp(min=1)

    def trained(self, broadcast: Tree, data: Examples, draws: Tree) -> Params:
        """The client's model after local training."""
        return self.local.run(
            self.task, broadcast["params"], data, draws, lr=broadcast["lr"],
            term=self.distillation if self.robust else None,
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
