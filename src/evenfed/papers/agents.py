"""Excess risks of clients over models that were trained on the pooled data of their clusters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

from torch import nn

from evenfed.core.models import build, resnet18
from evenfed.data.dataset import FederatedDataset
from evenfed.data.registry import load
from evenfed.engines.federation import EngineOptions
from evenfed.methods.focus import Focus
from evenfed.metrics.client import FloatArray, mean_loss
from evenfed.metrics.excess import excess_risk, faa, same_partition, surrogate_references
from evenfed.papers.recipe import Metric, Outcome
from evenfed.runs.result import Result
from evenfed.runs.train import train

ACCURACY = Metric("accuracy", "accuracy")
LOSS = Metric("loss", "loss", higher=False)
FAA = Metric("faa", "FAA", higher=False, wide=0.1)
LAST = (
    Metric("last_loss", "loss of the last client", higher=False, wide=0.1),
    Metric("last_excess", "excess risk of the last client", higher=False, wide=0.3),
)
COMMON = ("dataset", "data", "seed", "rounds", "local", "model")
"""Settings that decide the references: those of all methods of a column and a seed."""


def measured(settings: Mapping[str, Any], files: Mapping[str, str]) -> Outcome:
    """Train methods, and compare their clients with the references.

    Parameters
    ----------
    settings : mapping
        `COMMON`, and `methods`: of each row the `method`, its `options`, and perhaps `training`
        (what of `rounds` and `local` is its own).
    files : mapping of option to path
        Options of the dataset that name files.
    """
    common = json.dumps({key: settings[key] for key in COMMON}, sort_keys=True)
    named = tuple(sorted(files.items()))
    found = Outcome({})
    for row, method in settings["methods"].items():
        result = _method(method, loaded(common, named), settings)
        values, excess = _values(result, references(common, named))
        found.values[row] = values
        found.curves[row] = [[k, float(e)] for k, e in enumerate(excess)]
        if isinstance(result.method, Focus):
            word = "found" if _recovered(result) else "not found"
            found.facts[row] = {"true clusters": word}
    return found


def _values(result: Result, reference: FloatArray) -> tuple[dict[str, float], FloatArray]:
    evaluation = result.evaluation("test")
    losses = mean_loss(evaluation.counts)
    accuracy = evaluation.summary().get("client_accuracy_mean")
    found = faa(losses, reference, mean_accuracy=accuracy, reference="true clusters")
    excess = excess_risk(losses, reference)
    values = {
        LOSS.key: found.mean_loss, FAA.key: found.faa,
        "last_loss": float(losses[-1]), "last_excess": float(excess[-1]),
        "below_reference": float(found.n_negative_excess),
    }  # fmt: skip
    if accuracy is not None:
        values[ACCURACY.key] = float(accuracy)
    return values, excess


def _method(
    method: Mapping[str, Any], data: FederatedDataset, settings: Mapping[str, Any]
) -> Result:
    own = method.get("training", {})
    options = {**settings["local"], **own.get("local", {}), **method["options"]}
    rounds = own.get("rounds", settings["rounds"])
    return _trained(method["method"], data, settings, rounds, options)


@lru_cache(maxsize=1)
def loaded(common: str, files: tuple[tuple[str, str], ...]) -> FederatedDataset:
    """The data of a column and a seed."""
    settings = json.loads(common)
    options: dict[str, Any] = {**settings["data"], **dict(files)}
    return load(settings["dataset"], seed=settings["seed"], **options)


@lru_cache(maxsize=4)
def references(common: str, files: tuple[tuple[str, str], ...]) -> FloatArray:
    """Test losses `(K,)` of one model a true cluster, with all clients' rounds and local steps."""
    settings, data = json.loads(common), loaded(common, files)
    assert data.clusters is not None

    def of_cluster(members: tuple[int, ...]) -> FloatArray:
        part = FederatedDataset(data.schema, [data.client(i) for i in members])
        result = _trained("centralized", part, settings, settings["rounds"], settings["local"])
        return mean_loss(result.evaluation("test").counts)

    return surrogate_references(data.clusters, of_cluster)


def _trained(
    method: str, data: FederatedDataset, settings: Mapping[str, Any], rounds: int,
    options: Mapping[str, Any],
) -> Result:  # fmt: skip
    model = settings["model"]
    # many small convolutions at once are slow on processors
    engine = "sequential" if model["name"] == "resnet" else "vectorized"
    return train(
        method, data, rounds=rounds, seed=settings["seed"], evaluate_every=0,
        model=partial(made, model, data.schema.shape, data.schema.classes),
        engine=EngineOptions(engine, workers=1), **options,
    )  # fmt: skip


def made(model: Mapping[str, Any], shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The model of a column; a `resnet` sees images whose sides are divided by `pool`.

    Examples
    --------
    >>> from evenfed.core.models import parameter_count
    >>> parameter_count(made({"name": "mlp", "hidden": [200]}, (784,), 10))
    159010
    """
    options = {key: value for key, value in model.items() if key != "name"}
    if model["name"] != "resnet":
        return build(model["name"], shape, outputs, **options)
    pool = options.pop("pool")
    small = (shape[0], shape[1] // pool, shape[2] // pool)
    return nn.Sequential(nn.AvgPool2d(pool), resnet18(small, outputs, **options))


def _recovered(result: Result) -> bool:
    """Whether the most likely models of the clients are the true clusters, up to names."""
    assert isinstance(result.method, Focus)
    found = result.method.memberships(result.server, result.data).argmax(1).tolist()
    return same_partition(found, result.data.clusters or ())
