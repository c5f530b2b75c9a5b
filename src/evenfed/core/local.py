"""Local training as a pure function: what a client does between two exchanges."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.func import grad

from evenfed.core import tree as trees
from evenfed.core.batches import Batches, draw_batches
from evenfed.core.composed import Composed, Whole
from evenfed.core.descent import Direction, descend
from evenfed.core.entropy_sgd import EntropySGD
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.noise import draw_salts
from evenfed.core.optimizer import Optimizer
from evenfed.core.regularizer import SaltedBatches, SignEntropy
from evenfed.core.task import Params, Task
from evenfed.core.tree import Tree

Term = Callable[[Params, Examples, Tree], Tensor]
"""`(params, batch, context) -> scalar` added to the batch loss (FedProx's proximal term)."""
Weights = Callable[[Examples, Tree], Tensor]
"""`(batch, context) -> (B,)`: factors of the examples' losses (PFFL's multipliers)."""
GradientHook = Callable[[Params, Params, Examples, Tree], Params]
"""`(gradient, params, batch, context) -> gradient` (SCAFFOLD's correction)."""


@dataclass(frozen=True)
class Objective(Whole):
    """The direction of local training: gradient of the (weighted) batch loss, with hooks."""

    task: Task
    term: Term | None = None
    weights: Weights | None = None
    gradient: GradientHook | None = None

    def batch_loss(self, params: Params, batch: Examples, context: Tree) -> Tensor:
        """`sum_i w_i l_i / |batch|`; padding counts nowhere."""
        real = batch.weight
        losses = self.task.losses(self.task.outputs(params, batch.x), batch.y)
        weight = real if self.weights is None else real * self.weights(batch, context)
        return (losses * weight).sum() / real.sum().clamp(min=1)

    def loss(self, params: Params, batch: Examples, context: Tree) -> Tensor:
        """The batch loss plus the extra term."""
        total = self.batch_loss(params, batch, context)
        return total if self.term is None else total + self.term(params, batch, context)

    def completed(
        self, direction: Params, params: Params, batch: Examples, context: Tree
    ) -> Params:
        """A direction that follows from the batch loss alone, with the term's gradient and hook."""
        if self.term is not None:
            direction = trees.add(direction, grad(self.term)(params, batch, context))
        if self.gradient is not None:
            direction = self.gradient(direction, params, batch, context)
        return direction

    def __call__(self, params: Params, batch: Examples, context: Tree) -> tuple[Params, Tree]:
        """The gradient at `params`; no extras."""
        direction: Params = grad(self.loss)(params, batch, context)
        if self.gradient is not None:
            direction = self.gradient(direction, params, batch, context)
        return direction, ()


@dataclass(frozen=True)
class LocalTraining:
    """Hyperparameters of local training.

    Parameters
    ----------
    lr : float
        Rate in the first round.
    batch : int
        Examples a step; 0 is full batch.
    epochs : int
        Passes over the client's data in a round.
    steps : int
        Steps in a round instead of epochs, if greater than 0.
    optimizer : {"sgd", "adam", "entropy_sgd"}
        With fresh state in every round.
    momentum, nesterov, weight_decay, beta1, beta2, clip
        See `Optimizer`.
    entropy_sgd : EntropySGD
        Options of that optimizer.
    schedule : {"constant", "exponential", "step", "cosine"}
        Rate over rounds: `lr * decay**t`, `lr * decay**(t // decay_every)`, or half a cosine from
        `lr` to `lr * decay` over the run.
    regularizer : {"none", "ser"}
        "ser" penalises changes of the gradient's signs; the method's own terms are not counted.
    ser : SignEntropy
        Options of that regulariser.
    """

    lr: float = 0.1
    batch: int = 32
    epochs: int = 1
    steps: int = 0
    optimizer: Literal["sgd", "adam", "entropy_sgd"] = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    clip: float = 0.0
    schedule: Literal["constant", "exponential", "step", "cosine"] = "constant"
    decay: float = 1.0
    decay_every: int = 1
    regularizer: Literal["none", "ser"] = "none"
    ser: SignEntropy = field(default_factory=SignEntropy)
    entropy_sgd: EntropySGD = field(default_factory=EntropySGD)

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ConfigError(f"local.lr must be greater than 0, not {self.lr}")
        if self.batch < 0 or self.steps < 0:
            raise ConfigError("local.batch and local.steps must not be negative")
        if self.epochs < 1 and not self.steps:
            raise ConfigError("local.epochs must be at least 1 (or give local.steps)")
        if self.schedule not in ("constant", "exponential", "step", "cosine"):
            raise ConfigError(
                f"local.schedule '{self.schedule}' is unknown; it may be "
                "'constant', 'exponential', 'step' or 'cosine'"
            )
        if not self.decay >= 0 or self.decay_every < 1:
            raise ConfigError("local.decay must be >= 0 and local.decay_every >= 1")
        if self.regularizer not in ("none", "ser"):
            raise ConfigError(
                f"local.regularizer '{self.regularizer}' is unknown; it may be 'none' or 'ser'"
            )
        if self.walks:
            self._check_walks()
            return
        rule = self.rule
        if self.regularized:
            self.ser.check(rule)

    def _check_walks(self) -> None:
        if self.momentum or self.nesterov or self.clip:
            raise ConfigError(
                "local.optimizer='entropy_sgd' goes without local.momentum, local.nesterov and "
                "local.clip"
            )
        if self.regularized:
            self.ser.check_walk()
        if self.weight_decay < 0:
            raise ConfigError("weight_decay must not be negative")

    @property
    def walks(self) -> bool:
        """Whether steps are those of Entropy-SGD."""
        return self.optimizer == "entropy_sgd"

    @property
    def regularized(self) -> bool:
        """Whether the regulariser changes anything."""
        return self.regularizer == "ser" and self.ser.strength > 0

    @property
    def rule(self) -> Optimizer:
        """The optimizer without its rate, for steps that follow from one gradient each."""
        if self.optimizer == "entropy_sgd":
            raise ConfigError(
                "local.optimizer='entropy_sgd' takes walks, not steps: a method with steps of its "
                "own needs 'sgd' or 'adam'"
            )
        return Optimizer(
            self.optimizer, self.momentum, self.nesterov, self.weight_decay, self.beta1, self.beta2,
            clip=self.clip,
        )  # fmt: skip

    def rate(self, round: int, rounds: int) -> Tensor:
        """The rate of a round (counted from 0) as a scalar tensor, ready to be broadcast.

        Examples
        --------
        >>> LocalTraining(lr=1.0, schedule="step", decay=0.5, decay_every=2).rate(3, 10).item()
        0.5
        """
        factor = 1.0
        if self.schedule == "exponential":
            factor = self.decay**round
        elif self.schedule == "step":
            factor = self.decay ** (round // self.decay_every)
        elif self.schedule == "cosine":
            share = round / max(1, rounds - 1)
            factor = self.decay + (1 - self.decay) * 0.5 * (1 + math.cos(math.pi * share))
        return torch.tensor(self.lr * factor, dtype=torch.float64)

    def draw(self, generator: torch.Generator, state: Tree, size: int) -> Batches:
        """Draws of one client: its batches."""
        drawn = draw_batches(
            generator, size, batch=self.batch, epochs=self.epochs, steps=self.steps
        )
        if self.walks and self.entropy_sgd.noise:
            return SaltedBatches(drawn.index, drawn.mask, draw_salts(generator))
        return self.ser.salted(generator, drawn) if self.regularized else drawn

    def run(
        self,
        task: Task,
        params: Params,
        data: Examples,
        batches: Batches,
        *,
        lr: Tensor,
        term: Term | None = None,
        weights: Weights | None = None,
        gradient: GradientHook | None = None,
        context: Tree = (),
        strength: Tensor | None = None,
    ) -> Params:
        """Train from `params` on the client's data and return the last iterate.

        `strength`, a scalar, multiplies that of the regulariser.
        """
        new: Params = self.follow(
            Objective(task, term, weights, gradient), params, data, batches,
            lr=lr, context=context, strength=strength,
        )  # fmt: skip
        return new

    def follow(
        self,
        objective: Composed | tuple[Composed, ...],
        params: Tree,
        data: Examples,
        batches: Batches,
        *,
        lr: Tensor,
        context: Tree = (),
        optimizer: Optimizer | None = None,
        pace: Tensor | None = None,
        strength: Tensor | None = None,
    ) -> Tree:
        """Train along an objective of the method's own, or along several that take turns.

        Parameters
        ----------
        objective : Composed, or tuple of them
            The steps, in parts: the regulariser goes into each.
        optimizer : Optimizer, optional
            Of the descent, where the objective does the work of `rule` itself.
        pace : Tensor, optional
            The rate of that descent; default: `lr`.
        strength : Tensor, optional
            Scalar that multiplies that of the regulariser.
        """
        if self.walks and not isinstance(objective, tuple):
            direction: Direction = objective
            if self.regularized:
                direction, context = self.ser.corrected(
                    objective, lr=lr, context=context, factor=strength
                )
            return self.entropy_sgd.descend(
                direction, params, data, batches,
                lr=lr, weight_decay=self.weight_decay, context=context,
            )  # fmt: skip
        optimizer = optimizer or self.rule
        if self.regularized:
            return self.ser.descend(
                objective, params, data, batches,
                optimizer=optimizer, lr=lr, pace=pace, clip=self.clip, context=context,
                factor=strength,
            )  # fmt: skip
        rate = lr if pace is None else pace
        return descend(
            objective, params, data, batches, optimizer=optimizer, lr=rate, context=context
        )[0]

    def step_count(self, batches: Batches) -> Tensor:
        """Number of steps that a client really took, a float scalar."""
        return batches.mask.any(-1).to(torch.float32).sum()
