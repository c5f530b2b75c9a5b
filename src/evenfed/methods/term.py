"""TERM: the tilted loss over clients.

Li, Beirami, Sanjabi, Smith, "Tilted Empirical Risk Minimization" (ICLR 2021), applied to clients.

Minimises `(1/t) log sum_i a_i exp(t F_i(w))`. Its gradient is `sum_i p_i grad F_i` with `p_i`
proportional to `a_i exp(t F_i)`; with several local steps `p_i` weighs the change of the model at
client i. `t = 0` is FedAvg, a large t comes near to the worst client alone, and t below 0 gives
clients with large losses less weight, against outliers. With `tau = 1/t` these are EBA's weights.

Not as in the authors' federated code: that estimates the sum `Z` of the weights by a running mean
over rounds (which mixes rounds whose exponents were shifted by different largest losses) and
divides by the size of the cohort twice, so that steps shrink with it. Here weights are those of
the round, normalised.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.engines.federation import Federation
from evenfed.methods.base import EVALUATION, Reveal, Server
from evenfed.methods.reporting import LOSS, SINGLE, ReportsLoss
from evenfed.methods.tilting import Tilting


@dataclass(frozen=True)
class TERM(ReportsLoss):
    """TERM between clients.

    Parameters
    ----------
    t : float
        The tilt; 0 is FedAvg, positive favours clients with large losses, negative the others.
    """

    name: ClassVar[str] = "term"
    title: ClassVar[str] = "TERM"
    paper: ClassVar[str] = "Li et al., ICLR 2021"
    reveals: ClassVar[tuple[Reveal, ...]] = (SINGLE, LOSS, EVALUATION)
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"t": (0.01, 0.1, 0.5, 0.8, 1.0, 10.0)}

    t: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isfinite(self.t):
            raise ConfigError(f"{self.name}: t must be finite, but is {self.t}")

    def round(self, federation: Federation, server: Server) -> Server:
        """One exchange: train, average with tilted weights."""
        answer = Tilting(1.0 / self.t if self.t else math.inf).exchange(
            federation,
            self.train,
            self.broadcast(federation, server),
            draws=self.draw,
            prior=self.weights(federation),
        )
        return {"params": trees.add(server["params"], answer.value["update"], self.server_lr)}
