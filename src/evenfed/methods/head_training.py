"""Local training in two phases: the body at one preference, then the hypernetwork at many."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.func import grad

from evenfed.core import tree as trees
from evenfed.core.batches import Batches
from evenfed.core.body import Body
from evenfed.core.composed import Whole
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
class BodyStep(Whole):
    """Direction of a body: the performance loss of one fixed classifier (Eq. 11)."""

    body: Body
    front: FrontLoss

    def batch_loss(self, part: Params, batch: Examples, context: Tree) -> Tensor:
        """Mean performance loss of a batch; the context is the classifier."""
        outputs = self.front.outputs(context, self.body.features(part, batch.x))[0]
        weight = batch.weight
        losses = self.front.rule(outputs, batch.y)
        return (losses * weight).sum() / weight.sum().clamp(min=1)

    def __call__(self, params: Params, batch: Examples, layers: Tree) -> tuple[Params, Tree]:
        """The gradient; no extras."""
        return grad(self.batch_loss)(params, batch, layers), ()


@dataclass(frozen=True)
class HeadStep(Whole):
    """Direction of a hypernetwork: the mean scalar loss over a step's preferences (Eq. 12).

    It steps by itself: the parameters hold `beta` with the optimizer's and the sampler's memory and
    the number of the step, and the direction is what they change by, for plain SGD of rate 1.
    Losses are computed in float64: models of like preferences differ little, and the areas that a
    sampler learns from are products of these differences.

    A regulariser sees `beta` and the loss of the step's own preferences, which are the same at its
    look-ahead point; the sampler learns from the losses at `beta` itself. A correction after the
    fact is for the preferences of the first step's noise.
    """

    front: FrontLoss
    rule: Optimizer
    sampler: Sampler
    eps: float

    def __call__(self, params: Tree, batch: Examples, context: Tree) -> tuple[Tree, Tree]:
        """Old less new parameters; no extras."""
        beta, asked = self.regarded(params, context)
        gradient, losses = grad(self._losses, has_aux=True)(beta, batch, asked)
        return self._moved(gradient, losses, asked, params, context), ()

    def regarded(self, params: Tree, context: Tree) -> tuple[Tensor, Tensor]:
        """`beta`, and the rays `(N, 2)` of the step."""
        at = params["step"].to(torch.int64)
        noise = trees.map(lambda t: t[at], context["noise"])
        drawn = self.sampler.preferences(params["sampler"], noise)
        return params["beta"].to(torch.float64), rays(drawn.to(torch.float64), self.eps)

    def batch_loss(self, part: Tensor, batch: Examples, context: Tensor) -> Tensor:
        """The mean scalar loss over rays."""
        return self._losses(part, batch, context)[0]

    def completed(self, direction: Tensor, params: Tree, batch: Examples, context: Tree) -> Tree:
        """Old less new parameters after a step of the rule along a direction of `beta`."""
        beta, asked = self.regarded(params, context)
        losses = self._losses(beta, batch, asked)[1]
        return self._moved(direction, losses, asked, params, context)

    def afterwards(self, params: Tree) -> Tree:
        """Back at the first step's noise."""
        return {**params, "step": torch.zeros_like(params["step"])}

    def late(self, correction: Tensor, params: Tree) -> Tree:
        """Of `beta` alone."""
        return {**trees.zeros_like(params), "beta": correction.to(params["beta"].dtype)}

    def _losses(self, beta: Tensor, batch: Examples, asked: Tensor) -> tuple[Tensor, Tensor]:
        return self.front.mean(self.front.hypernetwork.classifiers(beta, asked), batch, asked)

    def _moved(
        self, gradient: Tensor, losses: Tensor, asked: Tensor, params: Tree, context: Tree
    ) -> Tree:
        old = params["beta"]
        beta, memory = self.rule.stepped(
            old, gradient.to(old.dtype), params["memory"], context["lr"]
        )
        sampler = self.sampler.updated(params["sampler"], asked[:, 0], losses.detach())
        new = {"beta": beta, "memory": memory, "sampler": sampler, "step": params["step"] + 1}
        return trees.subtract(params, new)

    def trained(
        self,
        local: LocalTraining,
        beta: Tensor,
        memory: Tree,
        data: Examples,
        batches: Batches,
        noise: Tree,
        lr: Tensor,
    ) -> tuple[Tensor, Tree]:
        """`beta` and the sampler's memory after the steps; `data.x` holds latent features."""
        start = {
            "beta": beta,
            "memory": self.rule.memory(beta),
            "sampler": memory,
            "step": beta.new_zeros(()),
        }
        exact = Examples(data.x.to(torch.float64), data.y, data.group, data.mask)
        new = local.follow(
            self, start, exact, batches, lr=lr, optimizer=Optimizer(),
            pace=torch.ones((), dtype=torch.float64), context={"noise": noise, "lr": lr},
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
        return replace(self.local, epochs=amount, steps=steps).draw(generator, (), size)

    def trained_body(
        self, params: Params, beta: Tensor, data: Examples, draws: Tree, lr: Tensor
    ) -> Params:
        """The body after its phase, behind which the classifier of p = 1/2 stays as it is."""
        half = torch.full((1,), 0.5, dtype=beta.dtype, device=beta.device)
        layers = self.front.hypernetwork.classifiers(beta, rays(half, self.eps))
        step = BodyStep(self.body, self.front)
        new: Params = self.local.follow(step, params, data, draws["body"], lr=lr, context=layers)
        return new

    def trained_head(
        self, params: Params, beta: Tensor, memory: Tree, data: Examples, draws: Tree, lr: Tensor
    ) -> tuple[Tensor, Tree]:
        """`beta` and the sampler's memory after the head's phase, behind a body that stays."""
        step = HeadStep(self.front, self.local.rule, self.sampler, self.eps)
        features = latent(self.body, params, data)
        return step.trained(self.local, beta, memory, features, draws["head"], draws["noise"], lr)
