"""From counts to numbers: the one place where a run's metrics get their names."""

from __future__ import annotations

import math
from collections.abc import Callable
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
from evenfed.metrics.bootstrap import Interval, Statistic, intervals
from evenfed.metrics.front import constant_predictor
from evenfed.metrics.group import GroupReport, group_metrics, group_values, marginal
from evenfed.metrics.rates import group_losses
from evenfed.metrics.regression import (
    constant_mean_squared_error,
    regression_metrics,
    regression_values,
)

_BY_CLIENT = (
    "demographic_parity_difference",
    "demographic_parity_to_overall",
    "equal_opportunity_difference",
    "equalized_odds_difference",
    "loss_group_max",
)
_GROUP_INTERVALS = (
    "demographic_parity_difference",
    "equal_opportunity_difference",
    "equalized_odds_difference",
    "accuracy_group_min",
)
_NUMBER_INTERVALS = ("mean_prediction_difference", "mean_residual_difference")


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
        (`found`), from which every rate and its interval follow.
        """
        confusion = np.asarray(self.counts.confusion.numpy(), dtype=np.float64)
        columns: dict[str, Any] = {"examples": confusion.sum((-2, -1))}
        if not self.regression:
            columns["right"] = np.einsum("kgcc->kg", confusion)
        columns["loss"] = np.asarray(self.counts.loss.numpy(), dtype=np.float64).sum(-1)
        columns["loss_squares"] = self.counts.loss_squares.numpy()
        if confusion.shape[-1] == 2:
            columns["positive"] = confusion[..., 1, :].sum(-1)
            columns["selected"] = confusion[..., 1].sum(-1)
            columns["found"] = confusion[..., 1, 1]
        rows = [self.names, self.schema.groups.labels]
        index = pd.MultiIndex.from_product(rows, names=["client", "group"])
        frame = pd.DataFrame({k: v.reshape(-1) for k, v in columns.items()}, index=index)
        whole = [name for name in frame.columns if name not in ("loss", "loss_squares")]
        return frame[frame["examples"] > 0].astype(dict.fromkeys(whole, "int64"))

    def intervals(
        self, *, seed: int = 0, level: float = 0.95, n: int = 1000
    ) -> dict[str, Interval]:
        """Bootstrap intervals of summary metrics, over the examples of these clients.

        Losses are drawn from normal distributions with their mean and variance by group.
        """
        how: dict[str, Any] = {"seed": seed, "level": level, "n": n}
        values = regression_values if self.regression else group_values
        names = _NUMBER_INTERVALS if self.regression else _GROUP_INTERVALS
        several = len(self.schema.groups) > 1

        def metric(name: str) -> Statistic:
            return lambda counts: values(counts)[name]

        pooled = {name: metric(name) for name in names if several}
        if not self.regression:
            pooled["accuracy"] = client_level.accuracy
        found = intervals(self.counts, pooled, **how) if pooled else {}
        if not self.regression:
            spread = _spreads("client_accuracy", client_level.accuracy, np.fmin)
            found |= intervals(_right(self.counts), spread, pool=False, **how)
        if not bool(torch.isfinite(self.counts.loss).all()):
            return found
        merged, how["loss_squares"] = _merged(self.counts), self.counts.loss_squares[..., None]
        losses: dict[str, Statistic] = {"loss": client_level.mean_loss}
        if several:
            losses["loss_group_max"] = lambda counts: np.fmax.reduce(group_losses(counts), -1)
        if self._squared_losses():
            # the sums hold the spread of squared errors only where those are the losses
            unit = self.schema.target[1] ** 2
            losses["mean_squared_error"] = lambda counts: unit * client_level.mean_loss(counts)
        found |= intervals(merged, losses, **how)
        spread = _spreads("client_loss", client_level.mean_loss, np.fmax)
        return found | intervals(merged, spread, pool=False, **how)

    def _squared_losses(self) -> bool:
        """Whether losses are the squared errors, as told by the sums of every client and group."""
        if not self.regression:
            return False
        _, _, yy, pp, yp, _ = self.counts.moments.unbind(-1)
        expected = self.schema.target[1] ** 2 * self.counts.loss.sum(-1)
        error = yy - 2 * yp + pp
        # float32 losses, and what differences of large sums lose
        return bool(((error - expected).abs() <= 1e-4 * expected + 1e-10 * yy).all())


def _spreads(prefix: str, value: Statistic, worst: np.ufunc) -> dict[str, Statistic]:
    """Mean and worst of a value over the clients that have one.

    Not its standard deviation: resampling adds noise to the noise of few examples, so that its
    percentiles lie above what they should cover.
    """

    def over(fold: Callable[[NDArray[Any]], NDArray[Any]]) -> Statistic:
        def statistic(counts: Counts) -> NDArray[Any]:
            found = np.asarray(value(counts))
            some = found[..., ~np.isnan(found).all(tuple(range(found.ndim - 1)))]
            return fold(some) if some.shape[-1] else np.full(found.shape[:-1], np.nan)

        return statistic

    return {
        f"{prefix}_mean": over(lambda v: v.mean(-1)),
        f"{prefix}_{worst.__name__[1:]}": over(lambda v: worst.reduce(v, -1)),
    }


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
