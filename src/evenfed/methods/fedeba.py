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
from typing import Any, ClassVar

import torch
from torch.func import grad

from evenfed.core import tree as trees
from evenfed.core.entropy import fair_angle
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.task import Params
from evenfed.core.tree import Tree
from evenfed.engines.exchange import ClientFunction
from evenfed.engines.federation import Federation
from evenfed.methods.base import EVALUATION, Reveal, Server, check_not_negative
from evenfed.methods.eba import EBA, LOSS, UPDATE
from evenfed.methods.tilting import Answer

_SAFE = 0.3
"""Local rate x steps x alpha up to which aligned training was stable in our measurements."""


@dataclass(frozen=True)
class FedEBA(EBA):
    """FedEBA+.

    Parameters
    ----------
    alpha : float
        Share of the alignment; below 1/2 it is stable, 0 is entropy-based aggregation alone.
    theta_deg : float
        Angle above which local steps are aligned with the fair gradient; below it the server
        aligns the model. 0 always aligns local steps, 90 never.
    cv_threshold : float
        The same threshold as a coefficient of variation; used where it is not negative.
    align_clip : bool
        Never let the fair gradient pull harder than the local gradient.
    others
        As for EBA.
    """

    name: ClassVar[str] = "fedeba"
    title: ClassVar[str] = "FedEBA+"
    reveals: ClassVar[tuple[Reveal, ...]] = (
        Reveal("probe", "gradient", "model", "gradient at the received model", False),
        Reveal("probe", "loss", "scalar", "loss of the received model", False),
        UPDATE,
        LOSS,
        EVALUATION,
    )
    exchanges: ClassVar[int] = 2
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {
        "tau": (0.05, 0.1, 0.5, 1.0, 2.0, 5.0),
        "alpha": (0.1, 0.3, 0.5, 0.9),
    }

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper_v5": {"alpha": 0.5, "loss_at": "local_final", "align_clip": True}
    }

    alpha: float = 0.3
    theta_deg: float = 0.0
    cv_threshold: float = -1.0
    align_clip: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self.name, theta_deg=self.theta_deg)
        if not 0 <= self.alpha <= 1:
            raise ConfigError(f"{self.name}: alpha must be in [0, 1], but is {self.alpha}")

    @property
    def threshold(self) -> float:
        """The angle in degrees above which local steps are aligned."""
        if self.cv_threshold >= 0:
            return math.degrees(math.atan(self.cv_threshold))
        return self.theta_deg

    def advice(self, federation: Federation) -> list[str]:
        """Warn where the alignment is known to be fragile."""
        found = super().advice(federation)
        if not self.alpha or self.threshold >= 90:
            return found
        reach = self.local.lr * self.steps(federation) * self.alpha
        if self.alpha >= (0.9 if self.align_clip else 0.5):
            found.append(
                f"{self.name}: alpha = {self.alpha} is not stable for every rate: below 0.5 it is "
                "(below 0.9 with align_clip=true)"
            )
        if reach >= _SAFE and not self.align_clip:
            found.append(
                f"{self.name}: local rate x steps x alpha = {reach:.2g} is not below {_SAFE}, "
                "where aligned training was seen to collapse; lower lr, steps or alpha"
            )
        return found

    # client side

    def aligned(self, gradient: Params, params: Params, batch: Examples, pull: Tree) -> Params:
        """`(1 - alpha) grad F_i + alpha g~`, clipped on request."""
        fair, share = pull["fair"], pull["alpha"]
        mixed = trees.scale(gradient, 1 - share)
        if self.align_clip:
            ratio = trees.squared_norm(gradient) / trees.squared_norm(fair).clamp(min=1e-30)
            share = share * ratio.sqrt().clamp(max=1.0)
        return trees.add(mixed, fair, share)  # type: ignore[no-any-return]

    def pull(self, broadcast: Tree, state: Tree) -> Tree:
        """The fair gradient and its share, if this round aligns; else nothing."""
        if "fair" not in broadcast:
            return ()
        return {"fair": broadcast["fair"], "alpha": torch.tensor(self.alpha)}

    def aligned_model(self, broadcast: Tree, data: Examples, draws: Tree, pull: Tree) -> Params:
        """The client's model after local training aligned with the pull."""
        return self.local.run(
            self.task, broadcast["params"], data, draws, lr=broadcast["lr"],
            term=self.to_robust if self.robust else None, gradient=self.aligned, context=pull,
        )  # fmt: skip

    def probe(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: loss and gradient of the received model on all training data."""
        params = broadcast["params"]
        gradient = grad(self.loss)(params, data)
        return {"gradient": gradient, "loss": self.loss(params, data)}, state

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: local training, aligned if asked; sends the change and a loss."""
        pull = self.pull(broadcast, state)
        if pull:
            new = self.aligned_model(broadcast, data, draws, pull)
        else:
            new = self.trained(broadcast, data, draws)
        return self.sent(broadcast, new, data), state

    # server side

    def round(self, federation: Federation, server: Server) -> Server:
        """Probe, align or not, train, weigh by losses."""
        if not self.alpha:
            return super().round(federation, server)
        broadcast = self.broadcast(federation, server)
        probe = self._weighed(
            federation, self.probe, {"params": server["params"]},
            fair=("gradient",), plain={"mean": "gradient"},
        )  # fmt: skip
        weights = self.tilting.weights_of(federation, probe) if self.loss_at == "global" else None
        aligns = self._aligns(federation, fair_angle(probe.losses))
        if aligns:
            broadcast["fair"] = probe.value["gradient"]
        move = self._weighed(federation, self.train, broadcast, weights=weights).value["update"]
        if not aligns:
            # model alignment: the mean of one full-batch step of every client
            step = trees.scale(probe.value["mean"], -float(broadcast["lr"]))
            move = self._mixed(move, step)
        return {"params": self.moved(server["params"], move)}

    def _aligns(self, federation: Federation, angle: float) -> bool:
        federation.note(fair_angle=angle, aligned=angle > self.threshold)
        return angle > self.threshold

    def _mixed(self, update: Tree, one_step: Tree) -> Tree:
        return trees.add(trees.scale(update, 1 - self.alpha), one_step, self.alpha)

    def _weighed(
        self, federation: Federation, function: ClientFunction, broadcast: Tree, **options: Any
    ) -> Answer:
        """One exchange with entropy weights; see `Tilting.exchange`."""
        draws = None if function == self.probe else self.draw
        prior = self.weights(federation)
        return self.tilting.exchange(
            federation, function, broadcast, draws=draws, prior=prior, **options
        )
