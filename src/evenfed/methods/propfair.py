"""PropFair: proportional fairness, the product of the clients' utilities.

Zhang, Malekmohammadi, Chen, Yu, "Proportional Fairness in Federated Learning" (TMLR 2023).

Maximises `sum_i a_i log(M - F_i(w))`, `M` (`base`) a loss that everybody should stay below: a gain
counts relative to what a client has. A client minimises `-log(M - l)` of each batch's mean loss
`l`, so its gradient is scaled by `1 / (M - l)`; the server is FedAvg's. Near and above `M` the
logarithm goes on as its tangent at `M - l = epsilon`, with slope `1/epsilon`.

Not as in the authors' code by default: that has, without its switch `huber`, the slope `1/M`
beyond that point, which gives the worst batches the least weight. `beyond = "scaled"` is that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.task import Params
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.methods.base import check_choice
from evenfed.methods.fedavg import FedAvg


@dataclass(frozen=True)
class PropFair(FedAvg):
    """PropFair.

    Parameters
    ----------
    base : float
        `M`; larger is nearer to FedAvg (with a rate divided by `M`).
    epsilon : float
        Distance from `M` at which the logarithm ends.
    beyond : {"huber", "scaled"}
        Slope beyond that point: `1/epsilon`, which continues it, or `1/M`.
    """

    name: ClassVar[str] = "propfair"
    title: ClassVar[str] = "PropFair"
    paper: ClassVar[str] = "Zhang et al., TMLR 2023"
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"base": (2.0, 3.0, 4.0, 5.0)}

    base: float = 2.0
    epsilon: float = 0.2
    beyond: Literal["huber", "scaled"] = "huber"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.name, "beyond", self.beyond, ("huber", "scaled"))
        if not 0 < self.epsilon < self.base:
            raise ConfigError(
                f"{self.name}: epsilon must be between 0 and base = {self.base}, "
                f"but is {self.epsilon}"
            )

    def advice(self, federation: Federation) -> list[str]:
        """Warn where even a guess has a loss beyond the logarithm."""
        guess = math.log(max(self.task.classes, 1))
        if self.task.kind == "regression" or guess < self.base - self.epsilon:
            return []
        return [
            f"{self.name}: a guess among {self.task.classes} classes has the loss {guess:.2g}, "
            f"beyond base - epsilon = {self.base - self.epsilon:.2g}; raise base"
        ]

    def scaled(self, gradient: Params, params: Params, batch: Examples, context: Tree) -> Params:
        """`g / (M - l)`, or the slope beyond."""
        room = self.base - self.task.mean_loss(params, batch)
        beyond = 1.0 / (self.epsilon if self.beyond == "huber" else self.base)
        inside = room >= self.epsilon
        slope = torch.where(inside, 1.0 / torch.where(inside, room, 1.0), beyond)
        return trees.scale(gradient, slope)  # type: ignore[no-any-return]

    def trained(self, broadcast: Tree, data: Examples, draws: Tree) -> Params:
        """The client's model after training for the logarithm of its utility."""
        return self.local.run(
            self.task, broadcast["params"], data, draws,
            lr=broadcast["lr"], gradient=self.scaled,
        )  # fmt: skip
