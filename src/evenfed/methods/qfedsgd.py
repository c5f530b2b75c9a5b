"""q-FFL, solved by q-FedSGD: one full gradient of every client a round.

Li, Sanjabi, Beirami, Smith, "Fair Resource Allocation in Federated Learning" (ICLR 2020),
algorithm 1. q-FedAvg (algorithm 2) is the method `qffl`.

Minimises `sum_i a_i F_i^(q+1) / (q+1)`. With `L = 1/eta` and `g_i` the gradient of client i on all
its training data at the received model: `Delta_i = F_i^q g_i`,
`h_i = q F_i^(q-1) ||g_i||^2 + L F_i^q`, `w_{t+1} = w_t - sum Delta_i / sum h_i`. A client sends
`-eta g_i`, the change of the model by one step. The sums are unweighted where clients are sampled
by size (as published), else weighted by size.

Not as in the authors' code (fair_flearn): there the sums are unweighted however clients are
sampled, which has another objective where they are sampled uniformly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from evenfed.core.errors import ConfigError
from evenfed.core.tree import Tree
from evenfed.engines.federation import Federation
from evenfed.methods.base import EVALUATION, Reveal
from evenfed.methods.qffl import QFFL
from evenfed.methods.reporting import LOSS, one_step, one_step_advice


@dataclass(frozen=True)
class QFedSGD(QFFL):
    """q-FedSGD.

    Parameters
    ----------
    local : LocalTraining
        Its rate gives `L = 1 / local.lr`. Batch, epochs and steps are not used: a round is one
        gradient on all data.
    """

    name: ClassVar[str] = "qfedsgd"
    title: ClassVar[str] = "q-FFL (q-FedSGD)"
    reveals: ClassVar[tuple[Reveal, ...]] = (
        Reveal("train", "update", "model", "gradient on all the client's training data", False),
        LOSS,
        EVALUATION,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local.optimizer != "sgd" or self.local.clip:
            raise ConfigError(
                "qfedsgd: its step is the gradient itself; use local.optimizer='sgd' without "
                "local.clip"
            )

    @property
    def batch_hint(self) -> int:
        """All rows in one step."""
        return 0

    def advice(self, federation: Federation) -> list[str]:
        """Warn where options of local training are not used."""
        return one_step_advice(self.name, self.local, "the method qffl")

    def draw(self, generator: torch.Generator, state: Tree, size: int) -> Tree:
        """One batch with all data."""
        return one_step(self.local).draw(generator, state, size)
