"""The federated dataset: clients with train, validation and test examples, groups attached."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from evenfed.core.errors import DataError
from evenfed.core.examples import Examples

if TYPE_CHECKING:
    import pandas as pd

    from evenfed.data.inputs import Inputs

Kind = Literal["binary", "multiclass", "regression"]
Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")


@dataclass(frozen=True)
class Groups:
    """The sensitive attributes and their levels.

    An example's code is the intersection of its levels in mixed radix, first attribute
    slowest: with levels (2, 3) the pair (1, 2) has code 1 * 3 + 2 = 5. Counts by code
    therefore give every single attribute by summing.
    """

    names: tuple[str, ...] = ("all",)
    levels: tuple[tuple[str, ...], ...] = (("all",),)

    def __len__(self) -> int:
        return int(np.prod([len(level) for level in self.levels]))

    @property
    def labels(self) -> tuple[str, ...]:
        """A readable name for every code, e.g. `'female / black'`."""
        grids = np.indices([len(level) for level in self.levels]).reshape(len(self.levels), -1)
        return tuple(
            " / ".join(level[i] for level, i in zip(self.levels, column, strict=True))
            for column in grids.T
        )

    def codes(self, *columns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Codes of the intersection from one level index a column, each `(n,)`."""
        code = np.zeros_like(columns[0], dtype=np.int64)
        for level, column in zip(self.levels, columns, strict=True):
            code = code * len(level) + column
        return code


@dataclass(frozen=True)
class Schema:
    """What all clients of a dataset share.

    Parameters
    ----------
    kind : {"binary", "multiclass", "regression"}
        Kind of prediction. For `binary`, label 1 is the favourable outcome.
    classes : int
        Number of classes; 1 for regression.
    features : tuple of str
        Names of the columns of x for tables; empty for images and text.
    shape : tuple of int
        Shape of one example's x.
    """

    name: str
    kind: Kind
    classes: int
    shape: tuple[int, ...]
    features: tuple[str, ...] = ()
    label: str = "label"
    class_names: tuple[str, ...] = ()
    groups: Groups = field(default_factory=Groups)
    vocabulary: int = 0
    notes: tuple[str, ...] = ()
    """Known problems of the data that a reader of a result should know."""
    target: tuple[float, float] = (0.0, 1.0)
    """Offset and scale of a regression's label: it is offset + scale * y."""
    ledger: tuple[str, ...] = ()
    """What left the clients before training (e.g. sums that fitted the preprocessing)."""


@dataclass(frozen=True)
class ClientData:
    """One client's examples. `name` is stable: randomness is seeded by it."""

    name: str
    train: Examples
    val: Examples
    test: Examples

    def split(self, name: Split) -> Examples:
        """Examples of a split by name."""
        return {"train": self.train, "val": self.val, "test": self.test}[name]


def stable_key(name: str) -> int:
    """A 63-bit integer that depends on nothing but the client's name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 1


class FederatedDataset:
    """Clients that are made or read when they are asked for.

    Parameters
    ----------
    schema : Schema
    clients : sequence of ClientData, or a function of the client's index
        A function makes a population far larger than memory possible; it must be pure.
    size : int
        Number of clients, needed with a function.
    clusters : array of int, optional
        True cluster of every client, where it is known (FOCUS).
    inputs : Inputs, or mapping of client to Inputs, optional
        How raw rows became the features: of all clients alike, or of each client by its own rows.
    rows : callable, optional
        Raw rows of a client (by name) in a split.

    Examples
    --------
    >>> from evenfed.data.sources.synthetic import load
    >>> data = load(seed=0)
    >>> len(data), data.schema.kind
    (3, 'binary')
    """

    def __init__(
        self,
        schema: Schema,
        clients: Sequence[ClientData] | Callable[[int], ClientData],
        *,
        size: int | None = None,
        clusters: Sequence[int] | None = None,
        inputs: Inputs | Mapping[str, Inputs] | None = None,
        rows: Callable[[str, Split], pd.DataFrame] | None = None,
    ) -> None:
        self.schema = schema
        self.inputs = inputs
        self.rows = rows
        self.clusters = None if clusters is None else tuple(int(c) for c in clusters)
        self._make = clients if callable(clients) else None
        self._clients = None if callable(clients) else list(clients)
        if self._clients is not None:
            size = len(self._clients)
            check_clients(schema, self._clients)
        if not size:
            raise DataError(f"dataset '{schema.name}' has no clients")
        self._size = size
        self._sizes: dict[str, NDArray[np.int64]] = {}

    def __len__(self) -> int:
        return self._size

    @property
    def lazy(self) -> bool:
        """Whether clients are made when they are asked for."""
        return self._clients is None

    def client(self, index: int) -> ClientData:
        """The client at `index`."""
        if self._clients is not None:
            return self._clients[index]
        assert self._make is not None
        return self._make(index)

    def __iter__(self) -> Iterator[ClientData]:
        return (self.client(i) for i in range(len(self)))

    def key(self, index: int) -> int:
        """Stable integer that seeds the client's randomness; the index where clients are lazy."""
        return index if self._clients is None else stable_key(self._clients[index].name)

    def order(self) -> NDArray[np.int64] | None:
        """Indices `(K,)` in the order in which exchanges take clients: by name; None where lazy.

        A dataset whose clients come in another order gives the same results.
        """
        if self._clients is None:
            return None
        names = [client.name for client in self._clients]
        return np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.int64)

    def sizes(self, split: Split = "train") -> NDArray[np.int64] | None:
        """Examples a client in a split `(K,)`; None where clients are lazy."""
        if self._clients is None:
            return None
        if split not in self._sizes:
            counts = [len(client.split(split)) for client in self._clients]
            self._sizes[split] = np.array(counts, dtype=np.int64)
        return self._sizes[split]

    @property
    def names(self) -> list[str]:
        """Names of all clients (of a lazy population: makes every client)."""
        return [client.name for client in self]

    def permuted(self, order: Sequence[int]) -> FederatedDataset:
        """The same clients in another order; no result may depend on it."""
        if self._make is not None:
            raise DataError("a lazy population has no order to change")
        clusters = None if self.clusters is None else [self.clusters[i] for i in order]
        return FederatedDataset(
            self.schema, [self.client(i) for i in order],
            clusters=clusters, inputs=self.inputs, rows=self.rows,
        )  # fmt: skip

    def with_schema(self, **changes: object) -> FederatedDataset:
        """A copy with fields of the schema replaced."""
        schema = replace(self.schema, **changes)  # type: ignore[arg-type]
        source = self._make if self._clients is None else self._clients
        assert source is not None
        return FederatedDataset(
            schema, source, size=self._size,
            clusters=self.clusters, inputs=self.inputs, rows=self.rows,
        )  # fmt: skip


def check_clients(schema: Schema, clients: Sequence[ClientData]) -> None:
    """Refuse data that would spoil a run, before training, naming client and column."""
    seen: set[str] = set()
    for client in clients:
        if client.name in seen:
            raise DataError(f"two clients are named '{client.name}'; names must be unique")
        seen.add(client.name)
        if len(client.train) == 0:
            raise DataError(f"client '{client.name}' has no training examples")
        for split in SPLITS:
            _check_examples(schema, client.name, split, client.split(split))


def _check_examples(schema: Schema, name: str, split: Split, data: Examples) -> None:
    where = f"client '{name}', {split} data"
    if tuple(data.x.shape[1:]) != schema.shape:
        raise DataError(
            f"{where}: features have shape {tuple(data.x.shape[1:])}, "
            f"the schema says {schema.shape}"
        )
    if not len(data) == len(data.x) == len(data.group) == len(data.mask):
        raise DataError(f"{where}: features, labels and groups differ in length")
    if data.x.is_floating_point() and not torch.isfinite(data.x).all():
        row, *rest = (int(i) for i in (~torch.isfinite(data.x)).nonzero()[0])
        column = schema.features[rest[0]] if schema.features and len(rest) == 1 else tuple(rest)
        raise DataError(f"{where}: feature {column!r} is not finite in row {row}")
    if len(data) == 0:
        return
    if schema.kind == "regression":
        if not torch.isfinite(data.y).all():
            raise DataError(f"{where}: label '{schema.label}' is not finite")
    elif int(data.y.min()) < 0 or int(data.y.max()) >= schema.classes:
        bad = int(((data.y < 0) | (data.y >= schema.classes)).nonzero()[0, 0])
        raise DataError(
            f"{where}: label '{schema.label}' in row {bad} is outside 0..{schema.classes - 1}"
        )
    if int(data.group.min()) < 0 or int(data.group.max()) >= len(schema.groups):
        bad = int(((data.group < 0) | (data.group >= len(schema.groups))).nonzero()[0, 0])
        raise DataError(f"{where}: the group in row {bad} is outside 0..{len(schema.groups) - 1}")
