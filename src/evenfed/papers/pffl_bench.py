"""The runs behind PFFL's figures: one dataset and seed, and where bounds on losses can lie."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

from evenfed.core.local import LocalTraining
from evenfed.data.dataset import Split
from evenfed.data.registry import load
from evenfed.engines.federation import EngineOptions
from evenfed.methods.base import Method
from evenfed.methods.certificate import Certify
from evenfed.methods.group_weighted import GroupWeighted
from evenfed.methods.pffl import PFFL
from evenfed.methods.registry import build
from evenfed.methods.saddle import LeastExcess, Saddle
from evenfed.runs.result import Result
from evenfed.runs.train import train

Kind = Literal["bounded_group_loss", "conditional_bounded_group_loss"]
PLACES = {"1_4": 0.25, "1_2": 0.5, "3_4": 0.75}
"""Of the bound, between the minimax value (0) and FedAvg's largest group loss (1)."""
_MANY = 500_000
"""Training rows from which clients are computed one at a time."""
SHARED = ("dataset", "data", "seed", "rounds", "rate", "steps", "lambda_bound")
"""Settings that jobs have in common which share data and the methods without bounds."""


@lru_cache(maxsize=5)
def _shared(text: str) -> Bench:
    return Bench(json.loads(text))


def bench_of(settings: dict[str, Any]) -> Bench:
    """The bench of a job, which is that of one before where nothing it has differs."""
    return _shared(json.dumps({key: settings[key] for key in SHARED}, sort_keys=True))


class Bench:
    """Runs of one dataset and one seed: logistic regression."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.data = load(settings["dataset"], seed=settings["seed"], **settings["data"])
        self.local = LocalTraining(lr=settings["rate"], batch=0, epochs=settings["steps"])
        sizes = self.data.sizes()
        # many rows of one client fill the machine's bandwidth by themselves
        stacked = sizes is None or int(sizes.sum()) < _MANY
        self.engine = EngineOptions("vectorized" if stacked else "sequential", workers=1)

    def train(self, method: Method, rounds: int | None = None) -> Result:
        """A finished run, with the rounds of the settings unless others are given."""
        return train(
            method, self.data, rounds=rounds or self.settings["rounds"],
            seed=self.settings["seed"], model="logistic", evaluate_every=0,
            engine=self.engine,
        )  # fmt: skip

    @cached_property
    def fedavg(self) -> Result:
        """FedAvg, whose losses bounds are chosen by."""
        return self.named("fedavg")

    @cached_property
    def weighted(self) -> Result:
        """FedAvg with every group's weight the same."""
        return self.train(GroupWeighted(local=self.local))

    def named(self, name: str, **options: Any) -> Result:
        """A finished run of a method by name; FCFL takes no local steps."""
        steps = {} if name == "fcfl" else {"epochs": self.settings["steps"], "batch": 0}
        return self.train(build(name, {"lr": self.settings["rate"], **steps, **options}))

    def bounded(self, kind: Kind, labels: tuple[int, ...], zeta: float, **more: Any) -> PFFL:
        """PFFL with a bound on the losses of groups."""
        return PFFL(
            constraint=kind, labels=labels, zeta=zeta, weighting="size", iterate="tail",
            lambda_bound=self.settings["lambda_bound"], local=self.local,
            certify=Certify(curved=True), **more,
        )  # fmt: skip

    def bounds(self, kind: Kind, labels: tuple[int, ...]) -> Bounds:
        """Where bounds can lie; on training data."""
        result = self.train(self.bounded(kind, labels, 0.0), rounds=1)
        method, federation, server = result.method, result._runner.federation, result.server
        assert isinstance(method, PFFL)
        saddle = Saddle(method, federation, server, curved=True)
        start = saddle.vector(self.fedavg.server["params"])
        conditional = kind != "bounded_group_loss"
        return Bounds(saddle.least_excess(start), worst(self.fedavg, "train", conditional, labels))


@dataclass(frozen=True)
class Bounds:
    """From the least largest loss that any model reaches to FedAvg's.

    Parameters
    ----------
    least : LeastExcess
        Over bounds of 0; it is that of all others, too, less the bound.
    """

    least: LeastExcess
    top: float

    def at(self, place: str) -> float:
        """The bound at a place between them."""
        return self.least.reached + PLACES[place] * (self.top - self.least.reached)

    def certified(self, result: Result, zeta: float) -> tuple[dict[str, float], str]:
        """Numbers of the certificate of a run, and whether its bounds can be met.

        Local bounds are checked as bounds on all clients' groups; their multipliers stay at the
        clients, so they have no gap.
        """
        method, federation = result.method, result._runner.federation
        assert isinstance(method, PFFL)
        made = method.certificate(
            federation, result.server, result.data.schema, self.least.lowered(zeta)
        )
        gap = {} if made.gap is None else {"gap": made.gap}
        return {"violation": made.violation, **gap}, made.status


def worst(result: Result, split: Split, conditional: bool, labels: tuple[int, ...]) -> float:
    """Largest mean loss of a group, or of a group and one of the labels."""
    total = result.evaluation(split).counts.total()
    sums, counts = total.loss, total.cells
    if conditional and labels:
        sums, counts = sums[:, list(labels)], counts[:, list(labels)]
    elif not conditional:
        sums, counts = sums.sum(-1), counts.sum(-1)
    present = counts > 0
    return float((sums[present] / counts[present]).max())
