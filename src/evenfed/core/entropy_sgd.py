"""Entropy-SGD: local training that follows the mean of a short noisy walk around the weights.

Chaudhari, Choromanska, Soatto, LeCun, Baldassi, Borgs, Chayes, Sagun, Zecchina, "Entropy-SGD:
Biasing Gradient Descent Into Wide Valleys" (ICLR 2017).

Symbols: `x` the weights, `x'` the walk, `mu` its running mean, `eta'` the rate of the walk
(`local.lr`), `eta` the rate of the weights (`rate`). A walk starts at `x' = mu = x` and takes `L`
steps, each on a batch of its own, with `N` standard normal: `x' <- x' - eta' (g(x') + gamma (x' -
x)) + eps sqrt(2 eta') N`, `mu <- a mu + (1 - a) x'`. Then `x <- x - eta (x - mu)`, and the next
walk begins. `gamma = gamma_0 (1 + scoping)^t` after `t` walks of the round. A walk that the last
batch cuts short counts as it is, so a client with fewer than `L` batches learns too.

The noise and the step of the weights are those of the authors' public code (the factor `gamma` of
the local entropy's gradient is left to `rate`). On purpose not there: Nesterov's momentum, which
that code has in both loops, and a count of walks over the whole run, which a client that only sees
its own round does not have. Weight decay acts on the walk. As local training with as many gradients
as SGD takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.batches import Batches
from evenfed.core.descent import Direction, descend
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.noise import normal_like
from evenfed.core.optimizer import Optimizer, inverse_rate
from evenfed.core.regularizer import SaltedBatches
from evenfed.core.task import Params
from evenfed.core.tree import Tree

_COUNTED = 0x9E3779B1
"""Odd: distinct counts of steps give distinct salts."""


@dataclass(frozen=True)
class EntropySGD:
    """Options of Entropy-SGD.

    Parameters
    ----------
    walk : int
        `L`: steps of a walk; 1 without noise is SGD with the rate `rate (1 - decay) lr`.
    gamma, scoping : float
        Pull of the walk back to the weights, and its growth from walk to walk.
    noise : float
        `eps`.
    decay : float
        What the running mean keeps at every step, `a`.
    rate : float
        `eta`: 1 moves the weights to the mean.
    """

    walk: int = 5
    gamma: float = 1e-4
    scoping: float = 1e-3
    noise: float = 1e-4
    decay: float = 0.75
    rate: float = 1.0

    def __post_init__(self) -> None:
        if self.walk < 1 or not 0 <= self.decay < 1 or not self.rate > 0:
            raise ConfigError(
                "local.entropy_sgd: walk must be at least 1, decay in [0, 1), rate greater than 0"
            )
        if min(self.gamma, self.scoping, self.noise) < 0:
            raise ConfigError("local.entropy_sgd: gamma, scoping and noise must not be negative")

    def descend(
        self,
        objective: Direction,
        params: Params,
        data: Examples,
        batches: Batches,
        *,
        lr: Tensor,
        weight_decay: float = 0.0,
        context: Tree = (),
    ) -> Params:
        """Take the steps of `batches`, drawn with a salt, as walks from `params`."""
        given = {"own": context, "lr": lr}
        if self.noise:
            if not isinstance(batches, SaltedBatches):
                raise ConfigError(
                    "local.optimizer='entropy_sgd' needs batches drawn by local training's own "
                    "`draw`"
                )
            given["salt"] = batches.salt
        step = _Step(objective, self, weight_decay)
        last = _Step(objective, self, weight_decay, ends=True)
        count = torch.zeros((), device=data.mask.device)
        (x, _, mu, _), _ = descend(
            (step,) * (self.walk - 1) + (last,),
            (params, params, params, count),
            data,
            batches,
            optimizer=Optimizer(),
            lr=lr,
            context=given,
        )
        return self.moved(x, mu)

    def moved(self, x: Params, mu: Params) -> Params:
        """`x - eta (x - mu)`: where a walk ended as it should, `mu = x` and nothing changes."""
        return trees.map(  # type: ignore[no-any-return]
            lambda x, m: x - self.rate * (x - m), x, mu
        )


@dataclass(frozen=True)
class _Step:
    """A step of the walk, from `(x, x', mu, count)`; the last one of a walk moves the weights too.

    Plain descent takes `lr * d` away, so `d = (old - new) / lr` leaves the new values.
    """

    objective: Direction
    options: EntropySGD
    weight_decay: float
    ends: bool = False

    def __call__(self, all_four: Tree, batch: Examples, given: Tree) -> tuple[Tree, Tree]:
        o = self.options
        x, walk, mu, count = all_four
        gradient, _ = self.objective(walk, batch, given["own"])
        gamma = o.gamma * (1 + o.scoping) ** torch.floor((count + 0.5) / o.walk)
        lr = given["lr"].to(count.dtype)
        away = trees.map(
            lambda g, w, at: g + gamma.to(g.dtype) * (w - at) + self.weight_decay * w,
            gradient, walk, x,
        )  # fmt: skip
        if o.noise:
            salt = given["salt"] + count.round().to(torch.int64) * _COUNTED
            # eta' * (eps sqrt(2 / eta')) = eps sqrt(2 eta')
            spread = o.noise * torch.sqrt(2 * inverse_rate(lr))
            away = trees.map(lambda a, n: a + spread.to(a.dtype) * n, away, normal_like(x, salt))

        def left(old: Tree, new: Tree) -> Tree:
            return trees.map(lambda a, b: (a - b) * inverse_rate(lr).to(a.dtype), old, new)

        new = trees.map(lambda w, a: w - lr.to(w.dtype) * a, walk, away)
        mean = trees.map(lambda m, w: o.decay * m + (1 - o.decay) * w, mu, new)
        at = o.moved(x, mean) if self.ends else x
        if self.ends:
            away, mean = left(walk, at), at
        return (left(x, at), away, left(mu, mean), left(count, count + 1)), ()
