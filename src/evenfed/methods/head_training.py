"""Training of a client's hypernetwork on preferences that a sampler chooses, step by step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad

from evenfed.core import tree as trees
from evenfed.core.batches import Batches
from evenfed.core.body import Body
from evenfed.core.descent import descend
from evenfed.core.examples import Examples
from evenfed.core.front_loss import FrontLoss
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
    """

    front: FrontLoss
    rule: Optimizer
    sampler: Sampler
    eps: float

    def __call__(self, params: Tree, batch: Examples, context: Tree) -> tuple[Tree, Tree]:
        """Old less new parameters; no extras."""
        at = params["step"].to(torch.int64)
        noise = trees.map(lambda t: t[at], context["noise"])
        asked = rays(self.sampler.preferences(params["sampler"], noise), self.eps)

        def loss(beta: Tensor) -> tuple[Tensor, Tensor]:
            return self.front.mean(self.front.hypernetwork.classifiers(beta, asked), batch, asked)

        gradient, losses = grad(loss, has_aux=True)(params["beta"])
        beta, memory = self.rule.stepped(params["beta"], gradient, params["memory"], context["lr"])
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
        new, _ = descend(
            self, start, data, batches, optimizer=Optimizer(), lr=1.0,
            context={"noise": noise, "lr": lr},
        )  # fmt: skip
        return new["beta"], new["sampler"]


def latent(body: Body, params: Params, data: Examples) -> Examples:
    """The examples with their latent features `(n, width)` in place of `x`."""
    rows = range(0, max(1, data.y.shape[0]), _ROWS)
    parts = [body.features(params, data.x[a : a + _ROWS]) for a in rows]
    return Examples(torch.cat(parts), data.y, data.group, data.mask)
