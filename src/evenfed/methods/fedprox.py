"""FedProx: FedAvg with a proximal term that holds clients near the received model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks"
(MLSys 2020).

Client i minimises `F_i(w) + mu/2 ||w - w_t||^2`, so a local step follows `g + mu (w - w_t)`. Late
clients may send what they have (`participation.late = "partial"`), which the paper allows for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from evenfed.core import tree as trees
from evenfed.core.examples import Examples
from evenfed.core.task import Params
from evenfed.core.tree import Tree
from evenfed.methods.base import check_not_negative
from evenfed.methods.fedavg import FedAvg
from evenfed.methods.training import Added


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedProx.

    Parameters
    ----------
    mu : float
        Strength of the proximal term; 0 is FedAvg.
    """

    name: ClassVar[str] = "fedprox"
    title: ClassVar[str] = "FedProx"
    paper: ClassVar[str] = "Li et al., MLSys 2020"
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"mu": (0.001, 0.01, 0.1, 1.0)}

    mu: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self.name, mu=self.mu)

    def proximal(self, params: Params, batch: Examples, received: Tree) -> Tensor:
        """`mu/2 ||w - w_t||^2`."""
        return 0.5 * self.mu * trees.squared_norm(trees.subtract(params, received))

    def added(self, broadcast: Tree) -> Added:
        """The proximal term, about the received model."""
        return {"term": self.proximal, "context": broadcast["params"]} if self.mu else {}
