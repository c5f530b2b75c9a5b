"""Multipliers of constraints: where they live, how they climb, when their step shrinks.

`lambda` lies in `{lambda >= 0, |lambda|_1 <= B}` (with slack), or in `{|lambda|_1 = B}` (without).
Exponentiated gradient (Freund and Schapire, 1997; Agarwal et al., ICML 2018):
`lambda_z = B exp(theta_z) / (1 + sum exp(theta))`, `theta <- theta + step r`; the 1 is the slack
coordinate and is missing without slack. Projected gradient: `theta = lambda / B`, moved by
`step r` and projected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from evenfed.core.simplex import project_to_simplex
from evenfed.core.tree import Tree

Rule = Literal["exponentiated", "projected"]

_FIRST_CHECK, _CHECK_AGAIN, _PROGRESS = 5, 1.6, 0.8
"""Fairlearn's rule: looks at round 5, then each time 1.6 times later, for a fall to 0.8."""


@dataclass(frozen=True)
class Multipliers:
    """The set of multipliers and the rule by which they climb.

    Parameters
    ----------
    rule : {"exponentiated", "projected"}
    bound : float
        `B`.
    slack : bool
        Whether their sum may stay below `B`.
    """

    rule: Rule
    bound: float
    slack: bool

    def first(self, active: Tensor, shares: Tensor) -> Tensor:
        """The first `theta` `(Z,)`; `shares` are those of the examples of active cells.

        With slack, exponentiated: zero, so that all and the slack are equal. Projected: no
        multiplier. Without slack the multipliers start as the shares, which is plain training.
        """
        if self.slack:
            return torch.zeros_like(shares)
        if self.rule == "projected":
            return shares
        return torch.where(active, shares, torch.ones_like(shares)).log()

    def of(self, theta: Tensor, active: Tensor) -> Tensor:
        """`lambda` `(Z,)`; 0 for cells that are not active."""
        if self.rule == "projected":
            return self.bound * torch.where(active, theta, torch.zeros_like(theta))
        scores = torch.where(active, theta, torch.full_like(theta, -torch.inf))
        if self.slack:
            with_slack = torch.cat([torch.zeros_like(theta[:1]), scores])
            return self.bound * with_slack.softmax(0)[1:]
        # a client none of whose groups is bounded has no multiplier
        return self.bound * scores.softmax(0).nan_to_num(0.0)

    def moved(self, theta: Tensor, excess: Tensor, active: Tensor, step: Tensor | float) -> Tensor:
        """`theta` after a step along the excess `r` `(Z,)`."""
        excess = torch.where(active, excess, torch.zeros_like(excess))
        climbed = theta + step * excess
        if self.rule == "exponentiated":
            return climbed
        if self.slack:
            climbed = climbed.clamp(min=0)
            if float(climbed.sum()) <= 1:
                return climbed
        new = torch.zeros_like(theta)
        new[active] = project_to_simplex(climbed[active])
        return new


def first_climb(cells: int, step: float) -> dict[str, Tensor]:
    """What the rule for the step must remember."""
    numbers = {"step": step, "payoff": 0.0, "best": -1.0, "last": -1.0}
    return {
        **{name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()},
        "excess": torch.zeros(cells, dtype=torch.float64),
        "rounds": torch.zeros((), dtype=torch.float64),
        "checked": torch.tensor(_FIRST_CHECK, dtype=torch.float64),
    }


def climbed(
    climb: Tree,
    multipliers: Tensor,
    excess: Tensor,
    active: Tensor,
    kind: Multipliers,
    shrink: float,
) -> tuple[dict[str, Tensor], float]:
    """The memory after a round, and the regret of the multipliers so far.

    The regret is `max_lambda lambda . mean r - mean lambda_t . r_t`, the half of the saddle's gap
    that the step decides; it follows from sums that the server has anyhow. Where the smallest
    regret did not fall to 0.8 of that at the last look, the step is multiplied by `shrink`.
    """
    rounds = climb["rounds"] + 1
    total, payoff = climb["excess"] + excess, climb["payoff"] + (multipliers * excess).sum()
    largest = (total / rounds)[active].max()
    if kind.slack:
        largest = largest.clamp(min=0)
    regret = (kind.bound * largest - payoff / rounds).clamp(min=0)
    best = regret if climb["best"] < 0 else torch.minimum(regret, climb["best"])
    step, last, checked = climb["step"], climb["last"], climb["checked"]
    if rounds - 1 >= checked * _CHECK_AGAIN:
        if last >= 0 and best > _PROGRESS * last:
            step = step * shrink
        last, checked = best, rounds - 1
    memory = {
        "step": step, "payoff": payoff, "best": best, "last": last, "excess": total,
        "rounds": rounds, "checked": checked,
    }  # fmt: skip
    return memory, float(regret)
