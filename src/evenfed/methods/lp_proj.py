"""lp-proj: personal models whose projections to few dimensions agree with a shared vector.

Lin, Han, Li, Zhang, "Personalized Federated Learning towards Communication Efficiency, Robustness
and Fairness" (NeurIPS 2022).

Symbols: `theta_i` the personal model of client i (its state, `d` numbers), `P` a fixed random
matrix `(dim, d)` whose rows have norm 1, `w` the shared vector (`dim` numbers), `w_i` the client's
copy of it, `c = w_i - P theta_i`. Objective: `sum_i F_i(theta_i) + lambda ||w - P theta_i||_p`. In
a round, with `u(c) = sign(c) (|c| / ||c||_p)^(p-1)`, the gradient of the norm: `theta_i <- theta_i
- lr (grad F_i(theta_i) - lambda P' u(c))`, and after every `inner` such steps `w_i <- w_i - eta
lambda u(c)`. Server: `w <- (1 - beta) w + beta mean_i w_i`; `beta` is `server_lr`.
`penalty="square"` has `lambda/2 ||c||_2^2` instead, `u(c) = c`: the smooth case of the paper's
theory.

With `local.regularizer` the personal steps are corrected, `theta_i <- theta_i - lr (g + v - lambda
P' u(c))`, `v` the correction: it sees `F_i` alone, not the agreement. A correction after the fact
moves `theta_i` at the end of the round; the shared vector feels it from the next round on, in which
`theta_i` goes on.

`P` is never sent: everybody draws it from the seed of the run. The personal model goes on from
round to round, so a client that never took part has the first weights.

Where ours differs from the authors' code: its personal step leaves out the division by `||c||_p`,
which matters for p > 1 only; there everybody trains and a sample is averaged, here only the cohort
trains. Defaults of `lam` and `eta` are ours: 15 and 0.1, the code's, move the projection by
1.5 a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.optimizer import Optimizer, inverse_rate
from evenfed.core.randomness import generator as generator_for
from evenfed.core.task import Params
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.methods.base import EVALUATION, Reveal, Server, check_choice
from evenfed.methods.fedavg import FedAvg
from evenfed.methods.personal import PersonalStep
from evenfed.methods.training import check_plain_steps


@dataclass(frozen=True)
class LpProj(FedAvg):
    """lp-proj.

    Parameters
    ----------
    local : LocalTraining
        Its rate is that of the personal steps; the paper's local rounds are its batches, each with
        `inner` personal steps, every one on a batch of its own.
    lam : float
        `lambda`: strength of the agreement.
    p : int
        Of the norm; 1 also keeps odd clients from pulling far.
    dim : int
        Numbers that are shared.
    eta : float
        Rate of the client's copy of the shared vector.
    inner : int
        Personal steps before each step of that copy.
    penalty : {"norm", "square"}
    server_lr : float
        `beta`.
    """

    name: ClassVar[str] = "lp_proj"
    title: ClassVar[str] = "lp-proj"
    paper: ClassVar[str] = "Lin et al., NeurIPS 2022"
    personal: ClassVar[bool] = True
    reveals: ClassVar[tuple[Reveal, ...]] = (
        Reveal("train", "shared", "part", "change of a few numbers that are shared", True),
        EVALUATION,
    )
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {
        "lam": (0.01, 0.1, 1.0, 5.0, 15.0),
        "dim": (10, 100),
        "p": (1, 2),
    }

    lam: float = 0.1
    p: int = 1
    dim: int = 10
    eta: float = 0.1
    inner: int = 5
    penalty: Literal["norm", "square"] = "norm"
    weighting: Literal["auto", "size", "uniform"] = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.name, "penalty", self.penalty, ("norm", "square"))
        if not self.lam >= 0 or not self.eta > 0 or min(self.p, self.dim, self.inner) < 1:
            raise ConfigError(
                f"{self.name}: lam must not be negative, eta must be greater than 0, and p, dim "
                "and inner at least 1"
            )
        check_plain_steps(self.name, self.local)

    @cached_property
    def projection(self) -> Tensor:
        """`P` `(dim, d)`."""
        count = sum(p.numel() for p in trees.leaves(self.first))
        drawn = torch.randn(
            self.dim, count, generator=generator_for(self.task.seed, "projection")
        ).to(self.task.device)
        lengths: Tensor = torch.linalg.vector_norm(drawn, dim=1, keepdim=True)
        return drawn / lengths

    def advice(self, federation: Federation) -> list[str]:
        """Warn where the projection saves nothing."""
        count = self.projection.shape[1]
        if self.dim < count:
            return []
        return [f"lp_proj shares dim={self.dim} numbers, but the model has only {count}"]

    def start(self, federation: Federation) -> Server:
        """A shared vector of zeros."""
        return {"shared": self.projection.new_zeros(self.dim)}

    def client_state(self, generator: torch.Generator, size: int) -> Tree:
        """The first weights, the same for all clients."""
        return {"params": self.first}

    def broadcast(self, federation: Federation, server: Server) -> dict[str, Tree]:
        """The shared vector and the round's rate."""
        rate = self.local.rate(federation.round, federation.rounds)
        return {"shared": server["shared"], "lr": rate}

    def draw(self, generator: torch.Generator, state: Tree, size: int) -> Tree:
        """`inner` batches for each one that local training would draw."""
        batch, epochs = self.local.batch, self.local.epochs
        count = self.local.steps or epochs * (math.ceil(size / batch) if batch else 1)
        return replace(self.local, steps=count * self.inner).draw(generator, state, size)

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: trains the personal model; sends the change of the shared vector."""
        power = self.p if self.penalty == "norm" else 0
        plain = _Step(self.task, self.lam, power, self.local.weight_decay)
        last = replace(plain, eta=self.eta)
        new = self.local.follow(
            (plain,) * (self.inner - 1) + (last,),
            {"theta": state["params"], "w": broadcast["shared"]},
            data,
            draws,
            lr=broadcast["lr"],
            context={"lr": broadcast["lr"], "projection": self.projection},
            optimizer=Optimizer(),
        )
        return {"shared": new["w"] - broadcast["shared"]}, {"params": new["theta"]}

    def round(self, federation: Federation, server: Server) -> Server:
        """One exchange: train, average the shared vector."""
        mean = federation.mean(
            self.train,
            self.broadcast(federation, server),
            weights=self.weights(federation),
            draws=self.draw,
        )
        return {"shared": server["shared"] + self.server_lr * mean.value["shared"]}

    def deployed(self, server: Server) -> Tree:
        """Nothing that a prediction needs: the shared vector."""
        return server["shared"]

    def parameters(self, deployed: Tree, state: Tree) -> Params:
        """The client's own model."""
        return state["params"]  # type: ignore[no-any-return]


def flat(params: Params) -> Tensor:
    """All weights as one vector, in a fixed order."""
    return torch.cat([leaf.reshape(-1) for leaf in trees.leaves(params)])


@dataclass(frozen=True)
class _Step(PersonalStep):
    """A personal step; if `eta` is given, the step of the shared vector after it."""

    lam: float
    p: int
    """0: the squared norm."""
    decay: float
    eta: float = 0.0

    def agreement(self, c: Tensor) -> Tensor:
        """`u(c)`, the gradient of the penalty at `c` (of `||c||_2^2 / 2` for the square)."""
        if self.p == 0:
            return c
        if self.p == 1:
            return c.sign()
        length = c.abs().pow(self.p).sum().pow(1 / self.p).clamp(min=torch.finfo(c.dtype).tiny)
        return c.sign() * (c.abs() / length) ** (self.p - 1)

    def completed(self, direction: Params, params: Tree, batch: Examples, context: Tree) -> Tree:
        theta, w, matrix = params["theta"], params["w"], context["projection"]
        back = matrix.T @ self.agreement(w - matrix @ flat(theta))
        sizes = [leaf.numel() for leaf in trees.leaves(theta)]
        leaves, structure = trees.flatten(theta)
        pulls = trees.unflatten(
            [b.view(t.shape) for b, t in zip(back.split(sizes), leaves, strict=True)], structure
        )
        direction = trees.map(
            lambda g, b, t: g - self.lam * b + self.decay * t, direction, pulls, theta
        )
        if not self.eta:
            return {"theta": direction, "w": torch.zeros_like(w)}
        lr = context["lr"].to(w.dtype)
        ahead = trees.map(lambda t, d: t - lr * d, theta, direction)
        u = self.agreement(w - matrix @ flat(ahead))
        return {"theta": direction, "w": u * (self.eta * self.lam * inverse_rate(lr))}

    def late(self, correction: Params, params: Tree) -> Tree:
        return {"theta": correction, "w": torch.zeros_like(params["w"])}
