"""Hypervolume of the clients' own fronts on validation data, round by round."""

from __future__ import annotations

from typing import Any

import numpy as np

from evenfed.core import tree as trees
from evenfed.data.dataset import FederatedDataset
from evenfed.engines.federation import EngineOptions
from evenfed.methods.base import Method
from evenfed.metrics.front import front_points, hypervolume
from evenfed.papers.fronts import tight
from evenfed.papers.recipe import Curve
from evenfed.runs.fronts import front_counts, grid
from evenfed.runs.runner import Model, Runner, Settings, Silent, build_task

MODELS = 101


class _Watch(Silent):
    """Measures the fronts of a run after every round."""

    def __init__(self) -> None:
        self.runner: Runner | None = None
        self.curve: Curve = []
        self.tight: list[float] = []

    def round_done(self, line: dict[str, Any]) -> None:
        """Ask all clients for their fronts, and keep the mean."""
        assert self.runner is not None
        counts = front_counts(self.runner, "val", grid(MODELS), "own")
        fronts = [front_points(trees.row(counts, k)) for k in range(len(counts.confusion))]
        known = [p[~np.isnan(p).any(1)] for p in fronts]
        found = float(np.mean([hypervolume(p) for p in known]))
        self.curve.append([float(line["round"] + 1), found])
        self.tight.append(float(np.mean([tight(p) for p in known])))


def followed(
    method: Method, data: FederatedDataset, model: Model, rounds: int, seed: int
) -> tuple[Curve, list[float]]:
    """(round, mean over clients of the hypervolume to (1, 1)) of a run, and those up to 0.1."""
    watch = _Watch()
    settings = Settings(rounds=rounds, seed=seed, evaluate_every=0)
    engine = EngineOptions("vectorized", workers=1)
    task = build_task(data, model, seed=seed)
    watch.runner = Runner(method, data, task, settings, engine=engine, observer=watch)
    watch.runner.run()
    return watch.curve, watch.tight
