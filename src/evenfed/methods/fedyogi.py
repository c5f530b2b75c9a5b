"""FedYogi: Yogi at the server, with the mean change of the model as its gradient.

Reddi et al., "Adaptive Federated Optimization" (ICLR 2021), Algorithm 2.

As FedAdam but for the second moment, `v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)`, which moves
by no more than `Delta^2`, however large `v` is: rounds with small changes shrink it slowly. As
FedAdam, it starts from `v = tau^2` and corrects nothing, where the authors' code takes
TensorFlow's optimiser with its own start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from evenfed.methods.fedadam import FedAdam


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """FedYogi; options as FedAdam's."""

    name: ClassVar[str] = "fedyogi"
    title: ClassVar[str] = "FedYogi"

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """`v` after a round whose squared mean change is `square`."""
        return v - (1 - self.beta2) * square * (v - square).sign()
