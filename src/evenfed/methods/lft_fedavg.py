"""LFT+FedAvg: clients train a fair model by themselves, the server averages.

Zeng, Chen, Lee, "Improving Fairness via Federated Learning" (2021), who compare FedFB with it:
local fair training (FairBatch) at each client, then FedAvg by size.

Symbols: see `evenfed.core.fairbatch`; counts, losses and factors are the client's own, the factors
stay with it. Source: the paper's text is summarised by its public code, whose slips are left out:
aggregation there drops the weight of the first client, the factors move four times an epoch, and
the two labels of a group do not add up in one branch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from evenfed.core import tree as trees
from evenfed.core.examples import Examples
from evenfed.core.fairbatch import FairBatch
from evenfed.core.tree import Tree
from evenfed.methods.base import Need, check_not_negative
from evenfed.methods.fedavg import FedAvg


@dataclass(frozen=True)
class LFTFedAvg(FedAvg):
    """LFT+FedAvg.

    Parameters
    ----------
    alpha : float
        Step of FairBatch's factors at a client; 0 is FedAvg.
    """

    name: ClassVar[str] = "lft_fedavg"
    title: ClassVar[str] = "LFT+FedAvg"
    paper: ClassVar[str] = "Zeng et al., 2021 (baseline of FedFB)"
    needs: ClassVar[tuple[Need, ...]] = ("groups", "two classes")
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"alpha": (0.01, 0.05, 0.1, 0.3, 1.0)}

    alpha: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self.name, alpha=self.alpha)

    @property
    def fairbatch(self) -> FairBatch:
        """The local debiasing."""
        return FairBatch(self.alpha)

    def client_state(self, generator: torch.Generator, size: int) -> Tree:
        """FairBatch's factors."""
        return self.fairbatch.start(self.task.groups)

    def draw(self, generator: torch.Generator, state: Tree, size: int) -> Tree:
        """The batches of each epoch."""
        return self.fairbatch.draw(self.local, generator, state, size)

    def train(
        self, broadcast: Tree, state: Tree, data: Examples, draws: Tree
    ) -> tuple[dict[str, Tree], Tree]:
        """Client function: local training with FairBatch; sends the change of the model."""
        new, state = self.fairbatch.run(
            self.local, self.task, broadcast["params"], data, draws, state, lr=broadcast["lr"]
        )
        return {"update": trees.subtract(new, broadcast["params"])}, state
