"""From counts to numbers: the one place where a run's metrics get their names."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from evenfed.core import tree as trees
from evenfed.core.counts import Counts
from evenfed.core.errors import ConfigError
from evenfed.data.dataset import Schema
from evenfed.metrics import client as client_level
from evenfed.metrics.bootstrap import Interval
from evenfed.metrics.front import constant_predictor
from evenfed.metrics.group import GroupReport, group_metrics, group_values, marginal
from evenfed.metrics.regression import (
    constant_mean_squared_error,
    regression_metrics,
    regression_values,
)
from evenfed.runs.intervals import summary_intervals

_BY_CLIENT = (
    "demographic_parity_difference",
    "demographic_parity_to_overall",
    "equal_opportunity_difference",
    "equalized_odds_difference",
    "loss_group_max",
)


@dataclass(frozen=True)
class Evaluation:
    """Counts of every client on a split, and what follows from them.

    Parameters
    ----------
    counts : Counts
        `(K, G, C, C)` and `(K, G, C)`, in the order of `names`.
    """

    schema: Schema
    split: str
    names: tuple[str, ...]
    counts: Counts
    tail: float = 0.1

    @property
    def regression(self) -> bool:
        """Whether labels are numbers."""
        return self.schema.kind == "regression"

    @property
    def sizes(self) -> NDArray[np.float64]:
        """Examples a client `(K,)`."""
        return np.asarray(self.counts.size.numpy(), dtype=np.float64)

    def summary(self) -> dict[str, float]:
        """All summary metrics under stable names.

        Names that start with `client_` describe the spread over clients, others the model on
        all examples together.
        """
        total = self.counts.total()
        losses = client_level.mean_loss(self.counts)
        result: dict[str, float] = {"loss": float(client_level.mean_loss(total))}
        if not self.regression:
            accuracies = client_level.accuracy(self.counts)
            result["accuracy"] = float(client_level.accuracy(total))
            result |= self._spread("client_accuracy", accuracies, higher_is_better=True)
            result["constant_accuracy"] = 1.0 - constant_predictor(total).point[0]
        else:
            result["constant_mean_squared_error"] = float(constant_mean_squared_error(total))
        result |= self._spread("client_loss", losses, higher_is_better=False)
        result |= self.group_report().metrics
        return result

    def _spread(self, prefix: str, values: Any, *, higher_is_better: bool) -> dict[str, float]:
        found = client_level.client_metrics(
            values, self.sizes, self.tail, higher_is_better=higher_is_better
        )
        counts = ("clients", "clients_without_data", "clients_not_finite", "tail")
        return {f"{prefix}_{name}": v for name, v in found.items() if name not in counts} | {
            name: found[name] for name in counts
        }

    def group_report(self, attribute: int | None = None) -> GroupReport:
        """Metrics by group over all clients; for one sensitive attribute or their intersection."""
        total, groups = self.counts.total(), self.schema.groups
        labels: tuple[str, ...] = groups.labels
        if attribute is not None:
            total = marginal(total, [len(level) for level in groups.levels], attribute)
            labels = groups.levels[attribute]
        report = regression_metrics if self.regression else group_metrics
        return report(total, labels)

    def groups(self) -> pd.DataFrame:
        """One row a group: examples, rates, accuracy, loss."""
        frame = pd.DataFrame(self.group_report().by_group)
        frame.index.name = " / ".join(self.schema.groups.names)
        return frame

    def only(self, client: str) -> Evaluation:
        """The evaluation of one client alone."""
        if client not in self.names:
            raise ConfigError(f"client '{client}' is not among those that evaluations ask")
        place = self.names.index(client)
        counts = trees.map(lambda leaf: leaf[place : place + 1], self.counts)
        return replace(self, names=(client,), counts=counts)

    def clients(self) -> pd.DataFrame:
        """One row a client: examples, accuracy, loss, group metrics on its own data."""
        columns: dict[str, Any] = {"examples": self.sizes.astype(int)}
        if not self.regression:
            columns["accuracy"] = client_level.accuracy(self.counts)
        columns["loss"] = client_level.mean_loss(self.counts)
        values = (regression_values if self.regression else group_values)(self.counts)
        if len(self.schema.groups) > 1:
            columns |= {name: values[name] for name in _BY_CLIENT if name in values}
        return pd.DataFrame(columns, index=pd.Index(self.names, name="client"))

    def cells(self) -> pd.DataFrame:
        """One row a (client, group) with examples: how many, right ones, sums of losses.

        With two classes also how many are `positive`, are predicted so (`selected`), and both
        (`found`), from which every rate and its interval follow. Of numbers the sums of predictions
        and of residuals (label minus prediction) and of their squares, in the label's unit.
        """
        confusion = np.asarray(self.counts.confusion.numpy(), dtype=np.float64)
        columns: dict[str, Any] = {"examples": confusion.sum((-2, -1))}
        if not self.regression:
            columns["right"] = np.einsum("kgcc->kg", confusion)
        if confusion.shape[-1] == 2:
            columns["positive"] = confusion[..., 1, :].sum(-1)
            columns["selected"] = confusion[..., 1].sum(-1)
            columns["found"] = confusion[..., 1, 1]
        whole = dict.fromkeys(columns, "int64")
        columns["loss"] = np.asarray(self.counts.loss.numpy(), dtype=np.float64).sum(-1)
        columns["loss_squares"] = self.counts.loss_squares.numpy()
        if self.regression:
            y, p, yy, pp, yp = self.counts.moments.numpy()[..., :5].transpose(2, 0, 1)
            columns |= {"prediction": p, "prediction_squares": pp, "residual": y - p}
            columns["residual_squares"] = np.maximum(yy - 2 * yp + pp, 0.0)
        rows = [self.names, self.schema.groups.labels]
        index = pd.MultiIndex.from_product(rows, names=["client", "group"])
        frame = pd.DataFrame({k: v.reshape(-1) for k, v in columns.items()}, index=index)
        return frame[frame["examples"] > 0].astype(whole)

    def intervals(
        self, *, seed: int = 0, level: float = 0.95, n: int = 1000
    ) -> dict[str, Interval]:
        """Intervals of summary metrics, over the examples of these clients.

        See `runs.intervals` for which is which.
        """
        return summary_intervals(self.counts, self.schema, self.tail, seed=seed, level=level, n=n)


def clean(values: dict[Any, Any]) -> dict[str, float | None]:
    """Plain floats for a file; what is undefined becomes null."""
    return {
        str(k): float(v) if isinstance(v, int | float | np.number) and math.isfinite(v) else None
        for k, v in values.items()
    }


def assembled(
    schema: Schema,
    split: str,
    names: list[str],
    rows: dict[int, Counts],
    tail: float,
) -> Evaluation:
    """An evaluation from counts by client index; clients without examples count nothing.

    What is measured of numbers is in the label's own unit; losses are those of training.
    """
    some = next(iter(rows.values()))
    empty = trees.zeros_like(some)
    ordered = [rows.get(i, empty) for i in range(len(names))]
    stacked = trees.map(lambda *leaves: torch.stack(leaves).cpu(), *ordered)
    if schema.kind == "regression":
        stacked = stacked.in_unit(*schema.target)
    return Evaluation(schema, split, tuple(names), stacked, tail)
