"""Carries out the jobs of HetPFL's tables: trains, and measures fronts on test data."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from evenfed.core.models import mlp
from evenfed.data.dataset import FederatedDataset
from evenfed.data.registry import load
from evenfed.engines.federation import EngineOptions
from evenfed.methods.hetpfl import HetPFL
from evenfed.methods.registry import build
from evenfed.metrics.client import FloatArray
from evenfed.papers import fronts
from evenfed.papers.convergence import Watch, WatchOne, followed
from evenfed.papers.recipe import Job, Outcome
from evenfed.runs.result import Result
from evenfed.runs.train import train

LOCAL: dict[str, Any] = {"lr": 0.005, "batch": 128, "optimizer": "adam", "weight_decay": 1e-4}
CHECKPOINTS = (1, 3, 5, 10, 15)


@lru_cache(maxsize=1)
def _loaded(name: str, options: tuple[tuple[str, Any], ...], seed: int) -> FederatedDataset:
    return load(name, seed=seed, **dict(options))


def _data(settings: dict[str, Any]) -> FederatedDataset:
    options = tuple(sorted(settings["data"].items()))
    return _loaded(settings["dataset"], options, settings["seed"])


def run(job: Job) -> Outcome:
    """Carry out a job."""
    settings = dict(job.settings)
    data = _data(settings)
    if settings["kind"] == "constant":
        return Outcome({"constant": fronts.constant(data)})
    if settings["kind"] == "ceiling":
        own, whole = fronts.ceiling(
            data, (settings["hidden"],), settings["seed"], settings["steps"]
        )
        return _outcome({"ceiling": (own, whole)})
    if settings["kind"] == "front":
        last = settings.get("round") == "last"
        return _last(settings, data) if last else _preferred(settings, data)
    if settings["kind"] == "convergence":
        return _convergence(job.rows[0], settings, data)
    points = [_single(settings, knob, data) for knob in settings["knobs"]]
    own = [np.stack(client) for client in zip(*(p[0] for p in points), strict=True)]
    return _outcome({job.rows[0]: (own, np.stack([p[1] for p in points]))})


def _last(settings: dict[str, Any], data: FederatedDataset) -> Outcome:
    """HetPFL without the choice of a round."""
    result = _followed(settings, data, None)
    return _outcome({"hetpfl_last": fronts.of_preferences(fused(result, settings["rounds"]))})


def _outcome(found: dict[str, tuple[list[FloatArray], FloatArray]]) -> Outcome:
    values = {row: fronts.measures(own, whole) for row, (own, whole) in found.items()}
    return Outcome(values, curves={row: fronts.curve(whole) for row, (_, whole) in found.items()})


def _single(
    settings: dict[str, Any], knob: dict[str, Any], data: FederatedDataset
) -> tuple[FloatArray, FloatArray]:
    model = partial(mlp, data.schema.shape[0], 2, (settings["hidden"],))
    options = {**LOCAL, "epochs": settings["epochs"], **knob}
    rounds, seed = settings["rounds"], settings["seed"]
    if "round" in settings:
        watch = WatchOne(keep_best=True)
        method = build(settings["method"], options)
        return fronts.of_one_model(followed(method, data, model, rounds, seed, watch))
    result = train(
        settings["method"], data, rounds=rounds, seed=seed, evaluate_every=0, model=model,
        engine=EngineOptions("vectorized", workers=1), **options,
    )  # fmt: skip
    return fronts.of_one_model(result)


def _preferred(settings: dict[str, Any], data: FederatedDataset) -> Outcome:
    """One training, and both ways to a global front: the mean of the hypernetworks, and PHF.

    Without PSA also PraFFL's own: the mean over clients of what their hypernetworks reach on all
    test data.
    """
    result = _followed(settings, data, Watch(keep_best=True) if "round" in settings else None)
    names = ("psa", "hetpfl") if settings["psa"] else ("praffl", "phf")
    averaged = fronts.of_preferences(result)
    alone = [] if settings["psa"] else fronts.of_each_hypernetwork(result)
    united = fronts.of_preferences(fused(result, settings["rounds"]))
    found = _outcome({names[0]: averaged, names[1]: united})
    if alone:
        measured = [fronts.measures(averaged[0], front) for front in alone]
        found.values["praffl_own"] = {
            name: float(np.mean([of[name] for of in measured])) for name in measured[0]
        }
    return found


def _convergence(row: str, settings: dict[str, Any], data: FederatedDataset) -> Outcome:
    watch = Watch()
    _followed(settings, data, watch)
    curve, tight = watch.curve, watch.tight
    at = {t: min(t, len(curve)) - 1 for t in CHECKPOINTS}
    values = {f"round_{t}": curve[i][1] for t, i in at.items()}
    values |= {f"tight_{t}": tight[i] for t, i in at.items()}
    return Outcome({row: values}, curves={row: curve})


def _followed(settings: dict[str, Any], data: FederatedDataset, watch: Watch | None) -> Result:
    """Clients with a head each, PSA as the settings have it."""
    method = HetPFL(psa=settings["psa"], phf="none", **front_options(settings))
    model = partial(mlp, data.schema.shape[0], 2, (settings["hidden"],) * 2)
    return followed(method, data, model, settings["rounds"], settings["seed"], watch)


def front_options(settings: dict[str, Any]) -> dict[str, Any]:
    """Options of HetPFL and PraFFL: those of the public code, or this package's own.

    The latter draw 16 preferences a step instead of 8, let PSA favour both ends, and train the
    heads once more behind the final body.
    """
    shared = {
        "local": replace(HetPFL().local, epochs=settings["epochs"]),
        "fusion_steps": settings["fusion_steps"],
    }
    if settings.get("options") == "own":
        return shared
    return {**shared, "n_preferences": 8, "refresh": 0, "alpha_bounds": (1.0, 5.0)}


def fused(result: Result, rounds: int) -> Result:
    """The same trained clients with a FusionNet."""
    runner = copy.copy(result._runner)
    method = replace(result.method, phf="federated")  # type: ignore[call-arg]
    runner.method = method.bound(runner.task, result.method.first)
    runner.federation.begin(rounds)
    server = {"params": result.server["params"]}
    runner.server = runner.method.united(runner.federation, server)  # type: ignore[attr-defined]
    return Result(runner, result.config)
