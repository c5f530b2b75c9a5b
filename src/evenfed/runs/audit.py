"""Audits a model on clients' rows: group and client metrics from counts, and limits on them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from evenfed.core import tree as trees
from evenfed.core.counts import Counts, count_classes, count_values
from evenfed.core.errors import ConfigError, DataError, EvenfedError, counted, suggest
from evenfed.data.problems import SHOWN, Problem, raise_if_any
from evenfed.metrics.bootstrap import Interval, Statistic, intervals
from evenfed.metrics.group import group_values
from evenfed.metrics.regression import regression_values
from evenfed.runs.audit_data import LEFT, AuditData, Rows
from evenfed.runs.audited import Audited
from evenfed.runs.evaluation import Evaluation
from evenfed.runs.shares import rates

_LEAST = 1e-15
"""A probability below it counts as it in a loss, as in scikit-learn's log loss."""
_CLASSES = (
    "demographic_parity", "equal_opportunity", "equalized_odds", "accuracy",
)  # fmt: skip
_NUMBERS = ("mean_prediction", "mean_residual", "mean_squared_error")
_BETTER = (
    "demographic_parity_difference", "equal_opportunity_difference", "equalized_odds_difference",
    "accuracy", "client_accuracy_min", "mean_squared_error", "r2",
)  # fmt: skip
"""Metrics that a run has, too, with intervals that know their bounds; see `runs.intervals`."""
FEW = 30
"""A group or a client with fewer rows is called too small to judge."""


@dataclass(frozen=True)
class Wanted:
    """Limits that a model must keep; None: no limit.

    Parameters
    ----------
    disparity : str, optional
        What `max_disparity` bounds: the largest difference between two groups of a rate. Default:
        `demographic_parity` (rate of favourable predictions), for regression `mean_prediction`.
    max_disparity : float, optional
    max_group_loss : float, optional
        On the largest mean loss of a group.
    min_worst_client : float, optional
        On the lowest accuracy of a client.
    """

    disparity: str | None = None
    max_disparity: float | None = None
    max_group_loss: float | None = None
    min_worst_client: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_disparity", "max_group_loss", "min_worst_client"):
            bound, option = getattr(self, name), "--" + name.replace("_", "-")
            if bound is not None and not (math.isfinite(bound) and bound >= 0):
                raise ConfigError(f"{option} is {bound:g}; it must be a number of at least 0")
        if self.min_worst_client is not None and self.min_worst_client > 1:
            raise ConfigError(
                f"--min-worst-client is {self.min_worst_client:g}; an accuracy is at most 1"
            )

    def metric(self, regression: bool) -> str:
        """Name of the disparity among the metrics; refuses a limit that means nothing for it."""
        if not regression and self.max_disparity is not None and self.max_disparity > 1:
            raise ConfigError(
                f"--max-disparity is {self.max_disparity:g}; a difference of rates is at most 1"
            )
        known = _NUMBERS if regression else _CLASSES
        chosen = self.disparity or known[0]
        if chosen not in known:
            raise ConfigError(f"--disparity '{chosen}' is unknown here.{suggest(chosen, known)}")
        return f"{chosen}_difference"


@dataclass(frozen=True)
class Limit:
    """A limit and what was measured against it."""

    option: str
    what: str
    bound: float
    found: Interval
    at_most: bool = True

    @property
    def by(self) -> float:
        """How far the value lies beyond the limit; negative inside."""
        away = self.found.estimate - self.bound
        return away if self.at_most else -away

    @property
    def broken(self) -> bool:
        """Whether the value itself is beyond the limit."""
        return self.by > 0

    @property
    def text(self) -> str:
        """One sentence."""
        low, high = self.found.low, self.found.high
        span = "" if low is None or high is None else (
            f" ({100 * self.found.level:g} % interval {low:.4f} to {high:.4f})"
        )  # fmt: skip
        side = "above" if self.at_most == self.broken else "below"
        verdict = "broken" if self.broken else "kept"
        sure = ""
        if low is not None and high is not None and low <= self.bound <= high:
            sure = "; the interval holds the limit, so that more rows might tell otherwise"
        value = f"{self.what} is {self.found.estimate:.4f}{span}"
        return (
            f"{self.option} {self.bound:g} {verdict}: {value}, {abs(self.by):.4f} {side} the "
            f"limit{sure}"
        )

    def table(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "option": self.option, "metric": self.what, "limit": self.bound,
            "value": self.found.estimate, "low": self.found.low, "high": self.found.high,
            "broken": self.broken, "by": self.by,
        }  # fmt: skip


@dataclass(frozen=True)
class Audit:
    """The result of an audit.

    Parameters
    ----------
    evaluation : Evaluation
        Counts of every client; groups and clients follow from them.
    disparity : str
        The disparity that was asked about.
    intervals : dict
        By metric.
    """

    model: Audited
    evaluation: Evaluation
    disparity: str
    intervals: dict[str, Interval]
    limits: tuple[Limit, ...] = ()
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def broken(self) -> tuple[Limit, ...]:
        """Limits that the model does not keep."""
        return tuple(limit for limit in self.limits if limit.broken)

    @property
    def small_groups(self) -> tuple[str, ...]:
        """Groups with too few rows to judge, also those with none."""
        return tuple(label for label, n in _group_sizes(self.evaluation).items() if n < FEW)

    def measured(self) -> dict[str, Any]:
        """Everything as plain values, as a report or a program reads it."""
        evaluation, schema = self.evaluation, self.evaluation.schema
        task = {
            "title": self.model.path.name, "kind": schema.kind, "label": schema.label,
            "classes": schema.classes, "class_names": list(schema.class_names),
            "groups": list(schema.groups.labels),
            "sensitive": list(schema.groups.names), "clients": len(evaluation.names),
            "trained_on": None, "tested_on": int(evaluation.sizes.sum()),
        }  # fmt: skip
        clients, groups = self.clients(), self.groups()
        return {
            "model": str(self.model.path),
            "dataset": schema.name,
            "task": task,
            "disparity": self.disparity,
            "metrics": _clean(evaluation.summary()),
            "intervals": {k: [v.low, v.high] for k, v in self.intervals.items()},
            "groups": {str(k): _clean(v) for k, v in groups.to_dict("index").items()},
            "clients": {str(k): _clean(v) for k, v in clients.to_dict("index").items()},
            "limits": [limit.table() for limit in self.limits],
            "passed": not self.broken,
            "small_groups": list(self.small_groups),
            "notes": list(self.notes),
        }

    def clients(self) -> pd.DataFrame:
        """One row a client: examples, rates with Wilson's intervals, loss, group metrics."""
        own = self.evaluation.clients()
        found = rates(self.evaluation.cells(), "client")
        return found.join(own.drop(columns=[c for c in own if c in found]), how="right")

    def groups(self) -> pd.DataFrame:
        """One row a group, over all clients: examples, rates with Wilson's intervals, loss."""
        found = rates(self.evaluation.cells(), "group")
        own = self.evaluation.groups()
        return found.join(own.drop(columns=[c for c in own if c in found]), how="right")


def audit(
    model: Audited, data: AuditData, wanted: Wanted | None = None, *, seed: int = 0, n: int = 1000
) -> Audit:
    """Score a model on every client's rows and measure it.

    A client counts its own predictions; only the counts are put together.
    """
    wanted = wanted or Wanted()
    disparity = wanted.metric(model.regression)
    order = _order(model, data)
    scored, problems = [], []
    for rows in data.rows:
        try:
            scored.append(_counted(model, data, rows, order))
        except DataError as error:
            problems.append(Problem(str(error), rows.file, client=rows.client))
            problems += rows.doubts
    raise_if_any(problems, LEFT)
    counts = trees.stack([counts for counts, _ in scored])
    squares = torch.stack([squares for _, squares in scored])
    names = tuple(rows.client for rows in data.rows)
    evaluation = Evaluation(data.schema, "audit", names, counts)
    found = _intervals(evaluation, disparity, squares, seed, n)
    limits = tuple(_limits(wanted, disparity, evaluation, found))
    notes = (*data.schema.notes, *data.notes, *_small(evaluation, disparity))
    return Audit(model, evaluation, disparity, found, limits, notes)


def _order(model: Audited, data: AuditData) -> NDArray[np.int64]:
    """Place of each of the model's classes among the data's."""
    names = data.schema.class_names
    return np.array([names.index(name) for name in model.classes], dtype=np.int64)


def _counted(
    model: Audited, data: AuditData, rows: Rows, order: NDArray[np.int64]
) -> tuple[Counts, torch.Tensor]:
    """A client's counts, and its sums of squared losses `(G, C)`."""
    try:
        said, probabilities = model.score(rows.raw)
    except DataError:
        raise
    except EvenfedError as error:
        raise type(error)(f"client '{rows.client}': {error}") from None
    except Exception as error:
        # what a foreign library says may hold a client's data
        name = type(error).__name__
        raise DataError(f"'{model.path.name}' fails on these rows ({name})") from None
    groups, weight = len(data.schema.groups), torch.ones(len(rows.y), dtype=torch.float64)
    group, y = torch.from_numpy(np.array(rows.group)), torch.from_numpy(np.array(rows.y))
    if model.regression:
        values = torch.from_numpy(np.asarray(said, dtype=np.float64))
        loss = (values - y.double()).square()
        whole = count_values(values, y, group, loss, weight, groups)
        return whole, count_values(values, y, group, loss.square(), weight, groups).loss
    if (said < 0).any():
        raise DataError(f"the model has no prediction for {counted(int((said < 0).sum()), 'row')}")
    predicted = torch.from_numpy(order[said])
    loss = torch.full((len(rows.y),), math.nan, dtype=torch.float64)
    if probabilities is not None:
        placed = np.empty_like(probabilities)
        placed[:, order] = probabilities
        own = placed[np.arange(len(placed)), np.array(rows.y)]
        loss = torch.from_numpy(-np.log(np.maximum(own, _LEAST)))
    classes = data.schema.classes
    whole = count_classes(predicted, y, group, loss, weight, groups, classes)
    return whole, count_classes(predicted, y, group, loss.square(), weight, groups, classes).loss


def _intervals(
    evaluation: Evaluation, disparity: str, squares: torch.Tensor, seed: int, n: int
) -> dict[str, Interval]:
    values = regression_values if evaluation.regression else group_values
    known = _NUMBERS if evaluation.regression else _CLASSES
    named = ["loss"]
    if len(evaluation.schema.groups) > 1:
        named += [
            "loss_group_max",
            *dict.fromkeys([disparity, *(f"{k}_difference" for k in known)]),
        ]

    def metric(name: str) -> Statistic:
        return lambda counts: values(counts)[name]

    statistics = {name: metric(name) for name in named}
    how: dict[str, Any] = {"seed": seed, "n": n, "loss_squares": squares}
    found = intervals(evaluation.counts, statistics, **how)
    return found | {k: v for k, v in evaluation.intervals(seed=seed, n=n).items() if k in _BETTER}


def _limits(
    wanted: Wanted, disparity: str, evaluation: Evaluation, found: dict[str, Interval]
) -> list[Limit]:
    asked = [
        ("--max-disparity", wanted.max_disparity, disparity, True),
        ("--max-group-loss", wanted.max_group_loss, "loss_group_max", True),
        ("--min-worst-client", wanted.min_worst_client, "client_accuracy_min", False),
    ]
    result = []
    for option, bound, metric, at_most in asked:
        if bound is None:
            continue
        if metric not in found or math.isnan(found[metric].estimate):
            raise ConfigError(f"{option} cannot be checked: {_why(metric, evaluation)}")
        result.append(Limit(option, WORDS[metric], bound, found[metric], at_most))
    return result


WORDS = {
    "demographic_parity_difference": "the demographic parity difference",
    "equal_opportunity_difference": "the equal opportunity difference",
    "equalized_odds_difference": "the equalized odds difference",
    "accuracy_difference": "the difference of accuracies between groups",
    "mean_prediction_difference": "the difference of mean predictions between groups",
    "mean_residual_difference": "the difference of mean residuals between groups",
    "mean_squared_error_difference": "the difference of mean squared errors between groups",
    "loss_group_max": "the largest mean loss of a group",
    "client_accuracy_min": "the lowest accuracy of a client",
}


def _why(metric: str, evaluation: Evaluation) -> str:
    if metric == "client_accuracy_min":
        return "a regression has no accuracy"
    if len(evaluation.schema.groups) < 2:
        return "no sensitive column with two levels is named"
    if metric == "loss_group_max":
        return "the model gives no probabilities, so that there is no loss"
    return f"{WORDS[metric]} is undefined on these rows"


def _group_sizes(evaluation: Evaluation) -> dict[str, int]:
    """Rows of each group over all clients; nothing where there is but one."""
    labels = evaluation.schema.groups.labels
    sizes = evaluation.counts.confusion.sum((0, -2, -1)).tolist()
    return dict(zip(labels, map(int, sizes), strict=True)) if len(labels) > 1 else {}


def _small(evaluation: Evaluation, disparity: str) -> list[str]:
    """What too few rows say little about: groups, rates of the disparity, clients."""
    notes = []
    for label, n in _group_sizes(evaluation).items():
        if n == 0:
            notes.append(f"group '{label}' has no row: nothing is said about it")
        elif n < FEW:
            notes.append(f"group '{label}' has {counted(n, 'row')}: {_TOO_FEW}")
    wanted = {"equal_opportunity_difference": (1,), "equalized_odds_difference": (0, 1)}
    if evaluation.schema.kind == "binary" and len(evaluation.schema.groups) > 1:
        names = evaluation.schema.class_names
        rows = evaluation.counts.confusion.sum((0, -1))
        for g, label in enumerate(evaluation.schema.groups.labels):
            for c in wanted.get(disparity, ()):
                n, whole = int(rows[g, c]), int(rows[g].sum())
                if n < FEW <= whole:
                    notes.append(
                        f"group '{label}' has {counted(n, 'row')} of class '{names[c]}': {_TOO_FEW}"
                    )
    sizes = zip(evaluation.names, evaluation.sizes, strict=True)
    clients = [f"'{name}' ({int(n)})" for name, n in sizes if n < FEW]
    if clients:
        more = f" and {len(clients) - SHOWN} more" if len(clients) > SHOWN else ""
        who = f"client{'s'[: len(clients) > 1]} {', '.join(clients[:SHOWN])}{more}"
        notes.append(f"rows of {who}: {_TOO_FEW}")
    return notes


_TOO_FEW = f"too few to judge (fewer than {FEW})"


def _clean(values: dict[Any, Any]) -> dict[str, float | None]:
    return {str(k): float(v) if math.isfinite(v) else None for k, v in values.items()}
