"""pFedMe: personal models as proximal points, a global model by descent on Moreau envelopes.

Dinh, Tran, Nguyen, "Personalized Federated Learning with Moreau Envelopes" (NeurIPS 2020),
Algorithm 1.

Symbols: `w_t` the global model (`params`), `w_i` the client's copy of it, `theta_i` its personal
model (its state). For every local batch: `inner` steps on that batch towards `argmin_theta
F_i(theta) + lambda/2 ||theta - w_i||^2`, each `theta <- theta - lr (grad F_i(theta) + lambda (theta
- w_i))`, then `w_i <- w_i - eta lambda (w_i - theta)`, a gradient step on the envelope. `theta`
starts at the received model and goes on from batch to batch. Server: `w <- (1 - beta) w + beta
mean_i w_i`; `beta` is `server_lr`. A local round of the paper (`R` of them) is one of the batches
of local training here.

With `local.regularizer` the personal steps are corrected, `theta <- theta - lr (g + u + lambda
(theta - w_i))`: `u` sees `F_i` alone, as in FedProx. A correction after the fact moves `theta` at
the end of the round, and `w_i` as if its last step had seen it: by `eta lambda` times the same.

Where ours differs from the authors' code: only the cohort trains (there everybody does, and a
sample is averaged); no decay `mu theta` unless `local.weight_decay` asks for it (there 0.001);
clients that took no part yet use the global model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.batches import Batches
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.optimizer import Optimizer, inverse_rate
from evenfed.core.task import Params
from evenfed.core.tree import Tree
from evenfed.methods.personal import Personalized, PersonalStep, kept
from evenfed.methods.training import check_plain_steps


@dataclass(frozen=True)
class PFedMe(Personalized):
    """pFedMe.

    Parameters
    ----------
    local : LocalTraining
        Its rate is that of the personal steps, its batches are the local rounds.
    lam : float
        `lambda`: pull of the personal model to the client's copy of the global one.
    eta : float
        Rate of that copy.
    inner : int
        Personal steps a batch, `K` in the paper.
    server_lr : float
        `beta`.
    """

    name: ClassVar[str] = "pfedme"
    title: ClassVar[str] = "pFedMe"
    paper: ClassVar[str] = "Dinh et al., NeurIPS 2020"
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {
        "lam": (5.0, 10.0, 15.0, 20.0, 30.0),
        "eta": (0.005, 0.01, 0.05, 0.1),
    }

    lam: float = 15.0
    eta: float = 0.05
    inner: int = 5
    weighting: Literal["auto", "size", "uniform"] = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lam > 0 or not self.eta > 0 or self.inner < 1:
            raise ConfigError(
                f"{self.name}: lam and eta must be greater than 0 and inner at least 1"
            )
        check_plain_steps(self.name, self.local)

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: steps of the personal model and of the copy; sends the copy's change."""
        received = broadcast["params"]
        step = _Step(self.task, self.lam, self.local.weight_decay)
        last = _Step(self.task, self.lam, self.local.weight_decay, self.eta)
        new = self.local.follow(
            (step,) * (self.inner - 1) + (last,),
            {"theta": received, "w": received},
            data,
            repeated(draws, self.inner),
            lr=broadcast["lr"],
            context=broadcast["lr"],
            optimizer=Optimizer(),
        )
        return {"update": trees.subtract(new["w"], received)}, kept(new["theta"], state)


@dataclass(frozen=True)
class _Step(PersonalStep):
    """A personal step; if `eta` is given, the copy's step from the new personal model after it.

    Plain descent takes `lr * d` away, so a step of another length is divided by `lr`.
    """

    lam: float
    decay: float
    eta: float = 0.0

    def completed(self, direction: Params, params: Tree, batch: Examples, context: Tree) -> Tree:
        theta, w, lr = params["theta"], params["w"], context
        direction = trees.map(
            lambda g, t, c: g + self.lam * (t - c) + self.decay * t, direction, theta, w
        )
        if not self.eta:
            return {"theta": direction, "w": trees.zeros_like(w)}
        scale = self.eta * self.lam * inverse_rate(lr)
        copy = trees.map(
            lambda c, t, d: (c - (t - lr.to(t.dtype) * d)) * scale.to(t.dtype),
            w, theta, direction,
        )  # fmt: skip
        return {"theta": direction, "w": copy}

    def late(self, correction: Params, params: Tree) -> Tree:
        """The copy's last step was towards the personal model as it now becomes."""
        moved = trees.map(lambda c: self.eta * self.lam * c, correction)
        return {"theta": correction, "w": moved}


def repeated(batches: Batches, times: int) -> Batches:
    """Every batch `times` times in a row."""

    def rows(t: Tensor) -> Tensor:
        steps, width = t.shape
        return t.unsqueeze(1).expand(steps, times, width).reshape(steps * times, width)

    return replace(batches, index=rows(batches.index), mask=rows(batches.mask))
