"""A synthetic population of any size, whose clients are made when they are drawn.

For benchmarks and for runs with far more clients than fit memory: a client depends on nothing
but the seed and its index.
"""

from __future__ import annotations

import numpy as np
import torch

from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.data.dataset import ClientData, FederatedDataset, Groups, Schema
from evenfed.data.partition import Partitioner, no_partition
from evenfed.data.registry import SourceInfo

INFO = SourceInfo(
    name="population",
    title="Generated clients of equal size, a million of them or more",
    kind="binary",
    clients="generated devices, each with a mean of its own",
    sensitive=("z",),
    source="generated: a noisy linear classifier",
    terms="generated",
    notes=("clients are made when they are drawn, so `sizes()` is not known beforehand",),
)


def load(
    *,
    clients: int | None = None,
    partition: Partitioner | None = None,
    seed: int = 0,
    examples: int = 32,
    val: int = 8,
    test: int = 8,
    features: int = 20,
    classes: int = 2,
    heterogeneity: float = 0.5,
) -> FederatedDataset:
    """Describe the population; nothing is drawn until a client is asked for.

    Features are N(u_k, I) with u_k ~ N(0, heterogeneity^2 I) of the client, moved by half a
    unit for group z = 1; labels follow one linear model for all, with Gumbel noise.

    Parameters
    ----------
    clients : int, optional
        1,000,000 if left out.
    partition : None
        Not taken: the clients are made as such.
    seed : int
    examples, val, test : int
        Examples a client.
    features, classes : int
    heterogeneity : float
        Spread of the clients' means.

    Examples
    --------
    >>> data = load(clients=10**9)
    >>> len(data), data.lazy, len(data.client(123_456_789).train)
    (1000000000, True, 32)
    """
    no_partition(partition, "population", "generated one by one")
    count = 1_000_000 if clients is None else clients
    if min(examples, features, count) < 1 or min(val, test) < 0 or classes < 2:
        raise ConfigError("population needs at least 1 client, example and feature, and 2 classes")
    model = np.random.default_rng((seed, 0)).standard_normal((features, classes))
    model *= 2.0 / np.sqrt(features)
    total = examples + val + test

    def make(index: int) -> ClientData:
        if not 0 <= index < count:
            raise IndexError(f"there is no client {index} of {count}")
        rng = np.random.default_rng((seed, 1, index))
        centre = heterogeneity * rng.standard_normal(features)
        group = rng.integers(0, 2, total)
        x = centre + rng.standard_normal((total, features)) + 0.5 * group[:, None]
        label = np.argmax(x @ model + rng.gumbel(size=(total, classes)), axis=1)
        whole = Examples.of(
            torch.from_numpy(x.astype(np.float32)),
            torch.from_numpy(label.astype(np.int64)),
            torch.from_numpy(group.astype(np.int64)),
        )
        cuts = (slice(examples), slice(examples, examples + val), slice(examples + val, total))
        return ClientData(f"client-{index}", *(_part(whole, cut) for cut in cuts))

    schema = Schema(
        "population",
        "binary" if classes == 2 else "multiclass",
        classes,
        (features,),
        features=tuple(f"x{i}" for i in range(features)),
        class_names=tuple(str(c) for c in range(classes)),
        groups=Groups(("z",), (("0", "1"),)),
        notes=INFO.notes,
    )
    return FederatedDataset(schema, make, size=count)


def _part(whole: Examples, cut: slice) -> Examples:
    return Examples(whole.x[cut], whole.y[cut], whole.group[cut], whole.mask[cut])
