"""How examples are dealt to clients.

A partitioner is a small frozen dataclass with `assign`: it sees labels, groups and named
columns, never features. All of them deal every example exactly once and depend on nothing
but their fields, the rows and the seed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenfed.core.errors import ConfigError, DataError, suggest

Rows = NDArray[np.int64]

MAX_DRAWS = 500
"""Redraws before a partition that leaves a client too small is given up."""


@dataclass(frozen=True)
class PartitionInput:
    """What a partitioner may look at.

    Parameters
    ----------
    label : array
        Labels `(n,)`.
    group : array of int
        Codes of the sensitive attributes `(n,)`.
    columns : mapping of str to array, optional
        Further columns `(n,)`, e.g. a hospital's name.
    size : int, optional
        Number of examples, `n`; taken from `label` if left out.
    """

    label: NDArray[Any]
    group: Rows
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    size: int = -1

    def __post_init__(self) -> None:
        if self.size < 0:
            object.__setattr__(self, "size", len(self.label))
        named = {"label": self.label, "sensitive": self.group, **self.columns}
        for name, values in named.items():
            if len(values) != self.size:
                raise DataError(f"column '{name}' has {len(values)} rows, expected {self.size}")

    def values(self, column: str) -> tuple[NDArray[Any], Rows]:
        """Distinct values of a column, and for each row the index of its value `(n,)`.

        `column` is "label", "sensitive", "label*sensitive" or a name in `columns`. A value
        of "label*sensitive" is the pair's number, label slowest.
        """
        if column == "label*sensitive":
            (_, label), (groups, group) = self.values("label"), self.values("sensitive")
            table: NDArray[Any] = label * len(groups) + group
        elif column in self.columns:
            table = self.columns[column]
        elif column in ("label", "sensitive"):
            table = self.label if column == "label" else self.group
        else:
            known = ["label", "sensitive", "label*sensitive", *self.columns]
            raise ConfigError(
                f"there is no column '{column}' to partition by.{suggest(column, known)}"
            )
        if np.issubdtype(table.dtype, np.floating):
            if not np.isfinite(table).all():
                raise DataError(f"column '{column}' has missing values, so no client can be told")
            if (table != np.round(table)).any():
                raise ConfigError(
                    f"column '{column}' is continuous; partition by a column of categories, "
                    "or by 'iid' or 'quantity'"
                )
        values, inverse = np.unique(table, return_inverse=True)
        return values, inverse.reshape(-1).astype(np.int64)


class Partitioner(ABC):
    """Deals examples to clients."""

    @abstractmethod
    def assign(self, rows: PartitionInput, clients: int | None, seed: int) -> list[Rows]:
        """Row numbers of each client, ascending; every row in exactly one client."""

    def names(self, rows: PartitionInput, clients: int) -> list[str]:
        """Names of the clients that `assign` returns, in its order."""
        width = len(str(clients - 1))
        return [f"client-{k:0{width}d}" for k in range(clients)]


@dataclass(frozen=True)
class ByColumn(Partitioner):
    """One client a value of a column, in sorted order and named by it.

    Examples
    --------
    >>> rows = PartitionInput(np.zeros(3), np.zeros(3, int), {"site": np.array(["b", "a", "b"])})
    >>> ByColumn("site").assign(rows, None, 0), ByColumn("site").names(rows, 2)
    ([array([1]), array([0, 2])], ['a', 'b'])
    """

    column: str

    def __str__(self) -> str:
        return f"column:{self.column}"

    def assign(self, rows: PartitionInput, clients: int | None, seed: int) -> list[Rows]:
        """See `Partitioner.assign`; `clients`, if given, must be the number of values."""
        values, index = rows.values(self.column)
        if clients is not None and clients != len(values):
            raise ConfigError(
                f"column '{self.column}' makes {len(values)} clients, not {clients}; leave the "
                "number of clients out, or choose another partition"
            )
        return [np.flatnonzero(index == v) for v in range(len(values))]

    def names(self, rows: PartitionInput, clients: int) -> list[str]:
        """Values of the column, as text."""
        return [str(value) for value in rows.values(self.column)[0]]


@dataclass(frozen=True)
class IID(Partitioner):
    """Shuffle and deal evenly: sizes differ by at most one.

    Examples
    --------
    >>> rows = PartitionInput(np.arange(7) % 2, np.zeros(7, int))
    >>> [len(part) for part in IID().assign(rows, 3, seed=0)]
    [3, 2, 2]
    """

    def __str__(self) -> str:
        return "iid"

    def assign(self, rows: PartitionInput, clients: int | None, seed: int) -> list[Rows]:
        """See `Partitioner.assign`."""
        count = _count(rows, clients)
        order = np.random.default_rng(seed).permutation(rows.size)
        return [np.sort(part) for part in np.array_split(order, count)]


@dataclass(frozen=True)
class Dirichlet(Partitioner):
    """For every value of a column, one Dirichlet draw of the clients' shares of it.

    The usual label skew with `column="label"`; the group skew of FedFB and HetPFL with
    `column="sensitive"`. Small `alpha`: a value lives at few clients.

    Examples
    --------
    >>> rows = PartitionInput(np.arange(90) % 3, np.zeros(90, int))
    >>> parts = Dirichlet("label", alpha=0.5).assign(rows, 3, seed=0)
    >>> sum(len(part) for part in parts), min(len(part) for part in parts) >= 10
    (90, True)
    """

    column: str = "label"
    alpha: float = 0.5
    min_size: int = 10

    def __post_init__(self) -> None:
        _positive("alpha", self.alpha)

    def __str__(self) -> str:
        text = f"dirichlet:{self.column}:{self.alpha}"
        return text if self.min_size == 10 else f"{text}:{self.min_size}"

    def assign(self, rows: PartitionInput, clients: int | None, seed: int) -> list[Rows]:
        """See `Partitioner.assign`."""
        count = _count(rows, clients, self.min_size)
        rng = np.random.default_rng(seed)
        values, index = rows.values(self.column)
        order = rng.permutation(rows.size)
        rows_of = [order[index[order] == v] for v in range(len(values))]

        def draw() -> list[Rows]:
            shares = rng.dirichlet(np.full(count, self.alpha), size=len(values))
            return cut_by_shares(rows_of, shares)

        return _redraw(draw, self.min_size, f"{self}", "raise alpha")


@dataclass(frozen=True)
class Shards(Partitioner):
    """Sort by label, cut into equal shards, give every client the same number of them.

    A client holds about `classes_per_client` classes (McMahan et al. 2017).

    Examples
    --------
    >>> rows = PartitionInput(np.arange(40) % 4, np.zeros(40, int))
    >>> [len(np.unique(rows.label[part])) for part in Shards(1).assign(rows, 4, seed=0)]
    [1, 1, 1, 1]
    """

    classes_per_client: int = 2

    def __post_init__(self) -> None:
        _positive("classes_per_client", self.classes_per_client)

    def __str__(self) -> str:
        return f"shards:{self.classes_per_client}"

    def assign(self, rows: PartitionInput, clients: int | None, seed: int) -> list[Rows]:
        """See `Partitioner.assign`."""
        count = _count(rows, clients, self.classes_per_client)
        rng = np.random.default_rng(seed)
        order = rng.permutation(rows.size)
        order = order[np.argsort(rows.values("label")[1][order], kind="stable")]
        shards = np.array_split(order, count * self.classes_per_client)
        hands = rng.permutation(len(shards)).reshape(count, self.classes_per_client)
        return [np.sort(np.concatenate([shards[s] for s in hand])) for hand in hands]


@dataclass(frozen=True)
class QuantitySkew(Partitioner):
    """Clients of unequal size and equal mix.

    Sizes are in proportion to `exp(sigma * N(0, 1))`, or to a Dirichlet(`alpha`) draw if
    `alpha` is given.

    Examples
    --------
    >>> rows = PartitionInput(np.zeros(100, int), np.zeros(100, int))
    >>> parts = QuantitySkew(sigma=1.0, min_size=5).assign(rows, 4, seed=0)
    >>> sum(len(part) for part in parts), min(len(part) for part in parts) >= 5
    (100, True)
    """

    sigma: float | None = None
    alpha: float | None = None
    min_size: int = 10

    def __post_init__(self) -> None:
        if (self.sigma is None) == (self.alpha is None):
            raise ConfigError("QuantitySkew takes either sigma or alpha")
        if self.alpha is not None:
            _positive("alpha", self.alpha)
        elif self.sigma is not None and not 0 <= self.sigma < math.inf:
            raise ConfigError(f"sigma must be at least 0, not {self.sigma}")

    def __str__(self) -> str:
        return f"quantity:{self.sigma}" if self.sigma is not None else "quantity skew"

    def assign(self, rows: PartitionInput, clients: int | None, seed: int) -> list[Rows]:
        """See `Partitioner.assign`."""
        count = _count(rows, clients, self.min_size)
        rng = np.random.default_rng(seed)
        order = rng.permutation(rows.size)

        def draw() -> list[Rows]:
            if self.alpha is not None:
                shares = rng.dirichlet(np.full(count, self.alpha))
            else:
                logs = (self.sigma or 0.0) * rng.standard_normal(count)
                # Without the shift a large sigma overflows to inf / inf.
                shares = np.exp(logs - logs.max())
            return cut_by_shares([order], shares[None] / shares.sum())

        remedy = "lower sigma" if self.alpha is None else "raise alpha"
        return _redraw(draw, self.min_size, f"{self}", remedy)


@dataclass(frozen=True)
class FixedShares(Partitioner):
    """Cut the rows of every value of a column by given shares of the clients.

    Parameters
    ----------
    shares : mapping of value to tuple of float
        For each value the clients' shares, which sum to 1.
    column : str
        As in `PartitionInput.values`.
    shuffle : bool
        False cuts the rows in their order, as the published splits do.

    Examples
    --------
    >>> rows = PartitionInput(np.zeros(10, int), np.arange(10) % 2)
    >>> FixedShares({1: (0.8, 0.2), 0: (0.2, 0.8)}, shuffle=False).assign(rows, 2, seed=0)
    [array([0, 1, 3, 5, 7]), array([2, 4, 6, 8, 9])]
    """

    shares: Mapping[int, tuple[float, ...]]
    column: str = "sensitive"
    shuffle: bool = True

    def __post_init__(self) -> None:
        lengths = {len(share) for share in self.shares.values()}
        if len(lengths) != 1:
            raise ConfigError("FixedShares needs the same number of clients for every value")
        for value, share in self.shares.items():
            if min(share) < 0 or not math.isclose(sum(share), 1.0, abs_tol=1e-6):
                raise ConfigError(f"shares of value {value} must be at least 0 and sum to 1")

    def __str__(self) -> str:
        return f"fixed shares by {self.column}"

    def assign(self, rows: PartitionInput, clients: int | None, seed: int) -> list[Rows]:
        """See `Partitioner.assign`; `clients`, if given, must be the number of shares."""
        count = len(next(iter(self.shares.values())))
        if clients not in (None, count):
            raise ConfigError(f"the shares are for {count} clients, not {clients}")
        values, index = rows.values(self.column)
        missing = [v for v in values.tolist() if v not in self.shares]
        if missing:
            raise ConfigError(f"FixedShares lacks {len(missing)} value(s) of '{self.column}'")
        order = np.arange(rows.size)
        if self.shuffle:
            order = np.random.default_rng(seed).permutation(rows.size)
        table = np.array([self.shares[v] for v in values.tolist()])
        rows_of = [order[index[order] == v] for v in range(len(values))]
        return cut_by_shares(rows_of, table)


def parse_partition(text: str) -> Partitioner:
    """Read a partition from a command line or a configuration.

    `"iid"`, `"dirichlet:COLUMN:ALPHA"` (and optionally `":MIN_SIZE"`), `"shards:CLASSES"`,
    `"column:NAME"` or `"quantity:SIGMA"`.

    Examples
    --------
    >>> parse_partition("dirichlet:label:0.5")
    Dirichlet(column='label', alpha=0.5, min_size=10)
    """
    kind, *rest = text.split(":")
    try:
        match kind, rest:
            case "iid", []:
                return IID()
            case "dirichlet", [column, alpha]:
                return Dirichlet(column, float(alpha))
            case "dirichlet", [column, alpha, min_size]:
                return Dirichlet(column, float(alpha), int(min_size))
            case "shards", [classes]:
                return Shards(int(classes))
            case "quantity", [sigma]:
                return QuantitySkew(float(sigma))
            case "column", [_, *_]:
                return ByColumn(":".join(rest))
    except ValueError as error:
        raise ConfigError(f"partition '{text}': a number was expected") from error
    raise ConfigError(
        f"cannot read partition '{text}'; write 'iid', 'dirichlet:label:0.5', 'shards:2', "
        "'column:NAME' or 'quantity:1.0'"
    )


def no_partition(partition: Partitioner | None, name: str, clients: str) -> None:
    """Refuse a partition for a source whose clients are given by its data."""
    if partition is not None:
        raise ConfigError(f"dataset '{name}' takes no partition: its clients are {clients}")


def _positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ConfigError(f"{name} must be above 0, not {value}")


def _count(rows: PartitionInput, clients: int | None, least: int = 1) -> int:
    if clients is None or clients < 1:
        raise ConfigError("say how many clients there are, at least 1")
    if rows.size < clients * max(least, 1):
        raise DataError(
            f"{rows.size} examples cannot give {clients} clients at least {max(least, 1)} each; "
            "use fewer clients"
        )
    return clients


def cut_by_shares(rows_of: Sequence[Rows], shares: NDArray[np.float64]) -> list[Rows]:
    """Cut each list of rows by its row of `shares` `(values, K)`; sort each client's rows."""
    hands: list[list[Rows]] = [[] for _ in range(shares.shape[1])]
    for rows, share in zip(rows_of, shares, strict=True):
        # Sums such as .5 + .3 fall just below their value; the guard keeps the floor right.
        cuts = np.floor(np.cumsum(share)[:-1] * len(rows) + 1e-9).astype(np.int64)
        for hand, part in zip(hands, np.split(rows, cuts), strict=True):
            hand.append(part)
    return [np.sort(np.concatenate(hand)).astype(np.int64) for hand in hands]


def _redraw(draw: Callable[[], list[Rows]], least: int, what: str, remedy: str) -> list[Rows]:
    """Draw until every client has `least` rows; give up with advice."""
    for _ in range(MAX_DRAWS):
        parts = draw()
        if min(len(part) for part in parts) >= least:
            return parts
    raise DataError(
        f"partition '{what}' left a client with fewer than {least} examples in {MAX_DRAWS} "
        f"draws; {remedy}, use fewer clients or lower min_size"
    )
