"""Ditto: a personal model at every client, held near a global one.

Li, Hu, Beirami, Smith, "Ditto: Fair and Robust Federated Learning Through Personalization" (ICML
2021), Algorithm 1.

Symbols: `w_t` the global model (`params`), `v_i` the personal model of client i (its state), `w_i`
the client's copy of `w_t` after local training. The global model is FedAvg's. Beside it, on the
same batches, `v_i <- v_i - eta (grad F_i(v_i) + lambda (v_i - w_t))`, which minimises `F_i(v_i) +
lambda/2 ||v_i - w_t||^2` for the received `w_t`. Clients predict with `v_i`.

Where ours differs from the authors' code: a client that never took part uses the global model, not
the first weights; `lambda` is one number (their option to choose it anew at every step by the loss
on validation data is not there); robust means of the updates are not part of this method.
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
from evenfed.methods.personal import Personalized, kept


@dataclass(frozen=True)
class Ditto(Personalized):
    """Ditto.

    Parameters
    ----------
    lam : float
        `lambda`: pull of the personal model to the global one; 0 is local training. A step of rate
        `lr` needs `lam * lr < 2` to settle.
    """

    name: ClassVar[str] = "ditto"
    title: ClassVar[str] = "Ditto"
    paper: ClassVar[str] = "Li et al., ICML 2021"
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"lam": (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)}

    lam: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self.name, lam=self.lam)

    def pull(self, params: Params, batch: Examples, received: Tree) -> Tensor:
        """`lambda/2 ||v_i - w_t||^2`."""
        return 0.5 * self.lam * trees.squared_norm(trees.subtract(params, received))

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: trains both models on the same batches; sends the global change."""
        upload, _ = super().train(broadcast, state, data, draws)
        hooks: dict[str, Any] = {}
        if self.lam:
            hooks = {"term": self.pull, "context": broadcast["params"]}
        mine = self.local.run(self.task, state["params"], data, draws, lr=broadcast["lr"], **hooks)
        return upload, kept(mine, state)
