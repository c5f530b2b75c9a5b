"""The data sets of SER's tables: clients, model, size of a run, rates to choose from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from evenfed.papers.recipe import Setting

MEASURED = (8, 256)
"""Clients, and training examples of each at most, for signs and curvature."""
PATHS = (0.1, 0.01)
"""Rates of the steps along which signs are counted."""


@dataclass(frozen=True)
class Case:
    """A column: data, model, size.

    `targets` are those of the global model and of models of the clients' own: four fifths of what
    FedAvg, without and with a local round, has at the best of its rates on validation data of the
    tuning seed. `plain` and `regularized` are seconds of a run, `measuring` those of its curvature.
    """

    title: str
    dataset: str
    data: dict[str, Any]
    model: dict[str, Any]
    engine: str
    rounds: int
    cohort: int
    steps: int
    rates: list[float]
    targets: tuple[float, float]
    plain: float
    regularized: float
    measuring: float
    small: dict[str, Any] = field(default_factory=lambda: {"clients": 8})
    """Options of the data in the quick version."""
    batch: int = 20
    every: int = 5
    """Rounds from one evaluation to the next, for the rounds to the target."""
    own: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Options of a method that differ from those of `BASES`."""

    def settings(self, setting: Setting, seed: int, own: bool) -> dict[str, Any]:
        """All of a job but its method; `own`: clients have models of their own."""
        quick = setting.quick
        return {
            "seed": seed, "dataset": self.dataset, "model": self.model,
            "data": {**self.data, **self.small} if quick else self.data,
            "engine": self.engine, "rounds": 2 if quick else self.rounds, "cohort": self.cohort,
            "tail": 0.1, "every": 1 if quick else self.every, "last": 0,
            "target": self.targets[own], "probes": 4 if quick else 30,
            "rows": 32 if quick else MEASURED[1], "clients": 2 if quick else MEASURED[0],
            "paths": PATHS,
            "tune": {"budget": 1 if quick else 1 + len(self.rates), "rates": self.rates},
        }  # fmt: skip

    def options(self, quick: bool) -> dict[str, Any]:
        """Options of every row."""
        return {"local.steps": 2 if quick else self.steps, "local.batch": self.batch}


CASES = {
    "femnist": Case(
        "FEMNIST, 40 writers", "femnist", {"clients": 40, "val": 0.2, "flat": True},
        {"name": "mlp", "hidden": [64]}, "vectorized", 100, 5, 10, [0.01, 0.03, 0.003],
        (0.36, 0.28), 3.0, 14.0, 1.0,
    ),
    "shakespeare": Case(
        "Shakespeare, 30 roles", "shakespeare",
        {"clients": 30, "val": 0.15, "test": 0.2, "length": 20, "stride": 10},
        {"name": "char_gru", "hidden": 32}, "vectorized", 40, 5, 5, [0.5, 1.5, 4.5, 13.5],
        (0.25, 0.21), 3.0, 10.0, 6.0, {"clients": 8, "length": 8}, every=2,
        own={"pfedme": {"lam": 1.0, "eta": 1.0}},
    ),
    "cifar10": Case(
        "CIFAR-10 (subset), 50 clients, Dirichlet(0.5)", "cifar10",
        {"clients": 50, "partition": "dirichlet:label:0.5:20", "val": 0.2},
        {"name": "cnn", "channels": [8, 16], "hidden": 32, "pool": 2}, "vectorized", 30, 5, 20,
        [0.01, 0.03, 0.3, 0.003], (0.17, 0.38), 8.0, 28.0, 8.0, batch=10, every=2,
        own={"pfedme": {"inner": 3}},
    ),
}  # fmt: skip
