"""FEMNIST: handwritten digits and letters, a client a writer (LEAF)."""

from __future__ import annotations

import string

import numpy as np

from evenfed.core.errors import ConfigError
from evenfed.data.dataset import ClientData, FederatedDataset, Schema
from evenfed.data.files import locate
from evenfed.data.images import ImageOptions, ImagePool, federate
from evenfed.data.inputs import Array
from evenfed.data.partition import ByColumn, Partitioner
from evenfed.data.registry import SourceInfo
from evenfed.data.split import split_rows

INFO = SourceInfo(
    name="femnist",
    title="16,393 handwritten digits and letters of 105 writers, 28 x 28",
    kind="multiclass",
    clients="writers with at least `min_size` training images, unless a partition is given",
    needs="data files",
    source="Caldas et al.: LEAF, 2018 (arXiv:1812.01097); Cohen et al.: EMNIST, 2017",
    terms="none stated with the files; LEAF is BSD, NIST SD19 a work of the US government",
    notes=(
        "part of LEAF's 5 % sample: 105 writers have training and test images; 79 writers with "
        "test images only are left out",
        "paper is white: pixel 1 is background",
    ),
)

FILE = (
    "femnist_leaf_184w.npz",
    "375ad1ec40f5d7c51ac0ff4e164d063b2c4296db9c4d94957b7b2e8fae161522",
)
CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)


def load(
    *,
    clients: int | None = None,
    partition: Partitioner | None = None,
    seed: int = 0,
    min_size: int = 20,
    val: float = 0.1,
    flat: bool = False,
) -> FederatedDataset:
    """Load FEMNIST.

    Parameters
    ----------
    clients : int, optional
        So many of the writers, drawn by the seed; all of them if left out.
    partition : Partitioner, optional
        Deal the images of all writers anew, e.g. `IID()`; "column:writer" is the default.
    seed : int
    min_size : int
        Writers with fewer training images (validation included) are left out.
    val, flat
        See `evenfed.data.images.ImageOptions`.

    Examples
    --------
    >>> from evenfed.data.partition import IID
    >>> load(clients=20, partition=IID())  # doctest: +SKIP
    """
    train, test, writers = _read()
    options = ImageOptions(val, flat=flat)
    if partition is not None and partition != ByColumn("writer"):
        return federate(
            train,
            test,
            name="femnist",
            class_names=CLASSES,
            clients=clients,
            partition=partition,
            seed=seed,
            options=options,
            notes=INFO.notes,
        )
    counts = np.bincount(train.columns["writer"], minlength=len(writers))
    chosen = np.flatnonzero(counts >= max(min_size, 1))
    if clients is not None:
        if not 1 <= clients <= len(chosen):
            raise ConfigError(
                f"femnist has {len(chosen)} writers with at least {min_size} images, not {clients}"
            )
        chosen = np.sort(np.random.default_rng(seed).permutation(chosen)[:clients])
    made = []
    for w in chosen.tolist():
        rows, test_rows = (np.flatnonzero(p.columns["writer"] == w) for p in (train, test))
        rest, (held,) = split_rows(rows, (val,), np.random.default_rng((seed, 2, w)))
        parts = ((train, rest), (train, held), (test, test_rows))
        made.append(ClientData(writers[w], *(p.examples(r, flat=flat) for p, r in parts)))
    schema = Schema(
        "femnist",
        "multiclass",
        len(CLASSES),
        (784,) if flat else (1, 28, 28),
        class_names=CLASSES,
        notes=INFO.notes,
    )
    return FederatedDataset(schema, made, inputs=Array(schema.shape, train.scale))


def _read() -> tuple[ImagePool, ImagePool, list[str]]:
    with np.load(locate("femnist", *FILE)) as file:
        writers = [str(name) for name in file["writers"][: int(file["n_train_writers"])]]
        pools = []
        for part in ("train", "test"):
            writer = file[f"writer_{part}"].astype(np.int64)
            kept = writer < len(writers)
            pools.append(
                ImagePool.of(
                    file[f"x_{part}"][kept],
                    file[f"y_{part}"][kept],
                    columns={"writer": writer[kept]},
                )
            )
    return pools[0], pools[1], writers
