"""Local training in two phases: the body at one preference, then the hypernetwork at many."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad

from evenfed.core import tree as trees
from evenfed.core.batches import Batches, draw_batches
from evenfed.core.body import Body
from evenfed.core.descent import descend
from evenfed.core.examples import Examples
from evenfed.core.front_loss import FrontLoss
from evenfed.core.local import LocalTraining
from evenfed.core.optimizer import Optimizer
from evenfed.core.preferences import rays
from evenfed.core.task import Params
from evenfed.core.tree import Tree
from evenfed.methods.sampling import Sampler

_ROWS = 1024
"""Rows in one pass through a body: bounds its memory."""


@dataclass(frozen=True)
class BodyStep:
    """Direction of a body: the performance loss of one fixed classifier (Eq. 11)."""

    body: Body
    front: FrontLoss

    def loss(self, params: Params, batch: Examples, layers: Tree) -> Tensor:
        """Mean performance loss of a batch."""
        outputs = self.front.outputs(layers, self.body.features(params, batch.x))[0]
        weight = batch.weight
        losses = self.front.rule(outputs, batch.y)
        return (losses * weight).sum() / weight.sum().clamp(min=1)

    def __call__(self, params: Params, batch: Examples, layers: Tree) -> tuple[Params, Tree]:
        """The gradient; no extras."""
        return grad(self.loss)(params, batch, layers), ()


@dataclass(frozen=True)
class HeadStep:
    """Direction of a hypernetwork: the mean scalar loss over a step's preferences (Eq. 12).

    It steps by itself: the parameters hold `beta` with the optimizer's and the sampler's memory and
    the number of the step, and the direction is what they change by, for plain SGD of rate 1.
    Losses are computed in float64: models of like preferences differ little, and the areas that a
    sampler learns from are products of these differences.
    """

    front: FrontLoss
    rule: Optimizer
    sampler: Sampler
    eps: float

    def __call__(self, params: Tree, batch: Examples, context: Tree) -> tuple[Tree, Tree]:
        """Old less new parameters; no extras."""
        at = params["step"].to(torch.int64)
        noise = trees.map(lambda t: t[at], context["noise"])
        drawn = self.sampler.preferences(params["sampler"], noise)
        asked = rays(drawn.to(torch.float64), self.eps)

        def loss(beta: Tensor) -> tuple[Tensor, Tensor]:
            return self.front.mean(self.front.hypernetwork.classifiers(beta, asked), batch, asked)

        old = params["beta"]
        gradient, losses = grad(loss, has_aux=True)(old.to(torch.float64))
        beta, memory = self.rule.stepped(
            old, gradient.to(old.dtype), params["memory"], context["lr"]
        )
        sampler = self.sampler.updated(params["sampler"], asked[:, 0], losses.detach())
        new = {"beta": beta, "memory": memory, "sampler": sampler, "step": params["step"] + 1}
        return trees.subtract(params, new), ()

    def trained(
        self, beta: Tensor, memory: Tree, data: Examples, batches: Batches, noise: Tree, lr: Tensor
    ) -> tuple[Tensor, Tree]:
        """`beta` and the sampler's memory after the steps; `data.x` holds latent features."""
        start = {
            "beta": beta,
            "memory": self.rule.memory(beta),
            "sampler": memory,
            "step": beta.new_zeros(()),
        }
        exact = Examples(data.x.to(torch.float64), data.y, data.group, data.mask)
        new, _ = descend(
            self, start, exact, batches, optimizer=Optimizer(), lr=1.0,
            context={"noise": noise, "lr": lr},
        )  # fmt: skip
        return new["beta"], new["sampler"]


def latent(body: Body, params: Params, data: Examples) -> Examples:
    """The examples with their latent features `(n, width)` in place of `x`."""
    rows = range(0, max(1, data.y.shape[0]), _ROWS)
    parts = [body.features(params, data.x[a : a + _ROWS]) for a in rows]
    return Examples(torch.cat(parts), data.y, data.group, data.mask)


@dataclass(frozen=True)
class Phases:
    """A client's local training: `share` of its epochs (or steps) for the body, then the head.

    Parameters
    ----------
    n : int
        Preferences of a step of the head.
    eps : float
        Distance of rays from the ends.
    """

    body: Body
    front: FrontLoss
    local: LocalTraining
    sampler: Sampler
    share: float
    n: int
    eps: float

    def draw(self, generator: torch.Generator, size: int) -> dict[str, Tree]:
        """The batches of both phases, at least one epoch each, and noise for the preferences."""
        total = self.local.steps or self.local.epochs
        body = max(1, round(total * self.share))
        batches = self._batches(generator, size, body)
        return {"body": batches, **self.draw_head(generator, size, max(1, total - body))}

    def draw_head(self, generator: torch.Generator, size: int, amount: int) -> dict[str, Tree]:
        """The same for the head alone."""
        batches = self._batches(generator, size, amount)
        return {"head": batches, "noise": self.sampler.draw(generator, batches.steps, self.n)}

    def _batches(self, generator: torch.Generator, size: int, amount: int) -> Batches:
        steps = amount if self.local.steps else 0
        return draw_batches(generator, size, batch=self.local.batch, epochs=amount, steps=steps)

    def trained_body(
        self, params: Params, beta: Tensor, data: Examples, draws: Tree, lr: Tensor
    ) -> Params:
        """The body after its phase, behind which the classifier of p = 1/2 stays as it is."""
        half = torch.full((1,), 0.5, dtype=beta.dtype, device=beta.device)
        layers = self.front.hypernetwork.classifiers(beta, rays(half, self.eps))
        new, _ = descend(
            BodyStep(self.body, self.front), params, data, draws["body"],
            optimizer=self.local.rule, lr=lr, context=layers,
        )  # fmt: skip
        return new  # type: ignore[no-any-return]

    def trained_head(
        self, params: Params, beta: Tensor, memory: Tree, data: Examples, draws: Tree, lr: Tensor
    ) -> tuple[Tensor, Tree]:
        """`beta` and the sampler's memory after the head's phase, behind a body that stays."""
        step = HeadStep(self.front, self.local.rule, self.sampler, self.eps)
        features = latent(self.body, params, data)
        return step.trained(beta, memory, features, draws["head"], draws["noise"], lr)
