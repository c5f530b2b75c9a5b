"""SYNTHETIC: two Gaussian classes in the plane with a correlated sensitive bit.

Zeng, Chen, Lee: Improving Fairness via Federated Learning (FedFB), 2021; used by PraFFL and
HetPFL. y ~ Bernoulli(0.6), x | y Gaussian, and z depends on x turned by 45 degrees.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from evenfed.core.errors import ConfigError, suggest
from evenfed.core.examples import Examples
from evenfed.data.dataset import ClientData, FederatedDataset, Groups, Schema
from evenfed.data.partition import ByColumn, FixedShares, Partitioner, PartitionInput, Rows
from evenfed.data.registry import SourceInfo
from evenfed.data.split import cells, follow_mix, split_rows

INFO = SourceInfo(
    name="synthetic",
    title="Two Gaussian classes in the plane, one correlated sensitive bit",
    kind="binary",
    clients="fixed shares of each sensitive group (3 clients; lists for 10, 100 and 300)",
    sensitive=("z",),
    source="Zeng, Chen, Lee: Improving Fairness via Federated Learning, 2021 (arXiv:2110.15545)",
    terms="generated",
    notes=(
        "the sensitive bit z is a feature, as published; include_sensitive=False leaves it out",
        "setting '0.1' is the hand-written table of the published code, not a Dirichlet(0.1) draw",
        "the published code makes 3 clients whatever its list says; the lists for 10, 100 and "
        "300 clients are used here as they were meant",
    ),
)

PUBLISHED_SEED = 123
MEAN = {0: np.array([-2.0, -2.0]), 1: np.array([2.0, 2.0])}
COVARIANCE = {0: np.array([[10.0, 1.0], [1.0, 3.0]]), 1: np.array([[5.0, 1.0], [1.0, 5.0]])}
P_LABEL = 0.6

Shares = dict[int, tuple[float, ...]]
SETTINGS: dict[str, Shares] = {
    "default": {1: (0.5, 0.3, 0.2), 0: (0.2, 0.4, 0.4)},
    "0.1": {1: (0.474, 0.09, 0.436), 0: (0.09, 0.818, 0.092)},
    "5": {
        1: (0.49924409, 0.27875569, 0.22200021),
        0: (0.33939015, 0.42313098, 0.23747887),
    },
    "1000": {
        1: (0.33855557, 0.32945964, 0.33198478),
        0: (0.33149328, 0.33188017, 0.33662654),
    },
}


def _steps(clients: int, low: float, high: float) -> Shares:
    """Shares of the published lists for many clients: a fifth even, two fifths each skewed."""
    fifth, skewed = clients // 5, 2 * clients // 5
    even = [1.0] * fifth
    one = [*even, *[low] * skewed, *[high] * skewed]
    zero = [*[high] * skewed, *even, *[low] * skewed]
    return {1: tuple(s / clients for s in one), 0: tuple(s / clients for s in zero)}


MANY: dict[int, Shares] = {
    10: {
        1: (0.08, 0.1, 0.15, 0.15, 0.12, 0.12, 0.1, 0.05, 0.05, 0.08),
        0: (0.1, 0.12, 0.05, 0.05, 0.08, 0.1, 0.08, 0.15, 0.15, 0.12),
    },
    100: _steps(100, 0.4, 1.6),
    300: _steps(300, 0.5, 1.5),
}
SIZES = {3: (3500, 1500), 10: (5000, 2000), 100: (20000, 8000), 300: (25000, 8000)}

Table = tuple[NDArray[np.float64], Rows, Rows]
"""Points `(n, 2)`, labels `(n,)` and sensitive bits `(n,)`."""


def load(
    *,
    clients: int | None = None,
    partition: Partitioner | None = None,
    seed: int = 0,
    setting: str | float = "default",
    protocol: str = "redrawn",
    examples: int | None = None,
    test_examples: int | None = None,
    include_sensitive: bool = True,
) -> FederatedDataset:
    """Draw the data and deal them.

    Parameters
    ----------
    clients : int, optional
        3 (default), 10, 100 or 300 have published shares; any number with a partition.
    partition : Partitioner, optional
        Instead of the published shares; test data follow each client's training mix.
    seed : int
        Unused by the published protocol, whose data are fixed.
    setting : {"default", "0.1", "5", "1000"}
        Heterogeneity of three clients.
    protocol : {"redrawn", "published"}
        "published" gives the rows and splits of the released code: NumPy's legacy generator
        with seed 123, validation the last tenth of each client's list.
    examples, test_examples : int, optional
        Training (with validation) and test examples of all clients together.
    include_sensitive : bool
        Whether z is the third feature.

    Examples
    --------
    >>> load(protocol="published").sizes("test")
    array([574, 508, 418])
    """
    if protocol not in ("redrawn", "published"):
        known = ("redrawn", "published")
        raise ConfigError(f"synthetic has no protocol '{protocol}'.{suggest(protocol, known)}")
    published = protocol == "published"
    if published and (partition or examples or test_examples):
        raise ConfigError("the published protocol fixes partition, examples and test_examples")
    dealer = _dealer(clients, partition, setting, shuffle=not published)
    count = clients or 3
    default = SIZES.get(count, SIZES[3])
    size, held = (a or b for a, b in zip((examples, test_examples), default, strict=True))
    points, label, bit = draw_published(size + held) if published else draw(size + held, seed)
    rows = PartitionInput(label[:size], bit[:size])
    test_rows = PartitionInput(label[size:], bit[size:])
    chosen = None if isinstance(dealer, ByColumn) else count
    parts = dealer.assign(rows, chosen, seed)
    if isinstance(dealer, FixedShares):
        test_parts = dealer.assign(test_rows, chosen, seed)
    else:
        mixes = (cells(r.label, r.group) for r in (rows, test_rows))
        test_parts = follow_mix(next(mixes), parts, next(mixes), seed)
    split = _published_split(bit) if published else _random_split(seed)
    features = np.column_stack([points, bit] if include_sensitive else [points])

    def take(chosen_rows: Rows) -> Examples:
        x = torch.from_numpy(features[chosen_rows].astype(np.float32))
        y, z = (torch.from_numpy(column[chosen_rows]) for column in (label, bit))
        return Examples.of(x, y, z)

    made = []
    for k, name in enumerate(dealer.names(rows, len(parts))):
        train, val = split(parts[k])
        made.append(ClientData(name, take(train), take(val), take(test_parts[k] + size)))
    return FederatedDataset(_schema(include_sensitive), made)


def draw(size: int, seed: int) -> Table:
    """Draw `size` examples.

    Examples
    --------
    >>> points, label, bit = draw(4, seed=0)
    >>> points.shape, label.shape, bit.shape
    ((4, 2), (4,), (4,))
    """
    rng = np.random.default_rng(seed)
    label = rng.binomial(1, P_LABEL, size).astype(np.int64)
    roots = np.stack([np.linalg.cholesky(COVARIANCE[y]) for y in (0, 1)])
    means = np.stack([MEAN[y] for y in (0, 1)])
    points = means[label] + np.einsum("nij,nj->ni", roots[label], rng.standard_normal((size, 2)))
    bit = rng.binomial(1, sensitive_probability(points)).astype(np.int64)
    return points, label, bit


def draw_published(size: int) -> Table:
    """Draw in the order of the released code: all labels, then each point and its bit.

    Examples
    --------
    >>> label = draw_published(5000)[1]
    >>> round(float(label[:3500].mean()), 3), round(float(label[3500:].mean()), 3)
    (0.598, 0.605)
    """
    legacy = np.random.RandomState(PUBLISHED_SEED)
    label = legacy.binomial(1, P_LABEL, size).astype(np.int64)
    points, bit = np.empty((size, 2)), np.empty(size, np.int64)
    for i, y in enumerate(label.tolist()):
        points[i] = legacy.multivariate_normal(MEAN[y], COVARIANCE[y])
        bit[i] = legacy.binomial(1, sensitive_probability(points[i : i + 1])[0])
    return points, label, bit


def sensitive_probability(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """P(z = 1 | x) for points `(n, 2)`: the classes' densities compared at x turned by 45 degrees.

    Examples
    --------
    >>> sensitive_probability(np.array([[3.0, 0.0]])).round(2)
    array([0.96])
    """
    c = math.cos(math.pi / 4)
    turned = points @ np.array([[c, c], [-c, c]])
    zero, one = (_log_density(turned, y) for y in (0, 1))
    probability: NDArray[np.float64] = 1.0 / (1.0 + np.exp(zero - one))
    return probability


def _log_density(points: NDArray[np.float64], y: int) -> NDArray[np.float64]:
    """Log-density of class `y`, up to the constant that both classes share."""
    gap = points - MEAN[y]
    form = np.einsum("ni,ij,nj->n", gap, np.linalg.inv(COVARIANCE[y]), gap)
    density: NDArray[np.float64] = -0.5 * (form + np.log(np.linalg.det(COVARIANCE[y])))
    return density


def _dealer(
    clients: int | None, partition: Partitioner | None, setting: str | float, shuffle: bool
) -> Partitioner:
    name = setting if isinstance(setting, str) else f"{setting:g}"
    if name not in SETTINGS:
        raise ConfigError(f"synthetic has no setting '{name}'.{suggest(name, SETTINGS)}")
    if name != "default" and (partition is not None or clients not in (None, 3)):
        raise ConfigError(f"setting '{name}' is for three clients and takes no partition")
    if partition is not None:
        return partition
    if clients in (None, 3):
        return FixedShares(SETTINGS[name], shuffle=shuffle)
    if clients not in MANY:
        raise ConfigError(
            f"synthetic has shares for 3, 10, 100 and 300 clients, not {clients}; give a "
            "partition, e.g. 'dirichlet:sensitive:0.5'"
        )
    return FixedShares(MANY[clients], shuffle=shuffle)


def _published_split(bit: Rows) -> Callable[[Rows], tuple[Rows, Rows]]:
    shuffler = random.Random(PUBLISHED_SEED)

    def split(part: Rows) -> tuple[Rows, Rows]:
        order = [*part[bit[part] == 1].tolist(), *part[bit[part] == 0].tolist()]
        shuffler.shuffle(order)
        cut = int(0.9 * len(order))
        return np.array(order[:cut], np.int64), np.array(order[cut:], np.int64)

    return split


def _random_split(seed: int) -> Callable[[Rows], tuple[Rows, Rows]]:
    rng = np.random.default_rng((seed, 2))

    def split(part: Rows) -> tuple[Rows, Rows]:
        rest, (val,) = split_rows(part, (0.1,), rng)
        return rest, val

    return split


def _schema(include_sensitive: bool) -> Schema:
    features = ("x1", "x2", "z") if include_sensitive else ("x1", "x2")
    return Schema(
        "synthetic",
        "binary",
        2,
        (len(features),),
        features=features,
        label="y",
        class_names=("0", "1"),
        groups=Groups(("z",), (("0", "1"),)),
        notes=INFO.notes,
    )
