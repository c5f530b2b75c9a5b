"""FedEBA+: entropy-based aggregation weights, and alignment of local steps with a fair direction.

Wang, Wang, Shi, Karimireddy, Tang, "Entropy-driven Fair and Effective Federated Learning"
(arXiv 2301.12407; ICML 2026). The paper's body was not at hand: the algorithm is rebuilt from its
abstract, reviews and derivation; docs/methods/fedeba.md says which part rests on what.

Symbols: `F_i` loss of client i, `q_i` its share of the examples (the prior), `tau` the temperature,
`p_i` proportional to `q_i exp(F_i / tau)` the weights that maximise entropy at a given mean loss;
`g~ = sum_i p_i grad F_i` the fair gradient, `alpha` the share of the alignment, `theta` the angle
between the losses and the line of equal losses above which local steps are aligned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import grad

from evenfed.core import tree as trees
from evenfed.core.batches import Batches
from evenfed.core.entropy import entropy_weights, fair_angle
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.task import Params
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.engines.fold import Tilted
from evenfed.methods.base import EVALUATION, Reveal, Server, check_not_negative
from evenfed.methods.fedavg import FedAvg

_SAFE = 0.3
"""Local rate x steps x alpha up to which aligned training was stable in our measurements."""

UPDATE = Reveal("train", "update", "model", "change of the model by the client's training", False)
LOSS = Reveal("train", "loss", "scalar", "loss of the model on the training data", False)


@dataclass(frozen=True)
class _Answer:
    """Means over an exchange, and who answered with which loss."""

    value: dict[str, Tree]
    clients: NDArray[np.int64]
    sizes: Tensor
    losses: Tensor


@dataclass(frozen=True)
class FedEBA(FedAvg):
    """FedEBA+.

    Parameters
    ----------
    tau : float
        Temperature; infinite gives FedAvg's weights, near 0 all weight goes to the worst client.
    tau_mode : {"absolute", "relative"}
        `relative` multiplies tau by the spread (standard deviation) of the cohort's losses.
    tau_decay, tau_power : float
        `tau_t = tau / (1 + tau_decay * t) ** tau_power`.
    p_max : float
        Largest weight of a client; guards against clients with noisy labels. 1 is off.
    loss_at : {"global", "local_final"}
        Losses behind the weights: of the received model, or of the client's trained one.
    alpha : float
        Share of the alignment; below 1/2 it is stable, 0 is entropy-based aggregation alone.
    theta_deg : float
        Angle above which local steps are aligned with the fair gradient; below it the server
        aligns the model. 0 always aligns local steps, 90 never.
    cv_threshold : float
        The same threshold as a coefficient of variation; used where it is not negative.
    align_clip : bool
        Never let the fair gradient pull harder than the local gradient.
    fair_gradient : {"exact", "stale", "first_step"}
        An exchange of its own; the last round's direction (Prac-FedEBA+, FedAvg's traffic); or
        the first local steps of the last round.
    robust : float
        Weight of a self-distillation loss on contrast-reduced inputs, in training and weights.
    """

    name: ClassVar[str] = "fedeba"
    title: ClassVar[str] = "FedEBA+"
    paper: ClassVar[str] = "Wang et al., ICML 2026 (rebuilt)"
    reveals: ClassVar[tuple[Reveal, ...]] = (
        Reveal("probe", "gradient", "model", "gradient at the received model", False),
        Reveal("probe", "loss", "scalar", "loss of the received model", False),
        UPDATE,
        LOSS,
        Reveal("train", "first", "model", "change by the first local step (first_step)", False),
        Reveal("train", "steps", "scalar", "number of local steps (stale)", False),
        EVALUATION,
    )
    exchanges: ClassVar[int] = 2

    tau: float = 0.1
    tau_mode: Literal["absolute", "relative"] = "absolute"
    tau_decay: float = 0.0
    tau_power: float = 1.0
    p_max: float = 1.0
    loss_at: Literal["global", "local_final"] = "global"
    alpha: float = 0.3
    theta_deg: float = 0.0
    cv_threshold: float = -1.0
    align_clip: bool = False
    fair_gradient: Literal["exact", "stale", "first_step"] = "exact"
    robust: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(
            self.name, tau_decay=self.tau_decay, theta_deg=self.theta_deg, robust=self.robust
        )
        if not self.tau > 0:
            raise ConfigError(f"{self.name}: tau must be greater than 0, but is {self.tau}")
        if not 0 < self.p_max <= 1 or not 0 <= self.alpha <= 1:
            raise ConfigError(f"{self.name}: p_max must be in (0, 1] and alpha in [0, 1]")

    @property
    def threshold(self) -> float:
        """The angle in degrees above which local steps are aligned."""
        if self.cv_threshold >= 0:
            return math.degrees(math.atan(self.cv_threshold))
        return self.theta_deg

    def advice(self, federation: Federation) -> list[str]:
        """Warn where the alignment is known to be fragile."""
        if not self.alpha or self.align_clip:
            return []
        sizes = federation.population.sizes()
        rows = self.local.batch or 1
        passes = -(-int(sizes.max()) // rows) if sizes is not None and self.local.batch else 1
        reach = self.local.lr * (self.local.steps or self.local.epochs * passes) * self.alpha
        found = []
        if self.alpha >= 0.5:
            found.append(
                f"{self.name}: alpha = {self.alpha} is not stable for every rate: below 0.5 it is; "
                "or set align_clip=true"
            )
        if reach > _SAFE:
            found.append(
                f"{self.name}: local rate x steps x alpha = {reach:.2g} is above {_SAFE}, where "
                "aligned training was seen to collapse; lower lr, steps or alpha"
            )
        return found

    def temperature(self, round: int, losses: Tensor | None = None) -> float:
        """The temperature of a round."""
        tau: float = self.tau / (1 + self.tau_decay * round) ** self.tau_power
        if self.tau_mode == "absolute" or losses is None:
            return tau
        return max(tau * float(losses.double().std(correction=0)), 1e-12)

    # client side

    def loss(self, params: Params, data: Examples) -> Tensor:
        """The loss behind the weights."""
        plain = self.task.mean_loss(params, data)
        return plain + self.distillation(params, data, ()) if self.robust else plain

    def distillation(self, params: Params, batch: Examples, context: Tree) -> Tensor:
        """`robust` times the divergence of predictions from those at reduced contrast."""
        real = batch.weight
        a = self.task.probabilities(self.task.outputs(params, batch.x)).clamp(min=1e-12)
        b = self.task.probabilities(self.task.outputs(params, 0.8 * batch.x)).clamp(min=1e-12)
        divergence = (a * (a.log() - b.log())).sum(-1)
        return self.robust * (divergence * real).sum() / real.sum().clamp(min=1)

    def aligned(self, gradient: Params, params: Params, batch: Examples, fair: Tree) -> Params:
        """`(1 - alpha) grad F_i + alpha g~`, clipped on request."""
        pull: float | Tensor = self.alpha
        if self.align_clip:
            ratio = trees.squared_norm(gradient) / trees.squared_norm(fair).clamp(min=1e-30)
            pull = self.alpha * ratio.sqrt().clamp(max=1.0)
        mixed = trees.scale(gradient, 1 - self.alpha)
        return trees.add(mixed, fair, pull)  # type: ignore[no-any-return]

    def trained(self, broadcast: Tree, data: Examples, draws: Tree) -> Params:
        """The client's model after local training, aligned if a fair gradient came along."""
        fair = broadcast.get("fair")
        return self.local.run(
            self.task, broadcast["params"], data, draws, lr=broadcast["lr"],
            term=self.distillation if self.robust else None,
            gradient=None if fair is None else self.aligned,
            context=() if fair is None else fair,
        )  # fmt: skip

    def probe(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: loss and gradient of the received model on all training data."""
        params = broadcast["params"]
        gradient = grad(self.task.mean_loss)(params, data)
        return {"gradient": gradient, "loss": self.loss(params, data)}, state

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Batches
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: local training; sends the change, the loss, and what is asked for."""
        params = broadcast["params"]
        new = self.trained(broadcast, data, draws)
        at = new if self.loss_at == "local_final" else params
        upload = {"update": trees.subtract(new, params), "loss": self.loss(at, data)}
        if self.alpha and self.fair_gradient == "first_step":
            plain = {k: v for k, v in broadcast.items() if k != "fair"}
            step = self.trained(plain, data, Batches(draws.index[:1], draws.mask[:1]))
            upload["first"] = trees.subtract(step, params)
        if self.alpha and self.fair_gradient == "stale":
            upload["steps"] = self.local.step_count(draws)
        return upload, state

    # server side

    def start(self, federation: Federation) -> Server:
        """The model; where the fair gradient comes from the last round, also that (zero)."""
        if not self.alpha or self.fair_gradient == "exact":
            return {"params": self.first}
        return {
            "params": self.first,
            "fair": trees.zeros_like(self.first),
            "angle": torch.tensor(-1.0, dtype=torch.float64),
        }

    def round(self, federation: Federation, server: Server) -> Server:
        """Probe if the fair gradient is exact, align or not, train, weigh by losses."""
        broadcast = self.broadcast(federation, server)
        if not self.alpha:
            answer = self._weighed(federation, self.train, broadcast)
            return {"params": self._moved(server["params"], answer.value["update"])}
        if self.fair_gradient != "exact":
            return self._practical_round(federation, server, broadcast)
        probe = self._weighed(
            federation, self.probe, {"params": server["params"]},
            fair=("gradient",), plain={"mean": "gradient"},
        )  # fmt: skip
        weights = self._known_weights(federation, probe) if self.loss_at == "global" else None
        aligns = self._aligns(federation, fair_angle(probe.losses))
        if aligns:
            broadcast["fair"] = probe.value["gradient"]
        move = self._weighed(federation, self.train, broadcast, weights=weights).value["update"]
        if not aligns:
            # model alignment: the mean of one full-batch step of every client
            step = trees.scale(probe.value["mean"], -float(broadcast["lr"]))
            move = self._mixed(move, step)
        return {"params": self._moved(server["params"], move)}

    def _practical_round(self, federation: Federation, server: Server, sent: Tree) -> Server:
        """One exchange: the fair gradient is the one of the last round."""
        rate = float(sent["lr"])
        known = float(server["angle"]) >= 0
        aligns = known and self._aligns(federation, float(server["angle"]))
        if aligns:
            sent["fair"] = server["fair"]
        first = self.fair_gradient == "first_step"
        parts = ("update", "first") if first else ("update",)
        plain = {"mean": "first"} if first else {"mean_steps": "steps"}
        answer = self._weighed(federation, self.train, sent, fair=parts, plain=plain)
        value, move = answer.value, answer.value["update"]
        if known and not aligns:
            # the last round's direction stands for the mean first step where none is sent
            step = value["mean"] if first else trees.scale(server["fair"], -rate)
            move = self._mixed(move, step)
        if first:
            fair = trees.scale(value["first"], -1.0 / rate)
        else:
            fair = trees.scale(value["update"], -1.0 / (rate * float(value["mean_steps"])))
        angle = torch.tensor(fair_angle(answer.losses), dtype=torch.float64)
        return {"params": self._moved(server["params"], move), "fair": fair, "angle": angle}

    def _aligns(self, federation: Federation, angle: float) -> bool:
        federation.note(fair_angle=angle, aligned=angle > self.threshold)
        return angle > self.threshold

    def _moved(self, params: Params, update: Tree) -> Params:
        return trees.add(params, update, self.server_lr)  # type: ignore[no-any-return]

    def _mixed(self, update: Tree, one_step: Tree) -> Tree:
        return trees.add(trees.scale(update, 1 - self.alpha), one_step, self.alpha)

    def _weighed(
        self,
        federation: Federation,
        function: Any,
        broadcast: Tree,
        *,
        fair: tuple[str, ...] = ("update",),
        plain: dict[str, str] | None = None,
        weights: Tensor | None = None,
    ) -> _Answer:
        """One exchange: means with entropy weights of `fair`, plain means of `plain`."""
        plain = plain or {}
        draws = None if function == self.probe else self.draw
        base = self.weights(federation)

        def each(upload: Tree) -> Tree:
            return {
                **{part: upload[part] for part in fair},
                **{name: upload[part] for name, part in plain.items()},
                "loss": upload["loss"],
            }

        kind: Any = weights
        if kind is None and self.tau_mode == "absolute" and self.p_max >= 1:
            tau = self.temperature(federation.round)
            kind = Tilted(lambda upload, sizes: upload["loss"].double() / tau, base)
        if kind is None:
            return self._stacked(federation, function, broadcast, draws, each, fair, plain)
        mean = federation.mean(
            function,
            broadcast,
            weights={**dict.fromkeys(fair, kind), **dict.fromkeys(plain, "uniform")},
            draws=draws,
            each=each,
            keep=("loss",),
        )
        losses = mean.kept["loss"].double()
        self._note(federation, losses, mean.sizes)
        return _Answer(mean.value, mean.clients, mean.sizes, losses)

    def _stacked(
        self,
        federation: Federation,
        function: Any,
        broadcast: Tree,
        draws: Any,
        each: Any,
        fair: tuple[str, ...],
        plain: dict[str, str],
    ) -> _Answer:
        """The same where weights need all losses first (relative tau, cap): holds all uploads."""
        replies = federation.map(function, broadcast, draws=draws)
        uploads = each(replies.uploads)
        losses = uploads["loss"].double()
        p = self._note(federation, losses, replies.sizes)
        even = torch.full_like(p, 1.0 / len(p))

        def mean(tree: Tree, weights: Tensor) -> Tree:
            return trees.map(
                lambda t: torch.tensordot(weights, t.double(), dims=1).to(t.dtype), tree
            )

        value = {part: mean(uploads[part], p) for part in fair}
        value |= {name: mean(uploads[name], even) for name in plain}
        return _Answer(value, replies.clients, replies.sizes, losses)

    def _prior(self, federation: Federation, sizes: Tensor) -> Tensor:
        return sizes if self.weights(federation) == "size" else torch.ones_like(sizes)

    def _note(self, federation: Federation, losses: Tensor, sizes: Tensor) -> Tensor:
        """Weights of those that answered, with their diagnostics in the history."""
        tau = self.temperature(federation.round, losses)
        p = entropy_weights(losses, tau, self._prior(federation, sizes), self.p_max)
        federation.note(
            train_loss=float(losses.mean()),
            largest_weight=float(p.max()),
            effective_clients=float(1.0 / p.square().sum()),
        )
        return p

    def _known_weights(self, federation: Federation, probe: _Answer) -> Tensor:
        """Weights of the cohort's rows from the losses of an earlier exchange of the round."""
        weights = torch.zeros(len(federation.cohort), dtype=torch.float64)
        rows = np.flatnonzero(np.isin(federation.cohort, probe.clients))
        weights[torch.from_numpy(rows)] = self._note(federation, probe.losses, probe.sizes)
        return weights


@dataclass(frozen=True)
class EBA(FedEBA):
    """Entropy-based aggregation alone: FedEBA+ without alignment, one exchange."""

    name: ClassVar[str] = "eba"
    title: ClassVar[str] = "EBA"
    reveals: ClassVar[tuple[Reveal, ...]] = (UPDATE, LOSS, EVALUATION)
    exchanges: ClassVar[int] = 1

    alpha: float = 0.0


@dataclass(frozen=True)
class PracFedEBA(FedEBA):
    """Prac-FedEBA+: the fair gradient is the last round's, so that traffic is FedAvg's."""

    name: ClassVar[str] = "prac_fedeba"
    title: ClassVar[str] = "Prac-FedEBA+"
    reveals: ClassVar[tuple[Reveal, ...]] = FedEBA.reveals[2:]
    exchanges: ClassVar[int] = 1

    fair_gradient: Literal["exact", "stale", "first_step"] = "stale"
