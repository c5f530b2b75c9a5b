"""How clients differ, from sums that each could send: sizes, labels, groups, means of features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2_contingency

from evenfed.core.errors import ConfigError
from evenfed.data.dataset import FederatedDataset

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sums:
    """What clients send about their training examples.

    Parameters
    ----------
    names : tuple of str
    size : array `(K,)`
    cells : array `(K, G, C)`
        Examples by group and label; one label for regression.
    first, second : array `(K, d)`
        Sums of features and of their squares; no columns where features are tokens or images.
    label, label2 : array `(K,)`
        Sums of the label and of its squares, for regression.
    """

    names: tuple[str, ...]
    size: Floats
    cells: Floats
    first: Floats
    second: Floats
    label: Floats
    label2: Floats


def sums(data: FederatedDataset) -> Sums:
    """Add up what is needed, client by client.

    Examples
    --------
    >>> from evenfed.data.registry import load
    >>> sums(load("synthetic", seed=0)).cells.shape
    (3, 2, 2)
    """
    if data.lazy:
        raise ConfigError("clients that are made when they are asked for cannot be looked at")
    schema = data.schema
    groups, classes = len(schema.groups), schema.classes
    table = len(schema.shape) == 1 and not schema.vocabulary
    size, cells, first, second, label, label2 = [], [], [], [], [], []
    for client in data:
        own = client.train
        x = own.x.double().numpy() if table else np.zeros((len(own), 0))
        y, group = own.y.double().numpy(), own.group.numpy()
        size.append(len(own))
        first.append(x.sum(0))
        second.append((x**2).sum(0))
        label.append(y.sum())
        label2.append((y**2).sum())
        code = group if schema.kind == "regression" else group * classes + own.y.numpy()
        cells.append(np.bincount(code, minlength=groups * classes).reshape(groups, classes))
    arrays = (size, cells, first, second, label, label2)
    return Sums(tuple(data.names), *(np.asarray(a, dtype=np.float64) for a in arrays))


def association(table: Floats) -> tuple[float, float]:
    """Cramer's V of counts `(K, c)`, corrected for bias, and the chance of as large a one.

    0: clients have the same shares; 1: the client tells the column. Bergsma's correction (2013).

    Examples
    --------
    >>> association(np.array([[50.0, 50.0], [50.0, 50.0]]))
    (0.0, 1.0)
    """
    kept = table[table.sum(1) > 0][:, table.sum(0) > 0]
    if min(kept.shape) < 2:
        return 0.0, 1.0
    test = chi2_contingency(kept, correction=False)
    n, (r, c) = kept.sum(), kept.shape
    phi = max(0.0, float(test.statistic) / n - (r - 1) * (c - 1) / (n - 1))
    low = min(r - (r - 1) ** 2 / (n - 1), c - (c - 1) ** 2 / (n - 1)) - 1
    return float(np.sqrt(phi / low)) if low > 0 else 0.0, float(test.pvalue)


@dataclass(frozen=True)
class Difference:
    """Largest difference of a mean between a client and all others."""

    client: str
    feature: int
    smd: float
    """Standardised mean difference: over the spread of all rows."""
    z: float
    """The difference over its standard error."""


def mean_differences(found: Sums) -> tuple[Difference | None, Floats]:
    """The largest difference, and the largest of each client `(K,)`; None without features."""
    n, total = found.size.sum(), found.first.sum(0)
    if found.first.shape[1] == 0 or len(found.names) < 2:
        return None, np.zeros(len(found.names))
    spread = np.sqrt(np.maximum(found.second.sum(0) / n - (total / n) ** 2, 0))
    own = found.first / found.size[:, None]
    rest = (total - found.first) / (n - found.size)[:, None]
    smd = np.where(spread > 1e-12, np.abs(own - rest) / np.where(spread > 1e-12, spread, 1), 0.0)
    z = smd / np.sqrt(1 / found.size + 1 / (n - found.size))[:, None]
    k, j = (int(i) for i in np.unravel_index(int(z.argmax()), z.shape))
    return Difference(found.names[k], j, float(smd[k, j]), float(z[k, j])), smd.max(1)
