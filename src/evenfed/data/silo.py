"""A silo: one file of one client, read on its own disk with the schema that all silos share.

Silos agree on levels and on the preprocessing by sums (see `fitting`); every function here runs
where the file is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch

from evenfed.core.errors import ConfigError, DataError, suggest
from evenfed.data.dataset import SPLITS, ClientData, Kind, Schema, Split, check_clients
from evenfed.data.federate import examples_of, split_client
from evenfed.data.preprocess import (
    Missing,
    Numeric,
    Preprocessor,
    Scale,
    Spec,
    level_codes,
)
from evenfed.data.problems import DataProblemsError, raise_if_any
from evenfed.data.silo_checks import MISSING, check, groups_of
from evenfed.data.silo_files import Part, as_levels, read_frame
from evenfed.data.table import MAX_LEVELS, Rows, Table

SILOS = "silos"
"""The name of data that are silo files; no source of the registry has it."""

PLACES = ("files", "base", "client_column")
"""Options of a config that say where silos lie on this machine; nodes have their own files."""


@dataclass(frozen=True)
class SiloSchema:
    """What every silo file of a run must hold; the options are those of `Table` and `federate`.

    Examples
    --------
    >>> SiloSchema.of({"label": "paid", "numeric": ["age"], "sensitive": ["sex"]}).numeric
    ('age',)
    """

    label: str
    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    sensitive: tuple[str, ...] = ()
    kind: Kind = "binary"
    classes: tuple[str, ...] = ()
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    missing: Mapping[str, Missing] = field(default_factory=dict)
    val: float = 0.1
    test: float = 0.2
    scale: Scale = "standard"
    max_levels: int = MAX_LEVELS
    smallest_group: int = 10
    learnt: tuple[str, ...] = ()
    """Columns whose type or levels were learnt from the files, by this use or an earlier one."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """From plain values, as a config or a message holds them."""
        known = {f.name for f in fields(cls)}
        for name in options:
            if name not in known:
                raise ConfigError(f"data of silos have no option '{name}'.{suggest(name, known)}")
        if "label" not in options:
            raise ConfigError("data of silos need data.label, the column to predict")
        values = dict(options)
        for name in ("numeric", "categorical", "sensitive", "classes", "learnt"):
            words = values.get(name, ())
            words = [words] if isinstance(words, str) else words
            values[name] = tuple(str(word) for word in words)
        values["missing"] = {
            str(column): "indicator" if policy == "level" else policy
            for column, policy in dict(values.get("missing", {})).items()
        }
        values["levels"] = {
            str(column): tuple(str(level) for level in known)
            for column, known in dict(values.get("levels", {})).items()
        }
        if not values["numeric"] and not values["categorical"]:
            raise ConfigError("data of silos need features: data.numeric or data.categorical")
        return cls(**values)

    @classmethod
    def of_config(cls, options: Mapping[str, Any]) -> Self:
        """From the options of a config, which may also say where the files lie."""
        return cls.of({name: value for name, value in options.items() if name not in PLACES})

    def table(self) -> dict[str, Any]:
        """Inverse of `of`."""
        return asdict(self)

    @property
    def spec(self) -> Spec:
        """Which columns become features, and how; sensitive ones do not."""
        numeric = tuple(c for c in self.numeric if c not in self.sensitive)
        categorical = tuple(c for c in self.categorical if c not in self.sensitive)
        used = {*numeric, *categorical}
        return Spec(
            numeric,
            categorical,
            self.scale,
            {column: policy for column, policy in self.missing.items() if column in used},
            {column: levels for column, levels in self.levels.items() if column in used},
        )

    @property
    def fitted_spec(self) -> Spec:
        """`spec`, and a label that is a number: it is scaled as features are."""
        spec = self.spec
        if self.kind != "regression" or self.scale == "none":
            return spec
        return replace(spec, numeric=(*spec.numeric, self.label))

    def parted(self, fitted: Preprocessor) -> tuple[Preprocessor, Numeric | None]:
        """What was fitted by `fitted_spec`: the preprocessing of features, and the label's."""
        features = tuple(c for c in fitted.columns if c.name != self.label)
        label = [c for c in fitted.columns if c.name == self.label and isinstance(c, Numeric)]
        return Preprocessor(features), label[0] if label else None

    @property
    def unknown_levels(self) -> tuple[str, ...]:
        """Columns whose levels silos must agree on before rows can be coded."""
        columns = [c for c in self.sensitive if c not in self.levels]
        if self.kind == "multiclass" and not self.classes:
            columns.append(self.label)
        return tuple(columns)

    @property
    def ledger(self) -> tuple[str, ...]:
        """What clients said of their columns to agree on this schema."""
        if not self.learnt:
            return ()
        coded = {*self.levels, *([self.label] if self.classes else [])}
        n = len(coded & set(self.learnt))
        counted = "rows, missing values and numbers of each column, to agree on types"
        named = (
            f"which levels {n} columns have (a rare level may point to one person), to agree on "
            "features, classes and groups"
        )
        return (counted, named) if n else (counted,)

    def with_levels(self, levels: Mapping[str, tuple[str, ...]]) -> SiloSchema:
        """The schema once all levels are agreed on."""
        values = self.table()
        values["levels"] = {**self.levels, **levels}
        if self.kind == "multiclass" and not self.classes:
            values["classes"] = values["levels"].pop(self.label)
        return SiloSchema.of(values)


@dataclass(frozen=True)
class Silo:
    """A file that has been read and found to fit."""

    name: str
    table: Table
    schema: SiloSchema

    @classmethod
    def read(cls, path: Path, schema: SiloSchema, name: str, column: str | None = None) -> Silo:
        """Read a CSV or Parquet file; everything that does not fit is refused at once.

        With `column`, the client's rows are those where it is `name`.
        """
        if not path.is_file():
            raise DataError(f"file '{path}' does not exist")
        # a node's message says which file, not where on its disk
        frame, problems = read_frame(path)
        if frame is None:
            raise DataProblemsError([replace(p, file=path.name) for p in problems])
        if column is not None:
            if column not in frame.columns:
                raise DataError(f"file '{path.name}' has no column '{column}' that names clients")
            codes, known = level_codes(as_levels(frame[column]))
            frame = frame[np.isin(codes, [i for i, level in enumerate(known) if level == name])]
        part = Part(name, Path(path.name), frame, shared=column is not None)
        named = {*schema.numeric, *schema.categorical, *schema.sensitive, schema.label}
        problems = [replace(p, file=path.name) for p in problems if p.column in named]
        raise_if_any([*problems, *check(part, schema)])
        return cls.of(part, schema)

    @classmethod
    def of(cls, part: Part, schema: SiloSchema) -> Silo:
        """Rows that have been checked."""
        named = [*schema.numeric, *schema.categorical, *schema.sensitive, schema.label]
        frame = part.frame[list(dict.fromkeys(named))].copy()
        words = {*schema.categorical, *schema.sensitive}
        words |= set() if schema.kind == "regression" else {schema.label}
        for column in words:
            frame[column] = as_levels(frame[column])
        for column in schema.sensitive:
            if schema.missing.get(column) == "indicator":
                frame[column] = frame[column].fillna(MISSING)
        table = Table(
            SILOS, frame, label=schema.label, numeric=schema.numeric,
            categorical=schema.categorical, sensitive=schema.sensitive, kind=schema.kind,
            classes=schema.classes, levels=schema.levels, missing=schema.missing,
            origin=str(part.path),
        )  # fmt: skip
        return cls(part.client, table, schema)

    def seen_levels(self) -> dict[str, list[str]]:
        """Levels of the columns that silos must agree on."""
        return {
            column: list(level_codes(self.table.frame[column])[1])
            for column in self.schema.unknown_levels
        }

    def splits(self, seed: int) -> dict[Split, Rows]:
        """Train, validation and test rows: they depend on the seed and the client's name."""
        rows = np.arange(len(self.table))
        return split_client(
            self.table, rows, name=self.name, val=self.schema.val, test=self.schema.test, seed=seed
        )

    def training(self, seed: int) -> pd.DataFrame:
        """Raw training rows; they stay here."""
        return self.table.frame.iloc[self.splits(seed)["train"]]

    def client(self, fitted: Preprocessor, seed: int) -> ClientData:
        """The client's examples."""
        splits = self.splits(seed)
        preprocessor, label = self.schema.parted(fitted)
        parts = [examples_of(self.table, splits[s], preprocessor, False) for s in SPLITS]
        if label is not None:
            values = label.transform(self.table.frame[label.name])[:, 0].astype(np.float32)
            own = [torch.from_numpy(values[splits[s]]) for s in SPLITS]
            parts = [replace(part, y=y) for part, y in zip(parts, own, strict=True)]
        client = ClientData(self.name, *parts)
        check_clients(schema_of(self.schema, fitted), [client])
        return client


def schema_of(schema: SiloSchema, fitted: Preprocessor, ledger: tuple[str, ...] = ()) -> Schema:
    """The schema of the federated dataset that the silos make."""
    preprocessor, label = schema.parted(fitted)
    notes: tuple[str, ...] = ()
    if label is not None:
        notes = (
            f"label '{schema.label}' is scaled for training: losses are squared errors divided by "
            f"{label.scale:.6g} squared; predictions, means and mean squared errors are in its own "
            "unit",
        )
    names = schema.classes
    if schema.kind == "binary" and not names:
        names = ("0", "1")
    features = preprocessor.features
    return Schema(
        name=SILOS,
        kind=schema.kind,
        classes=max(len(names), 1),
        shape=(len(features),),
        features=features,
        label=schema.label,
        class_names=names,
        groups=groups_of(schema),
        notes=notes,
        target=(0.0, 1.0) if label is None else (label.offset, label.scale),
        ledger=(*ledger, *schema.ledger),
    )
