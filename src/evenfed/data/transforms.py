"""What is done to single clients after the examples are dealt: rotated images, wrong labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from evenfed.core.errors import ConfigError, suggest
from evenfed.data.dataset import ClientData, FederatedDataset


@dataclass(frozen=True)
class Rotations:
    """How many clients see images rotated by which angle; the angle is the true cluster.

    Examples
    --------
    >>> rotations = Rotations({0: 3, 90: 1})
    >>> rotations.angles(4), rotations.clusters(4)
    ([0, 0, 0, 90], [0, 0, 0, 1])
    """

    counts: Mapping[float, int]

    @classmethod
    def parse(cls, text: str) -> Rotations:
        """Read "ANGLE:CLIENTS,ANGLE:CLIENTS,...".

        Examples
        --------
        >>> Rotations.parse("0:7,90:2,180:1").counts
        {0.0: 7, 90.0: 2, 180.0: 1}
        """
        try:
            pairs = [part.split(":") for part in text.split(",")]
            return cls({float(angle): int(count) for angle, count in pairs})
        except ValueError as error:
            raise ConfigError(
                f"cannot read rotations '{text}'; write e.g. '0:7,90:2,180:1' for seven "
                "clients at 0 degrees, two at 90 and one at 180"
            ) from error

    def clusters(self, clients: int) -> list[int]:
        """Cluster of every client `(K,)`: the position of its angle in `counts`."""
        if sum(self.counts.values()) != clients or min(self.counts.values()) < 0:
            given = sum(self.counts.values())
            raise ConfigError(f"rotations are given for {given} clients, there are {clients}")
        return [c for c, count in enumerate(self.counts.values()) for _ in range(count)]

    def angles(self, clients: int) -> list[float]:
        """Angle of every client in degrees, counter-clockwise `(K,)`."""
        angles = list(self.counts)
        return [angles[c] for c in self.clusters(clients)]


@dataclass(frozen=True)
class LabelNoise:
    """Wrong labels in the training data of some clients.

    With probability `rate` a training label becomes one of the other classes, all equally
    likely. Validation and test labels stay clean.

    Parameters
    ----------
    clients : sequence of int
        Indices of the noisy clients.
    rate : float
        In [0, 1].
    kind : {"symmetric"}

    Examples
    --------
    >>> from evenfed.data.sources.synthetic import load
    >>> clean = load(seed=0)
    >>> noisy = LabelNoise((1,), rate=1.0).apply(clean, seed=0)
    >>> [bool((a.train.y == b.train.y).all()) for a, b in zip(clean, noisy)]
    [True, False, True]
    """

    clients: Sequence[int]
    rate: float
    kind: str = "symmetric"

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise ConfigError(f"the rate of label noise must be in [0, 1], not {self.rate}")
        if self.kind != "symmetric":
            raise ConfigError(
                f"unknown label noise '{self.kind}'.{suggest(self.kind, ['symmetric'])}"
            )

    def apply(self, data: FederatedDataset, seed: int) -> FederatedDataset:
        """Copy `data`, with noisy training labels at the chosen clients."""
        classes = data.schema.classes
        if classes < 2:
            raise ConfigError("label noise needs a classification dataset")
        wrong = [k for k in self.clients if not 0 <= k < len(data)]
        if wrong:
            raise ConfigError(f"label noise: there is no client {wrong[0]} of {len(data)}")
        noisy = frozenset(self.clients)

        def client(index: int) -> ClientData:
            made = data.client(index)
            if index not in noisy:
                return made
            rng = np.random.default_rng((seed, data.key(index)))
            size = len(made.train)
            shift = rng.integers(1, classes, size) * (rng.random(size) < self.rate)
            labels = (made.train.y + torch.from_numpy(shift).to(made.train.y.dtype)) % classes
            return replace(made, train=replace(made.train, y=labels))

        source = client if data.lazy else [client(k) for k in range(len(data))]
        return FederatedDataset(
            data.schema, source, size=len(data),
            clusters=data.clusters, inputs=data.inputs, rows=data.rows,
        )  # fmt: skip
