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

Where ours differs from the authors' code: only the cohort trains (there everybody does, and a
sample is averaged); no decay `mu theta` unless `local.weight_decay` asks for it (there 0.001);
clients that took no part yet use the global model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor
from torch.func import grad

from evenfed.core import tree as trees
from evenfed.core.batches import Batches
from evenfed.core.descent import Direction, descend
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.optimizer import Optimizer, inverse_rate
from evenfed.core.task import Task
from evenfed.core.tree import Tree
from evenfed.methods.personal import Personalized, kept
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
        turns: tuple[Direction, ...] = (step,) * (self.inner - 1) + (last,)
        new, _ = descend(
            turns,
            {"theta": received, "w": received},
            data,
            repeated(draws, self.inner),
            optimizer=Optimizer(),
            lr=broadcast["lr"],
            context=broadcast["lr"],
        )
        return {"update": trees.subtract(new["w"], received)}, kept(new["theta"], state)


@dataclass(frozen=True)
class _Step:
    """A personal step; if `eta` is given, the copy's step from the new personal model after it.

    Plain descent takes `lr * d` away, so a step of another length is divided by `lr`.
    """

    task: Task
    lam: float
    decay: float
    eta: float = 0.0

    def __call__(self, both: Tree, batch: Examples, lr: Tree) -> tuple[Tree, Tree]:
        theta, w = both["theta"], both["w"]
        gradient = grad(self.task.mean_loss)(theta, batch)
        direction = trees.map(
            lambda g, t, c: g + self.lam * (t - c) + self.decay * t, gradient, theta, w
        )
        if not self.eta:
            return {"theta": direction, "w": trees.zeros_like(w)}, ()
        scale = self.eta * self.lam * inverse_rate(lr)
        copy = trees.map(
            lambda c, t, d: (c - (t - lr.to(t.dtype) * d)) * scale.to(t.dtype),
            w, theta, direction,
        )  # fmt: skip
        return {"theta": direction, "w": copy}, ()


def repeated(batches: Batches, times: int) -> Batches:
    """Every batch `times` times in a row."""

    def rows(t: Tensor) -> Tensor:
        steps, width = t.shape
        return t.unsqueeze(1).expand(steps, times, width).reshape(steps * times, width)

    return Batches(rows(batches.index), rows(batches.mask))
