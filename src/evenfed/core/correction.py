"""SER's steps: the directions of a descent that is corrected against sign entropy.

See `regularizer` for what they are and `composed` for the steps that they are made from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import grad

from evenfed.core import tree as trees
from evenfed.core.composed import Composed
from evenfed.core.examples import Examples
from evenfed.core.noise import normal_like
from evenfed.core.optimizer import inverse_rate
from evenfed.core.sign_entropy import (
    ahead,
    entropy,
    norm,
    regularizer_gradient,
    rescaled,
    soft_sign,
    widths,
)
from evenfed.core.task import Params
from evenfed.core.tree import Tree

if TYPE_CHECKING:
    from evenfed.core.regularizer import SignEntropy

_COUNTED = 0x9E3779B1
"""Odd: distinct counts give distinct salts."""


@dataclass(frozen=True)
class Parts:
    """What all directions need. `given` is what `SignEntropy.descend` puts together."""

    objective: Composed
    options: SignEntropy
    clip: float = 0.0

    def gradient(self, params: Tree, batch: Examples, given: Tree) -> Params:
        """`g`, of the part that the batch loss trains."""
        part, context = self.objective.regarded(params, given["own"])
        return grad(self.objective.batch_loss)(part, batch, context)  # type: ignore[no-any-return]

    def regularized(
        self, params: Tree, batch: Examples, given: Tree, salt: Tensor | None
    ) -> tuple[Params, Params]:
        """`g`, and the direction in which a correction goes: `grad R`, or the control's."""
        part, context = self.objective.regarded(params, given["own"])
        at = partial(grad(self.objective.batch_loss), batch=batch, context=context)
        if salt is not None:
            return at(part), normal_like(part, salt)
        o = self.options
        return regularizer_gradient(
            at, part, given["lr"],
            kappa=o.kappa, objective=o.measure, axis=o.axis, product=o.product,
            through=o.derives_through,
        )  # fmt: skip


Step = Callable[[Tree, Tree, Examples, Tree], tuple[Tree, Tree, Tree]]
"""`(params, memory, batch, given) -> (direction, new memory, extras)`."""


@dataclass(frozen=True)
class Remembering:
    """A step that may remember something, as a direction from `(params, memory)`.

    A plain step takes `pace * d` away, so `d = (old - new) / pace` leaves the new memory. At a rate
    of zero, where a schedule may end, nothing moves.
    """

    step: Step

    def __call__(self, both: Tree, batch: Examples, given: Tree) -> tuple[Tree, Tree]:
        """Direction and change of the memory; the step's extras."""
        params, memory = both
        direction, new, extras = self.step(params, memory, batch, given)
        change = trees.map(
            lambda a, b: (a - b) * inverse_rate(given["pace"]).to(a.dtype), memory, new
        )
        return (direction, change), extras


@dataclass(frozen=True)
class Plain:
    """`g`; before a correction after the fact also its norm, as the optimizer uses it."""

    parts: Parts

    def __call__(
        self, params: Tree, memory: Tree, batch: Examples, given: Tree
    ) -> tuple[Tree, Tree, Tree]:
        """See `Step`."""
        g = self.parts.gradient(params, batch, given)
        direction = self.parts.objective.completed(g, params, batch, given["own"])
        if self.parts.options.when != "posthoc":
            return direction, memory, ()
        length = norm(g)
        if self.parts.clip:
            length = length.clamp(max=self.parts.clip)
        return direction, memory, {"norm": length}


@dataclass(frozen=True)
class Corrected:
    """`g + u`."""

    parts: Parts

    def __call__(
        self, params: Tree, memory: Tree, batch: Examples, given: Tree
    ) -> tuple[Tree, Tree, Tree]:
        """See `Step`."""
        control, salt = self.parts.options.control, None
        if control == "random":
            salt = given["salt"] + memory.round().to(torch.int64) * _COUNTED
            memory = memory + 1
        g, away = self.parts.regularized(params, batch, given, salt)
        direction = trees.add(g, rescaled(away, given["rho"] * norm(g)))
        if control == "shrink":
            direction = rescaled(g, norm(direction))
        return self.parts.objective.completed(direction, params, batch, given["own"]), memory, ()


@dataclass(frozen=True)
class Alone:
    """A corrected step that remembers nothing, as the direction of somebody else's walk."""

    step: Corrected

    def __call__(self, params: Tree, batch: Examples, given: Tree) -> tuple[Tree, Tree]:
        """`g + u`; no extras."""
        direction, _, extras = self.step(params, (), batch, given)
        return direction, extras


@dataclass(frozen=True)
class Gated:
    """`g (1 - rho h2((1 + m) / 2))`, `m` the running mean of soft signs."""

    parts: Parts

    def __call__(
        self, params: Tree, memory: Tree, batch: Examples, given: Tree
    ) -> tuple[Tree, Tree, Tree]:
        """See `Step`."""
        o = self.parts.options
        g = self.parts.gradient(params, batch, given)
        signs = trees.map(soft_sign, g, widths(g, o.kappa))
        mean = trees.map(lambda m, s: o.decay * m + (1 - o.decay) * s, memory, signs)
        direction = trees.map(
            lambda u, m: u * (1 - given["rho"].to(u.dtype) * entropy((1 + m) / 2)), g, mean
        )
        if o.control == "shrink":
            direction = rescaled(g, norm(direction))
        return self.parts.objective.completed(direction, params, batch, given["own"]), mean, ()


@dataclass(frozen=True)
class PostHoc:
    """`rho (sum_t |g_t|) grad R / |grad R|` at the end of the plain steps."""

    parts: Parts

    def __call__(self, params: Tree, batch: Examples, given: Tree) -> tuple[Tree, Tree]:
        """The correction; no extras."""
        objective, control = self.parts.objective, self.parts.options.control
        salt = given["salt"] if control == "random" else None
        _, away = self.parts.regularized(params, batch, given, salt)
        correction = rescaled(away, given["rho"] * given["path"])
        if control == "shrink":
            # w_0 + (w - w_0) |corrected update| / |update|
            update = trees.subtract(objective.regarded(params, given["own"])[0], given["start"])
            wanted = norm(ahead(update, correction, given["lr"]))
            back = trees.subtract(update, rescaled(update, wanted))
            correction = trees.map(lambda b: b * inverse_rate(given["lr"]).to(b.dtype), back)
        return objective.late(correction, params), ()
