"""Linear regression with outlier clients: the synthetic task of FOCUS.

Chu et al.: FOCUS: Fairness via Agent-Awareness for Federated Learning on Heterogeneous Data,
2022. Client e draws x ~ N(0, I_d) and y = mu_e . x + N(0, sigma^2). The means mu_e of normal
clients lie within r of their average, those of outliers at distance R from it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.data.dataset import ClientData, FederatedDataset, Schema
from evenfed.data.partition import Partitioner, no_partition
from evenfed.data.registry import SourceInfo

INFO = SourceInfo(
    name="linear",
    title="Linear regression, a few clients with another coefficient vector",
    kind="regression",
    clients="draws around two coefficient vectors; the last clients are the outliers",
    source="Chu et al.: FOCUS, 2022 (arXiv:2207.10265)",
    terms="generated",
    notes=("the paper states neither d, n nor sigma; sigma = 0.1 is what its test loss implies",),
)


def load(
    *,
    clients: int | None = None,
    partition: Partitioner | None = None,
    seed: int = 0,
    outliers: int = 1,
    r: float = 0.01,
    R: float = 1.0,
    sigma: float = 0.1,
    d: int = 10,
    n: int = 100,
    n_val: int = 100,
    n_test: int = 1000,
) -> FederatedDataset:
    """Draw the task.

    Parameters
    ----------
    clients : int, optional
        Number of clients, outliers among them (E in the paper); 10 if left out.
    partition : None
        Not taken: the clients are made as such.
    seed : int
    outliers : int
        How many of the last clients are outliers.
    r, R : float
        Largest distance of a normal client's coefficients from their mean, and distance of
        the outliers' centre from it.
    sigma : float
        Standard deviation of the noise.
    d, n, n_val, n_test : int
        Dimension, and examples a client.

    Returns
    -------
    FederatedDataset
        With `clusters`: 0 for normal clients, 1 for outliers.

    Examples
    --------
    >>> data = load(seed=0)
    >>> len(data), data.clusters, data.schema.shape
    (10, (0, 0, 0, 0, 0, 0, 0, 0, 0, 1), (10,))
    """
    no_partition(partition, "linear", "drawn around their own coefficients")
    count = 10 if clients is None else clients
    means = true_means(clients=count, outliers=outliers, r=r, R=R, d=d, seed=seed)
    if min(n, d) < 1 or min(n_val, n_test, sigma) < 0:
        raise ConfigError("linear needs n and d of at least 1; n_val, n_test, sigma at least 0")
    width = len(str(count - 1))
    made = [
        ClientData(f"client-{k:0{width}d}", *_draw(mean, (n, n_val, n_test), sigma, (seed, 1, k)))
        for k, mean in enumerate(means)
    ]
    features = tuple(f"x{i}" for i in range(d))
    schema = Schema("linear", "regression", 1, (d,), features=features, label="y", notes=INFO.notes)
    clusters = [0] * (count - outliers) + [1] * outliers
    return FederatedDataset(schema, made, clusters=clusters)


def true_means(
    *,
    clients: int = 10,
    outliers: int = 1,
    r: float = 0.01,
    R: float = 1.0,
    d: int = 10,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Coefficient vectors mu_e that `load` draws with the same arguments, `(K, d)`.

    Examples
    --------
    >>> means = true_means(seed=0)
    >>> centre = means[:9].mean(axis=0)
    >>> [round(float(np.linalg.norm(m - centre)), 6) for m in (means[9], means[:9].max(axis=0))][0]
    1.0
    """
    if not 0 <= outliers < clients:
        raise ConfigError(f"outliers must be in 0..{clients - 1}, not {outliers}")
    if r < 0 or R < 0:
        raise ConfigError("r and R are distances: at least 0")
    rng = np.random.default_rng((seed, 0))
    centre, away = (v / np.linalg.norm(v) for v in rng.standard_normal((2, d)))
    normal = centre + _cloud(clients - outliers, d, r, rng)
    others = centre + R * away + _cloud(outliers, d, r, rng)
    means: NDArray[np.float64] = np.concatenate([normal, others])
    return means


def _cloud(count: int, d: int, radius: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Vectors with mean zero, the longest of length `radius`; the radius is thus exact."""
    offsets = rng.standard_normal((count, d))
    if count < 2:
        return np.zeros_like(offsets)
    offsets -= offsets.mean(axis=0)
    scaled: NDArray[np.float64] = offsets * (radius / np.linalg.norm(offsets, axis=1).max())
    return scaled


def _draw(
    mean: NDArray[np.float64], sizes: tuple[int, ...], sigma: float, seed: tuple[int, ...]
) -> list[Examples]:
    rng = np.random.default_rng(seed)
    splits = []
    for size in sizes:
        x = rng.standard_normal((size, len(mean)))
        y = x @ mean + sigma * rng.standard_normal(size)
        splits.append(Examples.of(torch.from_numpy(x).float(), torch.from_numpy(y).float()))
    return splits
