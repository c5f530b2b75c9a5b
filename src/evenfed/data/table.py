"""A table of raw rows whose columns have roles, and the dealing of its rows to clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from evenfed.core.errors import ConfigError, DataError, suggest
from evenfed.data.dataset import Groups, Kind
from evenfed.data.partition import ByColumn, FixedShares, Partitioner, PartitionInput
from evenfed.data.preprocess import Missing, level_codes, numbers

Rows = NDArray[np.int64]

MAX_LEVELS = 50
"""A sensitive column with more levels is taken for a number that was not cut into bands."""


@dataclass(frozen=True, eq=False)
class Table:
    """Raw rows and what their columns are for. Checked, by column and row, when it is made.

    Parameters
    ----------
    name : str
        Name of the dataset.
    frame : DataFrame
        One row an example; a row's number is its position.
    label : str
        Column to predict.
    numeric, categorical : tuple of str
        Columns that become features.
    sensitive : tuple of str
        Columns whose (intersection of) levels are the groups.
    client : str, optional
        Column that says to which client a row belongs.
    split : str, optional
        Column of "train", "val", "test" that fixes the split.
    fixed_test : str, optional
        Column of bool: True marks the rows that are test rows, and no others are.
    kind : {"binary", "multiclass", "regression"}
    classes : tuple of str
        Values of the label in the order of their codes; for `binary` the second is the
        favourable one. May be left out where labels are 0 and 1, or for `multiclass`.
    levels : mapping of column to tuple of str
        Levels that are known beforehand; they also fix the order of groups.
    missing : mapping of column to policy
        See `Spec`; a column that is not named may have no missing value.
    notes : tuple of str
        Known problems of the data.
    origin : str
        File that error messages name.

    Examples
    --------
    >>> frame = pd.DataFrame({"age": [30, 50], "sex": ["f", "m"], "paid": [0, 1]})
    >>> table = Table("toy", frame, label="paid", numeric=("age",), sensitive=("sex",))
    >>> table.groups.labels, table.y.tolist(), table.group.tolist()
    (('f', 'm'), [0, 1], [0, 1])
    """

    name: str
    frame: pd.DataFrame
    label: str
    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    sensitive: tuple[str, ...] = ()
    client: str | None = None
    split: str | None = None
    fixed_test: str | None = None
    kind: Kind = "binary"
    classes: tuple[str, ...] = ()
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    missing: Mapping[str, Missing] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    origin: str = ""

    def __post_init__(self) -> None:
        frame = self.frame.reset_index(drop=True)
        self._check_columns(frame)
        for column in self.numeric:
            if column not in self.sensitive:
                try:
                    frame[column] = numbers(frame[column])
                except DataError as error:
                    raise DataError(f"{self.where}{error}") from None
        for column in {*self.categorical, *self.sensitive, *filter(None, [self.client])}:
            codes, known = level_codes(frame[column])
            frame[column] = pd.Categorical.from_codes(codes, categories=pd.Index(list(known)))
        object.__setattr__(self, "frame", frame)
        for column in (*self.sensitive, *filter(None, [self.client, self.split, self.fixed_test])):
            self._check_complete(column)
        if self.fixed_test is not None and frame[self.fixed_test].dtype != np.bool_:
            raise DataError(f"{self.where}column '{self.fixed_test}' must hold true and false")
        _ = self.y, self.group

    def _check_columns(self, frame: pd.DataFrame) -> None:
        named = [self.label, *self.numeric, *self.categorical, *self.sensitive]
        named += [c for c in (self.client, self.split, self.fixed_test) if c is not None]
        for column in named:
            if column not in frame.columns:
                hint = suggest(column, [str(c) for c in frame.columns])
                raise DataError(f"{self.where}there is no column '{column}'.{hint}")
            if (frame.columns == column).sum() > 1:
                raise DataError(f"{self.where}column '{column}' occurs more than once")
        twice = set(self.numeric) & set(self.categorical)
        if twice or self.label in self.numeric + self.categorical:
            column = min(twice, default=self.label)
            raise DataError(f"{self.where}column '{column}' has two roles")
        if len(frame) == 0:
            raise DataError(f"{self.where}there are no rows")

    def _check_complete(self, column: str) -> None:
        gone = self.frame[column].isna().to_numpy()
        if gone.any():
            raise DataError(
                f"{self.where}column '{column}' is missing in {int(gone.sum())} rows, "
                f"first in row {int(np.argmax(gone))}; it must be known for every row"
            )

    @property
    def where(self) -> str:
        """How error messages begin."""
        return f"file '{self.origin}': " if self.origin else f"dataset '{self.name}': "

    def __len__(self) -> int:
        return len(self.frame)

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """Values of the label in the order of their codes; empty for regression."""
        if self.kind == "regression" or self.classes:
            return self.classes
        known = level_codes(self.frame[self.label])[1]
        if self.kind == "multiclass":
            return known
        for pair in (("0", "1"), ("False", "True")):
            if set(known) <= set(pair):
                return pair
        raise DataError(
            f"{self.where}label '{self.label}' is not 0 and 1; "
            "say which value is favourable: classes=(unfavourable, favourable)"
        )

    @cached_property
    def y(self) -> NDArray[np.int64] | NDArray[np.float32]:
        """Labels `(n,)`: codes into `class_names`, or numbers."""
        self._check_complete(self.label)
        if self.kind == "regression":
            return numbers(self.frame[self.label]).astype(np.float32)
        return self._codes(self.label, self.class_names)

    @cached_property
    def groups(self) -> Groups:
        """The sensitive attributes and their levels."""
        if not self.sensitive:
            return Groups()
        levels = []
        for column in self.sensitive:
            known = self.levels.get(column) or level_codes(self.frame[column])[1]
            if len(known) > MAX_LEVELS:
                raise DataError(
                    f"{self.where}sensitive column '{column}' has {len(known)} levels; "
                    "cut it into a few bands first"
                )
            levels.append(tuple(known))
        return Groups(self.sensitive, tuple(levels))

    @cached_property
    def group(self) -> Rows:
        """Codes of the groups `(n,)`."""
        if not self.sensitive:
            return np.zeros(len(self), dtype=np.int64)
        pairs = zip(self.sensitive, self.groups.levels, strict=True)
        return self.groups.codes(*(self._codes(column, levels) for column, levels in pairs))

    def _codes(self, column: str, levels: tuple[str, ...]) -> Rows:
        codes, known = level_codes(self.frame[column])
        place = {level: i for i, level in enumerate(levels)}
        out = np.array([place.get(level, -1) for level in known], dtype=np.int64)[codes]
        if (out < 0).any():
            raise DataError(
                f"{self.where}column '{column}': row {int(np.argmax(out < 0))} is none of "
                f"{', '.join(levels)}"
            )
        return out


def chosen(sensitive: str | Sequence[str], offered: Sequence[str], name: str) -> tuple[str, ...]:
    """Read a choice of sensitive attributes: a name, several joined by commas, or a sequence.

    Examples
    --------
    >>> chosen("sex,race", ["race", "sex"], "toy")
    ('sex', 'race')
    """
    words = sensitive.split(",") if isinstance(sensitive, str) else sensitive
    names = tuple(word.strip() for word in words if word.strip())
    for word in names:
        if word not in offered:
            raise ConfigError(
                f"dataset '{name}' has no sensitive attribute '{word}'.{suggest(word, offered)}"
            )
    return names


def deal(
    table: Table,
    partition: Partitioner | None,
    clients: int | None,
    seed: int,
    *,
    default: int | None = None,
) -> dict[str, Rows]:
    """Row numbers of each client, by name.

    Without a partition the table's client column decides. Test rows that are fixed are dealt
    together with the others, so that a client's test rows are like its training rows. Where
    neither `clients` nor the partition says how many clients there are, there are `default`.

    Examples
    --------
    >>> frame = pd.DataFrame({"site": ["b", "a", "b"], "paid": [0, 1, 1]})
    >>> deal(Table("toy", frame, label="paid", client="site"), None, None, seed=0)
    {'a': array([1]), 'b': array([0, 2])}
    """
    if partition is None:
        if table.client is None:
            raise ConfigError(f"{table.where}say how rows are dealt to clients: give a partition")
        codes, known = level_codes(table.frame[table.client])
        if clients not in (None, len(known)):
            raise ConfigError(
                f"{table.where}column '{table.client}' makes {len(known)} clients, not {clients}; "
                "leave the number of clients out, or give a partition"
            )
        return {name: np.flatnonzero(codes == k) for k, name in enumerate(known)}
    if clients is None and not isinstance(partition, ByColumn | FixedShares):
        clients = default
    rows = PartitionInput(label=table.y, group=table.group, columns=_columns(table, partition))
    parts = partition.assign(rows, clients, seed)
    return dict(zip(partition.names(rows, len(parts)), parts, strict=True))


def _columns(table: Table, partition: Partitioner) -> dict[str, NDArray[np.str_]]:
    """Columns that a partition may ask for, as text."""
    offered = {*table.categorical, *table.sensitive, *filter(None, [table.client])}
    asked = getattr(partition, "column", None)
    # Text of a million rows is slow to make, so only the column that is asked for is.
    if asked in offered:
        offered = {asked}
    elif asked in ("label", "sensitive", "label*sensitive"):
        offered = set()
    columns = {}
    for column in sorted(offered):
        codes, known = level_codes(table.frame[column])
        if (codes >= 0).all():
            columns[column] = np.array(known)[codes]
        elif column == asked:
            raise DataError(f"{table.where}column '{column}' has missing values: no client there")
    return columns
