"""Intervals of the summary metrics of one run, over the test examples of its clients.

| metric | interval |
|---|---|
| accuracy | Wilson's |
| worst client, worst tail, standard deviation over clients, worst group | `metrics.spread` |
| R2, mean squared error | delta method on sums of powers, `metrics.regression` |
| means over clients, losses, differences between groups | bootstrap, `metrics.bootstrap` |

A bootstrap of shares that are all 0 or 1 has no spread. Where that leaves an interval without any
width, it is widened by Wilson's intervals of those shares: of a mean, and of a difference as
Newcombe does, each end by the root of the sum of squared distances.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from evenfed.core.counts import Counts
from evenfed.data.dataset import Schema
from evenfed.metrics import client as client_level
from evenfed.metrics.bootstrap import Interval, Statistic, intervals
from evenfed.metrics.client import FloatArray, tail_size
from evenfed.metrics.group import group_values
from evenfed.metrics.proportion import wilson
from evenfed.metrics.rates import group_losses, group_sizes
from evenfed.metrics.regression import (
    constant_interval,
    constant_mean_squared_error,
    r2,
    r2_interval,
    regression_values,
    squared_error_interval,
)
from evenfed.metrics.spread import Means, Shares, lowest_interval, lowest_mean, std_interval

_GROUPS = (
    "demographic_parity_difference",
    "equal_opportunity_difference",
    "equalized_odds_difference",
)
_NUMBERS = ("mean_prediction_difference", "mean_residual_difference")


def summary_intervals(
    counts: Counts, schema: Schema, tail: float, *, seed: int, level: float, n: int
) -> dict[str, Interval]:
    """Intervals by the names of the metrics; `counts` are stacked over clients `(K, G, C, C)`."""
    how: dict[str, Any] = {"seed": seed, "level": level, "n": n}
    several, regression = len(schema.groups) > 1, schema.kind == "regression"
    values = regression_values if regression else group_values

    def metric(name: str) -> Statistic:
        return lambda counts: values(counts)[name]

    pooled = {name: metric(name) for name in (_NUMBERS if regression else _GROUPS) if several}
    found = intervals(counts, pooled, **how) if pooled else {}
    if regression:
        found |= _numbers(counts, schema, level)
    else:
        found = {name: _widened(counts, name, span) for name, span in found.items()}
        found |= _accuracies(counts, tail, several, how)
    if not bool(torch.isfinite(counts.loss).all()):
        return found
    return found | _losses(counts, tail, several, how)


def _accuracies(
    counts: Counts, tail: float, several: bool, how: dict[str, Any]
) -> dict[str, Interval]:
    seed, level = how["seed"], how["level"]
    right = np.einsum("kgcc->kg", counts.confusion.numpy())
    size = group_sizes(counts)
    clients = _shares(right.sum(1), size.sum(1))
    if clients is None:
        return {}
    whole = float(right.sum() / size.sum())
    low, high = wilson(float(right.sum()), float(size.sum()), level) or (None, None)
    found = {"accuracy": Interval(whole, low, high, level)}
    found["client_accuracy_mean"] = _mean_accuracy(counts, clients, how)
    found |= _spread("client_accuracy", clients, tail, seed, level, lowest="min")
    groups = _shares(right.sum(0), size.sum(0))
    if several and groups is not None:
        span = lowest_interval(groups, seed=seed, level=level)
        found["accuracy_group_min"] = Interval(float(groups.values.min()), *span, level)
    return found


def _mean_accuracy(counts: Counts, clients: Shares, how: dict[str, Any]) -> Interval:
    def mean(replicate: Counts) -> NDArray[Any]:
        values = np.asarray(client_level.accuracy(replicate))
        return np.asarray(np.nanmean(values, -1))

    found = intervals(_right(counts), {"mean": mean}, pool=False, **how)["mean"]
    if found.low != found.high:
        return found
    ends = [
        wilson(a, n, how["level"]) or (0.0, 1.0)
        for a, n in zip(*vars(clients).values(), strict=True)
    ]
    values, k = clients.values, len(clients.n)
    down, up = (np.sqrt(((np.array([e[i] for e in ends]) - values) ** 2).sum()) / k for i in (0, 1))
    middle = float(values.mean())
    return replace(found, low=max(middle - float(down), 0.0), high=min(middle + float(up), 1.0))


def _losses(counts: Counts, tail: float, several: bool, how: dict[str, Any]) -> dict[str, Interval]:
    merged = _merged(counts)
    drawn = {**how, "loss_squares": counts.loss_squares[..., None]}
    found = intervals(merged, {"loss": client_level.mean_loss}, **drawn)
    found |= intervals(merged, {"client_loss_mean": _over_clients}, pool=False, **drawn)
    sums, squares = counts.loss.sum(-1).numpy(), counts.loss_squares.numpy()
    size = group_sizes(counts)
    seed, level = how["seed"], how["level"]
    clients = _means(sums.sum(1), squares.sum(1), size.sum(1))
    if clients is not None:
        found |= _spread("client_loss", clients, tail, seed, level, lowest="max")
    groups = _means(sums.sum(0), squares.sum(0), size.sum(0))
    if several and groups is not None:
        low, high = lowest_interval(groups, seed=seed, level=level)
        worst = float(np.fmax.reduce(group_losses(counts.total()), -1))
        found["loss_group_max"] = Interval(worst, max(-high, 0.0), -low, level)
    return found


def _over_clients(counts: Counts) -> NDArray[Any]:
    """Mean loss over the clients that have examples."""
    values = np.asarray(client_level.mean_loss(counts))
    some = values[..., ~np.isnan(values).all(tuple(range(values.ndim - 1)))]
    return some.mean(-1) if some.shape[-1] else np.full(values.shape[:-1], np.nan)


def _spread(
    prefix: str, found: Shares | Means, tail: float, seed: int, level: float, *, lowest: str
) -> dict[str, Interval]:
    """Worst, worst tail and standard deviation over clients; losses come with the sign turned."""
    size = tail_size(tail, len(found.n))
    spread = std_interval(found, seed=seed, level=level)
    result = {}
    if spread is not None:
        result[f"{prefix}_std"] = Interval(float(found.values.std()), *spread, level)
    surely = 0.0 if spread is None else spread[0]
    for name, count in ((lowest, 1), ("worst_tail", size)):
        low, high = lowest_interval(found, count, seed=seed, level=level, apart=surely)
        value = float(lowest_mean(found.values, count))
        if lowest == "max":
            low, high, value = max(-high, 0.0), -low, -value
        result[f"{prefix}_{name}"] = Interval(value, low, high, level)
    return result


def _shares(right: FloatArray, n: FloatArray) -> Shares | None:
    """Of those that have examples; None without any."""
    some = n > 0
    return Shares(right[some], n[some]) if some.any() else None


_PRIOR = 4
"""Degrees of freedom by which the spread of others counts at a client with few examples."""


def _means(sums: FloatArray, squares: FloatArray, n: FloatArray) -> Means | None:
    """Mean losses with the sign turned, so that the worst is the lowest; None without spread.

    Of few examples the variance is hardly known, of one not at all: it is drawn towards that of
    all clients, which counts like `_PRIOR` examples more, or as many as there are elsewhere.
    """
    some = n > 0
    sums, squares, n = sums[some], squares[some], n[some]
    inside, degrees = np.maximum(squares - sums**2 / n, 0.0), n - 1
    if degrees.sum() < 2:
        return None
    others = np.minimum(degrees.sum() - degrees, _PRIOR)
    variance = (inside + others * inside.sum() / degrees.sum()) / np.maximum(degrees + others, 1)
    return Means(-sums / n, np.sqrt(variance / n), degrees + others + 1)


def _numbers(counts: Counts, schema: Schema, level: float) -> dict[str, Interval]:
    """R2 and mean squared errors, the constant predictor's too, from sums in training's unit."""
    offset, scale = schema.target
    plain = counts.in_unit(-offset / scale, 1 / scale)
    found = {}
    if (span := r2_interval(plain, level)) is not None:
        found["r2"] = Interval(float(r2(counts.total())), *span, level)
    total = counts.total()
    errors = {
        "mean_squared_error": (regression_values(total)["mean_squared_error"],
                               squared_error_interval(plain, level)),
        "constant_mean_squared_error": (constant_mean_squared_error(total),
                                        constant_interval(plain, level)),
    }  # fmt: skip
    for name, (error, span) in errors.items():
        if span is not None:
            low, high = (scale * scale * end for end in span)
            found[name] = Interval(float(error), low, high, level)
    return found


def _widened(counts: Counts, name: str, found: Interval) -> Interval:
    """A difference of shares that are all 0 or 1, with Newcombe's interval."""
    if found.low is None or found.high is None or found.low != found.high:
        return found
    confusion = counts.confusion.sum(0).numpy()
    every, truth = confusion.sum((-2, -1)), confusion.sum(-1)
    chosen, hit = confusion.sum(-2), np.einsum("gcc->gc", confusion)
    rates = {
        "demographic_parity_difference": [(chosen, every[:, None])],
        "equal_opportunity_difference": [(hit, truth)],
        "equalized_odds_difference": [(hit, truth), (chosen - hit, every[:, None] - truth)],
    }
    wide = 0.0
    for part, of in rates[name]:
        for c in [1] if confusion.shape[-1] == 2 else range(confusion.shape[-1]):
            ends = _differences(part[:, c], of[:, c if of.shape[1] > 1 else 0], found.level)
            wide = max(wide, ends)
    return replace(found, high=min(max(found.high, wide), 1.0))


def _differences(part: FloatArray, of: FloatArray, level: float) -> float:
    """The largest upper end of a difference between two shares."""
    spans = [(a / n, wilson(a, n, level) or (0.0, 1.0)) for a, n in zip(part, of, strict=True) if n]
    pairs = ((a, b) for i, a in enumerate(spans) for j, b in enumerate(spans) if i != j)
    ends = [p - q + float(np.hypot(up - p, q - down)) for (p, (_, up)), (q, (down, _)) in pairs]
    return max(ends, default=0.0)


def _right(counts: Counts) -> Counts:
    """Right and wrong predictions of each client, all that its accuracy depends on."""
    right = torch.einsum("kgcc->k", counts.confusion)
    both = torch.stack([right, counts.size - right], -1)[:, None, None, :]
    none = both.new_zeros(len(both), 1, 5)
    return Counts(torch.cat([both, torch.zeros_like(both)], -2), none[..., :2], none)


def _merged(counts: Counts) -> Counts:
    """Numbers of examples and sums of losses by group, whatever the label."""
    size, loss = counts.cells.sum(-1)[..., None, None], counts.loss.sum(-1, keepdim=True)
    return Counts(size, loss, torch.nn.functional.pad(counts.moments[..., :0], (0, 6)))


__all__ = ["summary_intervals"]
