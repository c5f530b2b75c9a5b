"""Who takes part in a round, who is late and who drops out: all drawn from the run's seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from evenfed.core.errors import ConfigError, refuse
from evenfed.core.randomness import numpy_generator


@dataclass(frozen=True)
class Participation:
    """How many clients take part in a round, and how they fail.

    Parameters
    ----------
    fraction : float
        Share of the clients in a round's cohort; ignored where `number` is given.
    number : int
        Clients in a round's cohort; 0 to use `fraction`.
    sampling : {"uniform", "size"}
        Without replacement; `size` draws clients with probability proportional to their examples.
    dropout : float
        Chance that a client of the cohort does not answer in a round.
    straggler : float
        Chance that a client of the cohort is late.
    late : {"drop", "partial"}
        A late client is left out, or sends what it has after a random share of its steps.
    quorum : float
        Share of the cohort that must answer (at least one client); else the round is void.
    """

    fraction: float = 1.0
    number: int = 0
    sampling: Literal["uniform", "size"] = "uniform"
    dropout: float = 0.0
    straggler: float = 0.0
    late: Literal["drop", "partial"] = "drop"
    quorum: float = 0.0

    def __post_init__(self) -> None:
        wrong = []
        if not 0 < self.fraction <= 1:
            wrong.append(f"participation.fraction must be in (0, 1], not {self.fraction}")
        if self.number < 0:
            wrong.append("participation.number must not be negative")
        wrong += [
            f"participation.{option} must be in [0, 1], not {getattr(self, option)}"
            for option in ("dropout", "straggler", "quorum")
            if not 0 <= getattr(self, option) <= 1
        ]
        if self.sampling not in ("uniform", "size"):
            wrong.append("participation.sampling may be 'uniform' or 'size'")
        if self.late not in ("drop", "partial"):
            wrong.append("participation.late may be 'drop' or 'partial'")
        if wrong:
            refuse(wrong)

    def cohort_size(self, clients: int) -> int:
        """Clients in a cohort out of `clients`."""
        if self.number > clients:
            raise ConfigError(
                f"participation.number is {self.number}, but there are only {clients} clients"
            )
        return self.number or max(1, round(self.fraction * clients))

    def share(self, clients: int) -> float:
        """Share of so many clients in a round's cohort."""
        return min(1.0, self.number / max(1, clients)) if self.number else self.fraction

    def required(self, cohort: int) -> int:
        """Clients that must answer."""
        # 0.55 * 100 is a little more than 55 in floating point
        return max(1, math.ceil(round(self.quorum * cohort, 9)))

    def sample(
        self, clients: int, sizes: NDArray[np.int64] | None, seed: int, round: int
    ) -> NDArray[np.int64]:
        """Positions `(m,)` of the cohort among `clients`, ascending. Cost grows with m alone."""
        m = self.cohort_size(clients)
        if m == clients:
            return np.arange(clients, dtype=np.int64)
        rng = numpy_generator(seed, "cohort", round)
        if self.sampling == "uniform":
            return np.sort(rng.choice(clients, size=m, replace=False, shuffle=False))
        if sizes is None:
            raise ConfigError(
                "participation.sampling='size' needs the sizes of all clients, which a lazy "
                "population does not know; use 'uniform'"
            )
        return np.sort(rng.choice(clients, size=m, replace=False, p=sizes / sizes.sum()))

    def fate(self, seed: int, round: int, key: int) -> float:
        """Share of its work that a client manages in a round: 1, a fraction if late, 0 if out."""
        if not self.dropout and not self.straggler:
            return 1.0
        rng = numpy_generator(seed, "faults", round, key)
        out, late, share = rng.random(3)
        if out < self.dropout:
            return 0.0
        if late < self.straggler:
            return 0.0 if self.late == "drop" else max(1e-9, float(share))
        return 1.0
