"""Measures of fronts of error against disparity, for methods with many models and with one."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from evenfed.core.counts import Counts, count_classes
from evenfed.core.examples import Examples
from evenfed.core.fairness_loss import fairness_loss
from evenfed.core.models import mlp
from evenfed.core.softmax import softmax
from evenfed.data.dataset import FederatedDataset
from evenfed.methods.praffl import PraFFL
from evenfed.metrics.client import FloatArray
from evenfed.metrics.front import (
    accuracy_at_disparity,
    constant_predictor,
    front_points,
    hypervolume,
    nondominated,
)
from evenfed.papers.recipe import Curve, Metric
from evenfed.runs.fronts import front_counts, grid, preferred
from evenfed.runs.result import Result

TIGHT = 0.1
LIMIT = 0.05
PENALTIES = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0)
CURVE_POINTS = 40

LOCAL = Metric("local_hypervolume", "local HV")
GLOBAL = Metric("global_hypervolume", "global HV")
HYPERVOLUMES = (LOCAL, GLOBAL)
TIGHT_METRICS = (
    Metric("local_tight", "local HV to 0.1"),
    Metric("global_tight", "global HV to 0.1"),
    Metric("global_accuracy_at", "global accuracy at disparity 0.05"),
)
"""Hypervolume with reference (1, 0.1), divided by 0.1: the mean over limits d from 0 to 0.1 of
the best accuracy at a disparity of at most d."""


def measures(own: Sequence[FloatArray], united: FloatArray) -> dict[str, float]:
    """From (error, disparity) `(N, 2)` of each client's front and of the global one."""
    fronts = [_defined(points) for points in own]
    whole = _defined(united)
    return {
        LOCAL.key: float(np.mean([hypervolume(p) for p in fronts])),
        GLOBAL.key: hypervolume(whole),
        "local_tight": float(np.mean([tight(p) for p in fronts])),
        "global_tight": tight(whole),
        "global_accuracy_at": accuracy_at_disparity(whole, LIMIT),
    }


def tight(points: FloatArray) -> float:
    """Mean over disparity limits from 0 to 0.1 of the best accuracy within them; 0 for none.

    Examples
    --------
    >>> round(tight(np.array([[0.2, 0.05]])), 6)
    0.4
    """
    return hypervolume(points, (1.0, TIGHT)) / TIGHT


def _defined(points: FloatArray) -> FloatArray:
    return np.asarray(points[~np.isnan(points).any(1)])


def curve(points: FloatArray) -> Curve:
    """The points that no other beats, by rising error; at most 40, evenly chosen."""
    kept = _defined(points)
    kept = kept[nondominated(kept)]
    kept = kept[np.argsort(kept[:, 0], kind="stable")]
    if len(kept) > CURVE_POINTS:
        kept = kept[np.linspace(0, len(kept) - 1, CURVE_POINTS).round().astype(int)]
    return [[float(a), float(b)] for a, b in kept]


def of_preferences(result: Result) -> tuple[list[FloatArray], FloatArray]:
    """Test fronts of a method with a model for every preference: own ones, and the global one."""
    own = [result.front("test", i).points for i in range(len(result.data)) if _tested(result, i)]
    return own, result.front("test").points


def of_each_hypernetwork(result: Result, models: int = 101) -> list[FloatArray]:
    """Fronts `(N, 2)` of every client's own hypernetwork on the test data of all clients."""
    runner = result._runner
    method = preferred(runner.method)
    assert isinstance(method, PraFFL)
    everyone = runner.federation.everyone
    sent = runner.federation.map(method.share, {}, clients=everyone, counted=False).uploads
    found = []
    for beta in sent["hypernetwork"]:
        one = copy.copy(runner)
        one.server = {**runner.server, "beta": beta}
        counts = front_counts(one, "test", grid(models), "global").total()
        found.append(front_points(counts))
    return found


def of_one_model(result: Result) -> tuple[FloatArray, FloatArray]:
    """Test points of a method with one model: each client's `(K, 2)`, the global one `(2,)`.

    Where clients have their own models, the global model is their mean, weighted by size.
    """
    counts = result.evaluation("test").counts
    some = [i for i in range(len(result.data)) if _tested(result, i)]
    own = front_points(counts)[some]
    total = _of_mean_model(result) if result.method.personal else counts.total()
    return own, front_points(_one(total))[0]


def _tested(result: Result, client: int) -> bool:
    return len(result.data.client(client).test) > 0


def _of_mean_model(result: Result) -> Counts:
    """Counts of the mean of the clients' models on all test data."""
    sizes = [float(len(client.train)) for client in result.data]
    params = [result.parameters(i) for i in range(len(result.data))]
    mean = {
        name: sum(n * p[name] for n, p in zip(sizes, params, strict=True)) / sum(sizes)
        for name in params[0]
    }
    task = result.method.task
    module = result.model(client=0)
    test = Examples.concatenate([client.test for client in result.data])
    with torch.no_grad():
        outputs = functional_call(module, mean, (test.x,))  # type: ignore[arg-type]
    return task.count(outputs, test)


def _one(counts: Counts) -> Counts:
    return Counts(counts.confusion[None], counts.loss[None], counts.moments[None])


def constant(data: FederatedDataset) -> dict[str, float]:
    """Measures of the predictors that say each client's, and all data's, most frequent class."""

    def point(test: Examples) -> FloatArray:
        zero = torch.zeros(len(test), dtype=torch.long)
        groups, classes = len(data.schema.groups), data.schema.classes
        counted = count_classes(
            zero, test.y, test.group, torch.zeros(len(test)), test.weight, groups, classes
        )
        return np.array([constant_predictor(counted).point])

    tests = [client.test for client in data if len(client.test)]
    return measures([point(test) for test in tests], point(Examples.concatenate(tests)))


def ceiling(
    data: FederatedDataset, hidden: tuple[int, ...], seed: int, steps: int
) -> tuple[list[FloatArray], FloatArray]:
    """A sweep with pooled data: one model a penalty on the covariance, 49 thresholds each.

    A model takes `steps` batches of 128, in whole epochs, at least eight.
    All its models are measured on test data, as those of a front are.
    """
    pooled = Examples.concatenate([client.train for client in data])
    thresholds = torch.linspace(0.02, 0.98, 49)
    tests = [client.test for client in data if len(client.test)]
    counts: list[list[Tensor]] = [[] for _ in tests]
    groups = len(data.schema.groups)
    epochs = max(8, round(steps * 128 / len(pooled)))
    for penalty in PENALTIES:
        torch.manual_seed(seed)
        model = mlp(data.schema.shape[0], 2, hidden)
        _penalise(model, pooled, penalty, seed, epochs, groups)
        for k, test in enumerate(tests):
            with torch.no_grad():
                p = softmax(model(test.x))[:, 1]
            counts[k] += [
                count_classes(
                    (p > t).long(), test.y, test.group, p * 0, test.weight, groups, 2
                ).confusion
                for t in thresholds
            ]
    each = [torch.stack(rows) for rows in counts]
    return [_points(c) for c in each], _points(torch.stack(each).sum(0))


def _penalise(
    model: torch.nn.Module, data: Examples, penalty: float, seed: int, epochs: int, groups: int
) -> None:
    """Adam on cross-entropy and a penalty on the covariance of group and probability."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    order = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(data), generator=order), 128):
            part = data.take(rows)
            out = model(part.x)
            unfair = fairness_loss(
                "covariance", out.unsqueeze(0), part.y, part.group, part.weight, groups
            )
            loss = torch.nn.functional.cross_entropy(out, part.y) + penalty * unfair[0]
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def _points(confusion: Tensor) -> FloatArray:
    shape = confusion.shape
    return front_points(
        Counts(confusion, confusion.sum(-1), torch.zeros(*shape[:2], 5, dtype=torch.float64))
    )


def undefined(metrics: Sequence[Metric]) -> dict[str, float]:
    """NaN for every metric."""
    return {metric.key: math.nan for metric in metrics}
