"""What a model is audited on: raw rows of clients, with label and group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from evenfed.core.errors import ConfigError, DataError
from evenfed.data.dataset import SPLITS, FederatedDataset, Groups, Schema, Split
from evenfed.data.inputs import Array, Columns, Inputs, plain_inputs
from evenfed.data.preprocess import level_codes, level_order
from evenfed.data.problems import raise_if_any
from evenfed.data.silo_files import Part, as_levels, find_files, parsed, parts_of
from evenfed.data.table import Table
from evenfed.runs.audited import Audited


@dataclass(frozen=True)
class Rows:
    """A client's rows: raw, with labels `(n,)` (codes or numbers) and groups `(n,)`."""

    client: str
    raw: Any
    y: NDArray[Any]
    group: NDArray[np.int64]


@dataclass(frozen=True)
class AuditData:
    """All clients, and what they share."""

    schema: Schema
    rows: Sequence[Rows]


@dataclass(frozen=True)
class SiloRows:
    """Silo files as they were read, before it is known what a model wants of them."""

    parts: Sequence[Part]
    label: str
    sensitive: tuple[str, ...]

    @classmethod
    def read(
        cls,
        files: str | Sequence[str],
        label: str,
        sensitive: Sequence[str] = (),
        client_column: str | None = None,
    ) -> SiloRows:
        """Read CSV or Parquet files, one a client, or with a column that names the client."""
        paths, problems = find_files(files)
        parts, found = parts_of(paths, client_column)
        raise_if_any([*problems, *found])
        for part in parts:
            for column in (label, *sensitive):
                if column not in part.frame.columns:
                    raise DataError(f"file '{part.path}' has no column '{column}'")
            if len(part.frame) == 0:
                raise DataError(f"file '{part.path}' has no rows")
        return cls(parts, label, tuple(sensitive))

    @property
    def others(self) -> tuple[str, ...]:
        """Columns of the first file beside label and groups."""
        used = {self.label, *self.sensitive}
        return tuple(str(c) for c in self.parts[0].frame.columns if c not in used)

    def for_model(self, model: Audited, favourable: str | None = None) -> AuditData:
        """The rows with labels in the codes of the model; refuses files that do not fit it."""
        for part in self.parts:
            lacking = [c for c in model.columns if c not in part.frame.columns]
            if lacking:
                words = ", ".join(f"'{c}'" for c in lacking)
                raise DataError(
                    f"file '{part.path}' does not fit the model: it has no column {words}"
                )
        classes = ordered(model.classes, favourable)
        levels = {column: self._levels(column) for column in self.sensitive}
        tables = [self._table(part, classes, levels) for part in self.parts]
        rows = [
            Rows(part.client, _typed(part.frame, model.words), table.y, table.group)
            for part, table in zip(self.parts, tables, strict=True)
        ]
        schema = Schema(
            "silo files", kind_of(classes), max(len(classes), 1), (len(model.columns),),
            label=self.label, class_names=classes, groups=tables[0].groups,
        )  # fmt: skip
        return AuditData(schema, rows)

    def _levels(self, column: str) -> tuple[str, ...]:
        found: set[str] = set()
        for part in self.parts:
            found.update(level_codes(as_levels(part.frame[column]))[1])
        return tuple(sorted(found, key=level_order))

    def _table(
        self, part: Part, classes: tuple[str, ...], levels: dict[str, tuple[str, ...]]
    ) -> Table:
        frame = part.frame[[self.label, *self.sensitive]].copy()
        for column in self.sensitive if not classes else (self.label, *self.sensitive):
            frame[column] = as_levels(frame[column])
        return Table(
            "audit", frame, label=self.label, sensitive=self.sensitive, kind=kind_of(classes),
            classes=classes, levels=levels, origin=str(part.path),
        )  # fmt: skip


def kind_of(classes: Sequence[str]) -> Any:
    """Kind of prediction by the number of classes."""
    return {0: "regression", 2: "binary"}.get(len(classes), "multiclass")


def ordered(classes: tuple[str, ...], favourable: str | None) -> tuple[str, ...]:
    """Classes with the favourable one of two last."""
    if favourable is None:
        return classes
    if len(classes) != 2 or favourable not in classes:
        raise ConfigError(
            f"--favourable is one of two classes; the model has {', '.join(classes) or 'none'}"
        )
    return (*(c for c in classes if c != favourable), favourable)


def _typed(frame: pd.DataFrame, words: frozenset[str]) -> pd.DataFrame:
    """Text cells as numbers where a whole column is numbers and no words, else as levels."""
    columns = {}
    for name in frame.columns:
        values = frame[name]
        read = parsed(values)
        numeric = name not in words and not bool((np.isnan(read) & values.notna().to_numpy()).any())
        columns[name] = pd.Series(read, values.index) if numeric else as_levels(values)
    return pd.DataFrame(columns)


def dataset_rows(
    data: FederatedDataset, model: Audited, split: Split | None = "test",
    favourable: str | None = None,
) -> AuditData:  # fmt: skip
    """Rows of a dataset's clients, of one split or of all (`None`)."""
    schema = data.schema
    names = schema.class_names or tuple(str(c) for c in range(schema.classes))
    theirs = () if schema.kind == "regression" else names
    if set(theirs) != set(model.classes):
        raise DataError(
            f"the model predicts {', '.join(model.classes) or 'a number'}; the label "
            f"'{schema.label}' of '{schema.name}' is {', '.join(theirs) or 'a number'}"
        )
    classes = ordered(theirs if favourable is None else model.classes, favourable)
    place = np.array([classes.index(name) for name in theirs], dtype=np.int64)
    splits = SPLITS if split is None else (split,)
    rows = []
    for client in data:
        parts = [client.split(s) for s in splits]
        y = np.concatenate([part.y.numpy() for part in parts])
        group = np.concatenate([part.group.numpy() for part in parts])
        raw = _joined([_raw(data, client.name, s, client.split(s).x.numpy()) for s in splits])
        rows.append(Rows(client.name, raw, place[y] if theirs else y, group))
    groups = schema.groups if len(schema.groups) > 1 else Groups()
    described = Schema(
        schema.name, schema.kind, schema.classes, schema.shape, label=schema.label,
        class_names=classes, groups=groups, notes=schema.notes,
    )  # fmt: skip
    return AuditData(described, rows)


def _raw(data: FederatedDataset, client: str, split: Split, x: NDArray[Any]) -> Any:
    """Raw rows of a client; features that were only scaled are scaled back."""
    if data.rows is not None:
        return data.rows(client, split)
    inputs = data.inputs if data.inputs is not None else plain_inputs(data.schema)
    if isinstance(inputs, Array):
        return x * inputs.scale
    if isinstance(inputs, Columns) and isinstance(inputs, Inputs):
        return pd.DataFrame(x, columns=list(data.schema.features))
    return x


def _joined(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], pd.DataFrame):
        return pd.concat(parts)
    return np.concatenate(parts)
