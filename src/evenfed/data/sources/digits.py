"""Handwritten digits, 8 x 8: the set that scikit-learn ships. Needs no download."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from evenfed.data.dataset import FederatedDataset
from evenfed.data.images import ImageOptions, ImagePool, federate
from evenfed.data.partition import Partitioner
from evenfed.data.registry import SourceInfo
from evenfed.data.transforms import Rotations

INFO = SourceInfo(
    name="digits",
    title="1,797 handwritten digits, 8 x 8",
    kind="multiclass",
    clients="a partition of the images: Dirichlet over labels unless another is given",
    source="Alpaydin, Kaynak: Optical Recognition of Handwritten Digits (UCI), test part, as in "
    "scikit-learn",
    terms="CC BY 4.0 (UCI)",
)


def load(
    *,
    clients: int | None = None,
    partition: Partitioner | None = None,
    seed: int = 0,
    val: float = 0.1,
    test: float = 0.2,
    rotations: Rotations | str | None = None,
    flat: bool = False,
    examples: int | None = None,
) -> FederatedDataset:
    """Load the digits; for the options see `evenfed.data.images.ImageOptions`.

    Examples
    --------
    >>> data = load(rotations="0:7,90:2,180:1")
    >>> data.schema.shape, data.clusters
    ((1, 8, 8), (0, 0, 0, 0, 0, 0, 0, 1, 1, 2))
    """
    pixels, label = load_digits(return_X_y=True)
    pool = ImagePool.of(pixels.reshape(-1, 8, 8).astype(np.uint8), label, scale=16.0)
    return federate(
        pool,
        None,
        name="digits",
        class_names=tuple(str(digit) for digit in range(10)),
        clients=clients,
        partition=partition,
        seed=seed,
        options=ImageOptions(val, test, rotations, flat, examples),
    )
