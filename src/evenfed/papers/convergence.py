"""Hypervolume of the clients' own fronts on validation data, round by round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenfed.core import tree as trees
from evenfed.data.dataset import FederatedDataset
from evenfed.engines.federation import EngineOptions
from evenfed.methods.base import Method
from evenfed.metrics.client import FloatArray
from evenfed.metrics.front import front_points, hypervolume
from evenfed.papers.fronts import tight
from evenfed.papers.recipe import Curve
from evenfed.runs.config import DataConfig, configured, method_table
from evenfed.runs.fronts import front_counts, grid
from evenfed.runs.result import Result
from evenfed.runs.runner import Model, Runner, Settings, Silent, build_task

MODELS = 101


@dataclass
class Watch(Silent):
    """Measures the fronts of a run after every round.

    Parameters
    ----------
    keep_best : bool
        Whether the run ends with the round whose fronts had most hypervolume; before what the
        method does after its last round.
    curve : list of (round, hypervolume)
        Mean over clients, with reference (1, 1).
    tight : list of float
        The same up to a disparity of 0.1.
    """

    keep_best: bool = False
    runner: Runner | None = None
    curve: Curve = field(default_factory=list)
    tight: list[float] = field(default_factory=list)
    best: tuple[float, Any, Any] = (-np.inf, None, None)

    def round_done(self, line: dict[str, Any]) -> None:
        """Ask all clients for their fronts, and keep the mean."""
        runner = self.runner
        assert runner is not None
        known = [p[~np.isnan(p).any(1)] for p in self.fronts(runner)]
        found = float(np.mean([hypervolume(p) for p in known]))
        self.curve.append([float(line["round"] + 1), found])
        self.tight.append(float(np.mean([tight(p) for p in known])))
        if not self.keep_best:
            return
        states = runner.federation.states
        if found > self.best[0]:
            self.best = found, runner.server, dict(states.kept)
        if line["round"] + 1 == runner.settings.rounds:
            _, runner.server, states.kept = self.best

    def fronts(self, runner: Runner) -> list[FloatArray]:
        """(error, disparity) of each client's models."""
        counts = front_counts(runner, "val", grid(MODELS), "own")
        return [front_points(trees.row(counts, k)) for k in range(len(counts.confusion))]


class WatchOne(Watch):
    """The same of a method with one model: its fronts are of one point."""

    def fronts(self, runner: Runner) -> list[FloatArray]:
        """(error, disparity) `(1, 2)` of each client."""
        return list(front_points(runner.evaluate("val").counts)[:, None])


def followed(
    method: Method,
    data: FederatedDataset,
    model: Model,
    rounds: int,
    seed: int,
    watch: Watch | None,
) -> Result:
    """Carry out a run, and measure its fronts after every round if they are watched."""
    runner = Runner(
        method, data, build_task(data, model, seed=seed),
        Settings(rounds=rounds, seed=seed, evaluate_every=0),
        engine=EngineOptions("vectorized", workers=1), observer=watch,
    )  # fmt: skip
    if watch is not None:
        watch.runner = runner
    runner.run()
    config = configured(
        method=method_table(method), data=DataConfig(name=data.schema.name), rounds=rounds,
        seed=seed, evaluate_every=0,
    )  # fmt: skip
    return Result(runner, config)
