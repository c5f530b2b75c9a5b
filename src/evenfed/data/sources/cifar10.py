"""CIFAR-10: the first 1,300 training and 250 test images of every class."""

from __future__ import annotations

import numpy as np

from evenfed.data.dataset import FederatedDataset
from evenfed.data.files import locate
from evenfed.data.images import ImageOptions, ImagePool, federate
from evenfed.data.partition import Partitioner
from evenfed.data.registry import SourceInfo
from evenfed.data.transforms import Rotations

INFO = SourceInfo(
    name="cifar10",
    title="15,500 colour photographs of ten classes, 32 x 32",
    kind="multiclass",
    clients="a partition of the images: Dirichlet over labels unless another is given",
    needs="data files",
    source="Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009",
    terms="none stated; cite Krizhevsky 2009",
    notes=("a subset: 13,000 of 50,000 training and 2,500 of 10,000 test images",),
)

FILE = (
    "cifar10_13k_2500.npz",
    "1bc21f7b1115990adaef223d4f19f511259a3132ac48cf499fa7604d1c8e651f",
)


def load(
    *,
    clients: int | None = None,
    partition: Partitioner | None = None,
    seed: int = 0,
    val: float = 0.1,
    rotations: Rotations | str | None = None,
    flat: bool = False,
    examples: int | None = None,
) -> FederatedDataset:
    """Load the subset; for the options see `evenfed.data.images.ImageOptions`.

    Examples
    --------
    >>> turned = Rotations({0: 7, 180: 3})
    >>> load(rotations=turned)  # doctest: +SKIP
    """
    with np.load(locate("cifar10", *FILE)) as file:
        pools = [
            ImagePool.of(file[f"x_{part}"].transpose(0, 3, 1, 2), file[f"y_{part}"])
            for part in ("train", "test")
        ]
        class_names = tuple(str(name) for name in file["classes"])
    return federate(
        *pools,
        name="cifar10",
        class_names=class_names,
        clients=clients,
        partition=partition,
        seed=seed,
        options=ImageOptions(val, rotations=rotations, flat=flat, examples=examples),
        notes=INFO.notes,
    )
