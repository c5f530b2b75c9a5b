"""What the image sources share: reading, rotating, and dealing images to clients."""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evenfed.core.errors import ConfigError, DataError
from evenfed.core.examples import Examples
from evenfed.data.dataset import ClientData, FederatedDataset, Groups, Schema
from evenfed.data.files import locate
from evenfed.data.inputs import Array
from evenfed.data.partition import (
    IID,
    ByColumn,
    Dirichlet,
    Partitioner,
    PartitionInput,
    Rows,
)
from evenfed.data.split import cells, follow_mix, split_rows
from evenfed.data.transforms import Rotations

DEFAULT_CLIENTS = 10


@dataclass(frozen=True)
class ImagePool:
    """Images before they are dealt, kept as bytes: floats are made a client at a time.

    Parameters
    ----------
    pixels : array of uint8
        `(n, C, H, W)`.
    label : array of int
        `(n,)`.
    group : array of int
        `(n,)`.
    columns : mapping of str to array
        Further columns a partition may use.
    scale : float
        Pixel value that becomes 1.
    """

    pixels: NDArray[np.uint8]
    label: Rows
    group: Rows
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    scale: float = 255.0

    def __len__(self) -> int:
        return len(self.label)

    @classmethod
    def of(
        cls,
        pixels: NDArray[np.uint8],
        label: NDArray[Any],
        group: NDArray[Any] | None = None,
        columns: Mapping[str, NDArray[Any]] | None = None,
        scale: float = 255.0,
    ) -> ImagePool:
        """Wrap arrays; `(n, H, W)` gets an axis of one channel, no group means group 0.

        Examples
        --------
        >>> ImagePool.of(np.zeros((2, 8, 8), np.uint8), np.array([0, 1])).pixels.shape
        (2, 1, 8, 8)
        """
        if pixels.ndim == 3:
            pixels = pixels[:, None]
        group = np.zeros(len(label)) if group is None else group
        return cls(pixels, label.astype(np.int64), group.astype(np.int64), columns or {}, scale)

    def take(self, rows: Rows) -> ImagePool:
        """Keep the images at `rows`."""
        columns = {name: values[rows] for name, values in self.columns.items()}
        return ImagePool(self.pixels[rows], self.label[rows], self.group[rows], columns, self.scale)

    def joined(self, other: ImagePool) -> ImagePool:
        """Put `other`'s images behind these."""
        columns = {
            name: np.concatenate([values, other.columns[name]])
            for name, values in self.columns.items()
        }
        return ImagePool(
            np.concatenate([self.pixels, other.pixels]),
            np.concatenate([self.label, other.label]),
            np.concatenate([self.group, other.group]),
            columns,
            self.scale,
        )

    def rows(self) -> PartitionInput:
        """Give what a partitioner may look at."""
        return PartitionInput(self.label, self.group, self.columns, len(self))

    def examples(self, rows: Rows, angle: float = 0, flat: bool = False) -> Examples:
        """Examples at `rows`, pixels in [0, 1], rotated, as `(n, C, H, W)` or `(n, C*H*W)`."""
        x = rotate(torch.from_numpy(self.pixels[rows]).to(torch.float32) / self.scale, angle)
        return Examples.of(
            x.flatten(1) if flat else x,
            torch.from_numpy(self.label[rows]),
            torch.from_numpy(self.group[rows]),
        )


@dataclass(frozen=True)
class ImageOptions:
    """Options that all image sources take.

    Parameters
    ----------
    val, test : float
        Share of a client's images kept for validation, and for testing where there is no
        official test set.
    rotations : Rotations or str, optional
        Angle of every client's images, e.g. `"0:7,90:2,180:1"`; gives the true clusters.
    flat : bool
        Whether an example is a vector rather than `(C, H, W)`.
    examples : int, optional
        Use only so many training images, drawn by the seed, and as large a share of the
        test images.
    """

    val: float = 0.1
    test: float = 0.2
    rotations: Rotations | str | None = None
    flat: bool = False
    examples: int | None = None

    def __post_init__(self) -> None:
        if min(self.val, self.test) < 0 or self.val + self.test >= 1:
            raise ConfigError("val and test are shares: at least 0, together below 1")

    @property
    def angles(self) -> Rotations | None:
        """The rotations, read from text if need be."""
        given = self.rotations
        return Rotations.parse(given) if isinstance(given, str) else given


def locate_idx(
    dataset: str, filename: str, sha256s: Sequence[str], url: str | None = None, advice: str = ""
) -> Path:
    """Path of a file that is in circulation under several compressions.

    Parameters
    ----------
    dataset, filename : str
    sha256s : sequence of str
        Acceptable checksums; the last is that of `url`.
    url, advice : str
        See `evenfed.data.files.locate`.

    Examples
    --------
    >>> locate_idx("none", "none.gz", ["0" * 64])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    evenfed.core.errors.DataError: dataset 'none': file 'none.gz' was not found. Looked for: ...
    """
    for sha256 in sha256s[:-1]:
        with contextlib.suppress(DataError):
            return locate(dataset, filename, sha256, download=False)
    return locate(dataset, filename, sha256s[-1], url, advice=advice)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read a gzipped IDX file of bytes (the format of MNIST).

    Examples
    --------
    >>> import os, tempfile
    >>> handle, name = tempfile.mkstemp()
    >>> os.close(handle)
    >>> _ = Path(name).write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9])))
    >>> read_idx(Path(name))
    array([7, 9], dtype=uint8)
    >>> Path(name).unlink()
    """
    try:
        with gzip.open(path, "rb") as file:
            content = file.read()
    except (OSError, EOFError) as error:
        raise DataError(f"file '{path}' is not a readable gzip file") from error
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise DataError(f"file '{path}' is not an IDX file of bytes")
    axes = content[3]
    shape = np.frombuffer(content, ">u4", axes, 4).astype(np.int64)
    if len(content) != 4 + 4 * axes + int(np.prod(shape)):
        raise DataError(f"file '{path}' is cut short or has bytes to spare")
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape).copy()


def rotate(images: Tensor, angle: float) -> Tensor:
    """Rotate images `(n, C, H, W)` counter-clockwise by an angle in degrees.

    Multiples of 90 degrees move pixels exactly; other angles interpolate, with zeros from
    outside.

    Examples
    --------
    >>> rotate(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), 90)
    tensor([[[[2., 4.],
              [1., 3.]]]])
    """
    if images.shape[-1] != images.shape[-2]:
        raise DataError(f"only square images can be rotated, not {tuple(images.shape[-2:])}")
    if angle % 90 == 0:
        return torch.rot90(images, int(angle // 90) % 4, dims=(-2, -1))
    radians = torch.deg2rad(torch.tensor(float(angle)))
    cos, sin = float(radians.cos()), float(radians.sin())
    theta = torch.tensor([[cos, -sin, 0.0], [sin, cos, 0.0]]).expand(len(images), 2, 3)
    grid = torch.nn.functional.affine_grid(theta, list(images.shape), align_corners=False)
    return torch.nn.functional.grid_sample(images, grid, align_corners=False)


def federate(
    train: ImagePool,
    test: ImagePool | None,
    *,
    name: str,
    class_names: tuple[str, ...],
    clients: int | None,
    partition: Partitioner | None,
    seed: int,
    options: ImageOptions,
    groups: Groups | None = None,
    notes: tuple[str, ...] = (),
) -> FederatedDataset:
    """Deal images to clients and split each client's into train, validation and test.

    Without a partition: Dirichlet over labels with alpha 0.5, or even and random (`IID`)
    where images are rotated. The official test set, where there is one, is dealt by the
    clients' training mix; a partition by a column whose values the official test set does
    not share (writers) joins both sets and splits each client.

    Examples
    --------
    >>> pool = ImagePool.of(np.zeros((20, 8, 8), np.uint8), np.arange(20) % 2)
    >>> data = federate(pool, None, name="blank", class_names=("a", "b"), clients=2,
    ...                 partition=IID(), seed=0, options=ImageOptions())
    >>> data.sizes("train"), data.sizes("test")
    (array([7, 7]), array([2, 2]))
    """
    train, test = _subsample(train, test, options.examples, seed)
    rotations = options.angles
    if partition is None:
        partition = IID() if rotations is not None else Dirichlet("label", 0.5)
    if clients is None and not isinstance(partition, ByColumn):
        clients = DEFAULT_CLIENTS if rotations is None else sum(rotations.counts.values())
    if test is not None and isinstance(partition, ByColumn) and not _shared(train, test, partition):
        train, test = train.joined(test), None
    parts = partition.assign(train.rows(), clients, seed)
    test_parts = None if test is None else _deal_test(train, parts, test, partition, seed)
    angles = rotations.angles(len(parts)) if rotations else [0.0] * len(parts)
    made = []
    for k, client_name in enumerate(partition.names(train.rows(), len(parts))):
        shares = (options.val, options.test if test is None else 0.0)
        rest, (val, held) = split_rows(parts[k], shares, np.random.default_rng((seed, 2, k)))
        chosen = [(train, rest), (train, val)]
        chosen.append(
            (train, held) if test is None or test_parts is None else (test, test_parts[k])
        )
        splits = [pool.examples(rows, angles[k], options.flat) for pool, rows in chosen]
        made.append(ClientData(client_name, *splits))
    shape = tuple(made[0].train.x.shape[1:])
    schema = Schema(
        name,
        "multiclass",
        len(class_names),
        shape,
        class_names=class_names,
        groups=groups or Groups(),
        notes=notes,
    )
    clusters = rotations.clusters(len(parts)) if rotations else None
    inputs = Array(shape, train.scale)
    return FederatedDataset(schema, made, clusters=clusters, inputs=inputs)


def _shared(train: ImagePool, test: ImagePool, partition: ByColumn) -> bool:
    """Whether both sets hold the same values of the partition's column."""
    first, second = (pool.rows().values(partition.column)[0] for pool in (train, test))
    return bool(np.array_equal(first, second))


def _deal_test(
    train: ImagePool, parts: Sequence[Rows], test: ImagePool, partition: Partitioner, seed: int
) -> list[Rows]:
    if isinstance(partition, ByColumn):
        return partition.assign(test.rows(), None, seed)
    first, second = (cells(pool.label, pool.group) for pool in (train, test))
    return follow_mix(first, parts, second, seed)


def _subsample(
    train: ImagePool, test: ImagePool | None, examples: int | None, seed: int
) -> tuple[ImagePool, ImagePool | None]:
    if examples is None:
        return train, test
    if not 1 <= examples <= len(train):
        raise ConfigError(f"examples must be in 1..{len(train)}, not {examples}")
    rng = np.random.default_rng((seed, 3))
    share = examples / len(train)
    train = train.take(np.sort(rng.permutation(len(train))[:examples]))
    if test is not None:
        kept = max(1, round(share * len(test)))
        test = test.take(np.sort(rng.permutation(len(test))[:kept]))
    return train, test
