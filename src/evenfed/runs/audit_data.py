"""What a model is audited on: raw rows of clients, with label and group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from evenfed.core.errors import ConfigError, DataError, counted, suggest
from evenfed.data.dataset import SPLITS, FederatedDataset, Groups, Schema, Split
from evenfed.data.inputs import Array, Columns, Inputs, plain_inputs
from evenfed.data.preprocess import level_codes, level_order
from evenfed.data.problems import Problem, in_rows, raise_if_any
from evenfed.data.silo import SiloSchema
from evenfed.data.silo_checks import check
from evenfed.data.silo_files import Part, as_levels, find_files, parsed, parts_of
from evenfed.data.table import MAX_LEVELS, Table
from evenfed.runs.audited import Audited

LEFT = "nothing was audited"
UNSEEN = "a level that the model's training data did not have"


@dataclass(frozen=True)
class Rows:
    """A client's rows: raw, with labels `(n,)` (codes or numbers) and groups `(n,)`.

    `doubts` are what may be wrong with them; they are told where the model fails on these rows.
    """

    client: str
    raw: Any
    y: NDArray[Any]
    group: NDArray[np.int64]
    file: str = ""
    doubts: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class AuditData:
    """All clients, and what they share."""

    schema: Schema
    rows: Sequence[Rows]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SiloRows:
    """Silo files as they were read, before it is known what a model wants of them.

    `problems` are those of reading; they are told together with what the model finds wrong.
    """

    parts: Sequence[Part]
    label: str
    sensitive: tuple[str, ...]
    problems: tuple[Problem, ...] = ()

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
        problems += found
        if not parts:
            raise_if_any(problems or [Problem("there are no clients")], LEFT)
        return cls(parts, label, tuple(sensitive), tuple(problems))

    @property
    def others(self) -> tuple[str, ...]:
        """Columns of the first file beside label and groups."""
        used = {self.label, *self.sensitive}
        return tuple(str(c) for c in self.parts[0].frame.columns if c not in used)

    def for_model(self, model: Audited, favourable: str | None = None) -> AuditData:
        """The rows with labels in the codes of the model; tells all that does not fit it."""
        classes = ordered(model.classes, favourable)
        self._check(model, classes)
        levels = {column: self._levels(column) for column in self.sensitive}
        tables = [self._table(part, classes, levels) for part in self.parts]
        numeric = self._numeric(model)
        rows = [
            Rows(part.client, _typed(part.frame, model, numeric), table.y, table.group,
                 str(part.path), self._doubts(part, model))
            for part, table in zip(self.parts, tables, strict=True)
        ]  # fmt: skip
        schema = Schema(
            "silo files", kind_of(classes), max(len(classes), 1), (len(model.columns),),
            label=self.label, class_names=classes, groups=tables[0].groups,
        )  # fmt: skip
        notes = [
            str(part.at(in_rows(UNSEEN, part.frame, there), column))
            for part in self.parts
            for column, there in unseen(model, part.frame).items()
        ]
        return AuditData(schema, rows, shortened(notes))

    def _check(self, model: Audited, classes: tuple[str, ...]) -> None:
        """The checks of a run, of what this model reads and of label and groups."""
        used = [*model.columns, self.label, *self.sensitive]
        known = list(dict.fromkeys(str(c) for part in self.parts for c in part.frame.columns))
        gone = [column for column in dict.fromkeys(used) if column not in known]
        problems = [p for p in self.problems if not p.column or p.column in used]
        problems += [Problem(f"no file has a column '{c}'.{suggest(c, known)}") for c in gone]
        unknown = [c for c in model.columns if c not in model.numbers]
        gaps = [c for c in model.columns if c in model.gaps or c not in model.words | model.numbers]
        features = SiloSchema(
            self.label, tuple(c for c in model.columns if c in model.numbers), tuple(unknown),
            missing=dict.fromkeys(gaps, "indicator"),
            levels={column: tuple(model.seen[column]) for column in model.closed},
        )  # fmt: skip
        own = SiloSchema(
            self.label, sensitive=self.sensitive, kind=kind_of(classes), classes=classes
        )
        for part in self.parts:
            problems += check(part, own, gone, policies=False)
            problems += check(part, features, [*gone, self.label], policies=False)
        for column in self.sensitive:
            if column in known and (n := len(self._levels(column))) > MAX_LEVELS:
                text = f"column '{column}' has {n} levels, more than {MAX_LEVELS}"
                problems.append(Problem(f"{text}: cut the sensitive column into a few bands"))
        raise_if_any(problems, LEFT)

    def _numeric(self, model: Audited) -> frozenset[str]:
        """Columns to hand over as numbers: those said to be, and unknown ones that are all so."""
        found = set(model.numbers)
        for column in model.columns:
            if column not in model.words | model.numbers and all(
                not _words(part.frame[column]).any() for part in self.parts
            ):
                found.add(column)
        return frozenset(found)

    def _doubts(self, part: Part, model: Audited) -> tuple[Problem, ...]:
        """Text in columns of unknown type that are mostly numbers."""
        found = []
        for column in model.columns:
            if column not in model.words | model.numbers:
                text = _words(part.frame[column])
                if 0 < 2 * text.sum() < part.frame[column].notna().sum():
                    problem = in_rows("text in a column of numbers", part.frame, text)
                    found.append(part.at(problem, column))
        return tuple(found)

    def _levels(self, column: str) -> tuple[str, ...]:
        found: set[str] = set()
        for part in self.parts:
            if column in part.frame.columns:
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


def unseen(model: Audited, frame: pd.DataFrame) -> dict[str, NDArray[np.bool_]]:
    """By column, where rows `(n,)` have a level that the model's training data did not have."""
    found = {}
    for column, levels in model.seen.items():
        if column in frame.columns and column not in model.closed:
            codes, known = level_codes(as_levels(frame[column]))
            there = np.isin(codes, [i for i, level in enumerate(known) if level not in levels])
            if there.any():
                found[column] = there
    return found


def shortened(notes: Sequence[str], most: int = 20) -> tuple[str, ...]:
    """The first notes, and how many others there are."""
    rest = [f"{len(notes) - most} more notes of this kind"] if len(notes) > most else []
    return (*notes[:most], *rest)


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


def _words(values: pd.Series[Any]) -> NDArray[np.bool_]:
    """Where a column `(n,)` holds something that is no number."""
    return np.asarray(np.isnan(parsed(values)) & values.notna().to_numpy())


def _typed(frame: pd.DataFrame, model: Audited, numeric: frozenset[str]) -> pd.DataFrame:
    """Cells of the columns that the model reads, as numbers or as levels."""
    columns = {}
    for name in model.columns or frame.columns:
        values = frame[name]
        columns[name] = (
            pd.Series(parsed(values), values.index) if name in numeric else as_levels(values)
        )
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
    new: dict[str, list[int]] = {}
    for client in data:
        parts = [client.split(s) for s in splits]
        y = np.concatenate([part.y.numpy() for part in parts])
        group = np.concatenate([part.group.numpy() for part in parts])
        if not theirs:
            offset, scale = schema.target
            y = offset + scale * y.astype(np.float64)
        raw = _joined([_raw(data, client.name, s, client.split(s).x.numpy()) for s in splits])
        rows.append(Rows(client.name, raw, place[y] if theirs else y, group))
        if isinstance(raw, pd.DataFrame):
            for column, there in unseen(model, raw).items():
                new.setdefault(column, []).append(int(there.sum()))
    groups = schema.groups if len(schema.groups) > 1 else Groups()
    described = Schema(
        schema.name, schema.kind, schema.classes, schema.shape, label=schema.label,
        class_names=classes, groups=groups, notes=schema.notes,
    )  # fmt: skip
    notes = [
        f"column '{column}': {UNSEEN}, in {counted(sum(found), 'row')} of "
        f"{counted(len(found), 'client')}"
        for column, found in new.items()
    ]
    return AuditData(described, rows, tuple(notes))


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
