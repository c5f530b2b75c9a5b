"""Where the preferences of a step come from: uniform ones, or those that help the front most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from evenfed.core.contribution import contributions, contributions_without
from evenfed.core.optimizer import Optimizer
from evenfed.core.preferences import beta_draws, draw_noise, score
from evenfed.core.tree import Tree


class Sampler(Protocol):
    """Where a step's preferences come from, and what it learns from their losses."""

    def draw(self, generator: torch.Generator, steps: int, n: int) -> Tree:
        """Noise for `n` preferences in each of `steps` steps, stacked on the steps' axis."""

    def preferences(self, memory: Tree, noise: Tree) -> Tensor:
        """The preferences `(N,)` of one step."""

    def updated(self, memory: Tree, preferences: Tensor, losses: Tensor) -> Tree:
        """What is remembered after a step with loss vectors `(N, 2)`."""


@dataclass(frozen=True)
class Uniform:
    """Uniform preferences; nothing is learned."""

    def draw(self, generator: torch.Generator, steps: int, n: int) -> Tree:
        """The preferences themselves."""
        return torch.rand((steps, n), generator=generator)

    def preferences(self, memory: Tree, noise: Tree) -> Tensor:
        """The preferences as drawn."""
        return noise  # type: ignore[no-any-return]

    def updated(self, memory: Tree, preferences: Tensor, losses: Tensor) -> Tree:
        """Nothing changes."""
        return memory


@dataclass(frozen=True)
class Adaptive:
    """PSA: preferences from Beta(alpha), alpha moved by the areas that they add."""

    rule: Optimizer
    rate: float
    bounds: tuple[float, ...]
    baseline: Literal["none", "leave_one_out"]

    def draw(self, generator: torch.Generator, steps: int, n: int) -> Tree:
        """Normal and uniform noise."""
        return draw_noise(generator, steps, n)

    def preferences(self, memory: Tree, noise: Tree) -> Tensor:
        """Draws from the current distribution."""
        return beta_draws(memory["alpha"], noise)

    def updated(self, memory: Tree, preferences: Tensor, losses: Tensor) -> Tree:
        """One step on alpha; the reference is the largest loss so far in this round, at least 1."""
        reference = torch.maximum(memory["reference"].to(losses.dtype), losses.amax(0))
        value = contributions(losses, reference)
        if self.baseline == "leave_one_out":
            value = value - contributions_without(losses, reference)
        alpha = memory["alpha"]
        gradient = -(value.unsqueeze(-1) * score(alpha, preferences)).mean(0)  # Eq. 13
        gradient, reference = gradient.to(alpha.dtype), reference.to(alpha.dtype)
        rate = torch.full((), self.rate, dtype=alpha.dtype, device=alpha.device)
        new, kept = self.rule.stepped(alpha, gradient, memory["optimizer"], rate)  # Eq. 14
        low, high = self.bounds
        return {"alpha": new.clamp(low, high), "optimizer": kept, "reference": reference}
