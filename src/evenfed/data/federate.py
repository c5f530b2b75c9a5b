"""The way from a table to a federated dataset: split each client's rows, fit, make tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from evenfed.core.errors import ConfigError, DataError, counted
from evenfed.core.examples import Examples
from evenfed.data import fitting
from evenfed.data.dataset import (
    SPLITS,
    ClientData,
    FederatedDataset,
    Schema,
    Split,
    stable_key,
)
from evenfed.data.fitting import Fit
from evenfed.data.inputs import Columns
from evenfed.data.preprocess import Preprocessor, Scale, Spec
from evenfed.data.table import Rows, Table

Sensitive = bool | Literal["code"]


@dataclass(frozen=True)
class Prepared:
    """A federated dataset with the preprocessing of each client and the rows of each split."""

    dataset: FederatedDataset
    preprocessors: dict[str, Preprocessor]
    rows: dict[str, dict[Split, Rows]]


def federate(
    table: Table,
    assignment: Mapping[str, Rows] | Sequence[Rows],
    *,
    names: Sequence[str] | None = None,
    val: float = 0.1,
    test: float = 0.2,
    seed: int = 0,
    scale: Scale = "standard",
    fit: Fit = "federated",
    sensitive_as_feature: Sensitive = False,
) -> FederatedDataset:
    """Make a federated dataset of a table and the rows of each client.

    Parameters
    ----------
    table : Table
    assignment : mapping of client to row numbers, or a sequence of row numbers
    names : sequence of str, optional
        Names of the clients where `assignment` is a sequence.
    val, test : float
        Shares of a client's rows. The draw depends on the seed and the client's name only,
        and follows label and group. Where test rows are fixed, `val` is a share of the others
        and `test` has no meaning; where the whole split is fixed, neither has.
    seed : int
    scale : {"standard", "minmax", "none"}
    fit : {"federated", "client", "pool"}
        See `evenfed.data.fitting.fit`. What leaves the clients is in `schema.ledger`.
    sensitive_as_feature : bool or "code"
        Whether a model may see the sensitive columns: as one feature a level, or as one last
        feature "group" that holds the code of the group.

    Returns
    -------
    FederatedDataset

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"age": range(40), "sex": ["f", "m"] * 20, "paid": [0, 0, 1, 1] * 10})
    >>> table = Table("toy", frame, label="paid", numeric=("age",), sensitive=("sex",))
    >>> data = federate(table, {"a": np.arange(10), "b": np.arange(10, 40)}, seed=0)
    >>> data.names, data.sizes("train").tolist(), data.sizes("test").tolist()
    (['a', 'b'], [7, 21], [2, 6])
    """
    return prepare(
        table,
        _named(assignment, names),
        val=val,
        test=test,
        seed=seed,
        scale=scale,
        fit=fit,
        sensitive_as_feature=sensitive_as_feature,
    ).dataset


def prepare(
    table: Table,
    assignment: Mapping[str, Rows],
    *,
    val: float = 0.1,
    test: float = 0.2,
    seed: int = 0,
    scale: Scale = "standard",
    fit: Fit = "federated",
    sensitive_as_feature: Sensitive = False,
) -> Prepared:
    """As `federate`, and give back the fitted preprocessing and the rows of every split.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"age": range(10), "paid": [0, 1] * 5})
    >>> table = Table("toy", frame, label="paid", numeric=("age",))
    >>> made = prepare(table, {"a": np.arange(10)}, seed=0)
    >>> made.preprocessors["a"].features, len(made.rows["a"]["test"])
    (('age',), 2)
    """
    _check_assignment(table, assignment)
    spec = _spec(table, scale, sensitive_as_feature)
    _check_missing(table, assignment, spec)
    rows = {
        name: split_client(table, part, name=name, val=val, test=test, seed=seed)
        for name, part in assignment.items()
    }
    training = {name: table.frame.iloc[splits["train"]] for name, splits in rows.items()}
    for name, frame in training.items():
        if len(frame) == 0:
            raise DataError(f"{table.where}client '{name}' has no training rows")
    preprocessors, ledger = fitting.fit(training, spec, fit)
    if any(column not in table.levels for column in table.sensitive):
        ledger = (*ledger, "which levels the sensitive columns have, to agree on the groups")
    coded = sensitive_as_feature == "code"
    features = next(iter(preprocessors.values())).features + (("group",) if coded else ())
    clients = [
        ClientData(
            name, *(examples_of(table, splits[s], preprocessors[name], coded) for s in SPLITS)
        )
        for name, splits in rows.items()
    ]
    schema = Schema(
        name=table.name,
        kind=table.kind,
        classes=max(len(table.class_names), 1),
        shape=(len(features),),
        features=features,
        label=table.label,
        class_names=table.class_names,
        groups=table.groups,
        notes=(*table.notes, *_group_notes(table, rows)),
        ledger=ledger,
    )
    code = table.groups if coded else None
    inputs = {name: Columns(fitted, code) for name, fitted in preprocessors.items()}
    dataset = FederatedDataset(
        schema, clients,
        inputs=inputs if fit == "client" else next(iter(inputs.values())),
        rows=lambda name, split: table.frame.iloc[rows[name][split]],
    )  # fmt: skip
    return Prepared(dataset, preprocessors, rows)


def split_client(
    table: Table, rows: Rows, *, name: str, val: float, test: float, seed: int
) -> dict[Split, Rows]:
    """Split a client's rows into train, val and test rows.

    Examples
    --------
    >>> import pandas as pd
    >>> table = Table("toy", pd.DataFrame({"paid": [0, 1] * 5}), label="paid")
    >>> parts = split_client(table, np.arange(10), name="a", val=0.2, test=0.2, seed=0)
    >>> {split: len(part) for split, part in parts.items()}
    {'train': 6, 'val': 2, 'test': 2}
    """
    if min(val, test) < 0 or val + test >= 1:
        raise ConfigError(f"val={val} and test={test} must be at least 0 and sum to less than 1")
    if table.split is not None:
        words = table.frame[table.split].to_numpy()[rows]
        wrong = ~np.isin(words, SPLITS)
        if wrong.any():
            raise DataError(
                f"{table.where}column '{table.split}': row {int(rows[np.argmax(wrong)])} is none "
                "of train, val, test"
            )
        return {split: rows[words == split] for split in SPLITS}
    rows = np.sort(rows)
    rng = np.random.default_rng((seed, stable_key(name)))
    if table.fixed_test is not None:
        fixed = table.frame[table.fixed_test].to_numpy()[rows]
        tested, rest = rows[fixed], rows[~fixed]
        wanted = round(val * len(rest))
    else:
        tested, rest = _draw(table, rows, min(round(test * len(rows)), len(rows) - 1), rng)
        wanted = round(val * len(rows))
    # At least one row stays, so that a tiny client still trains.
    validated, trained = _draw(table, rest, min(wanted, max(len(rest) - 1, 0)), rng)
    return {"train": trained, "val": validated, "test": tested}


def _draw(table: Table, rows: Rows, count: int, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Draw `count` of the rows, and give the others back too.

    Rows are shuffled, sorted by cell (label and group), and every (n / count)-th is drawn from
    a random start: a cell's share is right to one row, and small cells are left to chance.
    """
    label = np.zeros(len(rows), dtype=np.int64) if table.kind == "regression" else table.y[rows]
    cells = label.astype(np.int64) * len(table.groups) + table.group[rows]
    order = rng.permutation(len(rows))
    order = order[np.argsort(cells[order], kind="stable")]
    mask = np.zeros(len(rows), dtype=bool)
    if count:
        start = rng.random()
        mask[order[np.floor((np.arange(count) + start) * len(rows) / count).astype(np.int64)]] = (
            True
        )
    return rows[mask], rows[~mask]


def _named(
    assignment: Mapping[str, Rows] | Sequence[Rows], names: Sequence[str] | None
) -> Mapping[str, Rows]:
    if isinstance(assignment, Mapping):
        if names is not None:
            raise ConfigError("names are given twice: in the assignment, and on their own")
        return assignment
    width = len(str(len(assignment) - 1))
    names = names or [f"client-{k:0{width}d}" for k in range(len(assignment))]
    if len(set(names)) != len(assignment):
        raise ConfigError(f"{len(assignment)} clients need as many different names")
    return dict(zip(names, assignment, strict=True))


def _check_assignment(table: Table, assignment: Mapping[str, Rows]) -> None:
    if not assignment:
        raise DataError(f"{table.where}there are no clients")
    owner = np.full(len(table), -1, dtype=np.int64)
    clients = list(assignment)
    for k, (name, rows) in enumerate(assignment.items()):
        if len(rows) == 0:
            raise DataError(f"{table.where}client '{name}' has no rows")
        if rows.min() < 0 or rows.max() >= len(table):
            raise DataError(f"{table.where}client '{name}' has a row outside 0..{len(table) - 1}")
        taken = rows[owner[rows] >= 0]
        if len(taken):
            other = clients[owner[taken[0]]]
            raise DataError(
                f"{table.where}row {int(taken[0])} belongs to clients '{other}' and '{name}'"
            )
        owner[rows] = k
        if len(np.unique(rows)) != len(rows):
            raise DataError(f"{table.where}client '{name}' has a row twice")


def _spec(table: Table, scale: Scale, sensitive_as_feature: Sensitive) -> Spec:
    numeric = tuple(c for c in table.numeric if c not in table.sensitive)
    categorical = tuple(c for c in table.categorical if c not in table.sensitive)
    if sensitive_as_feature is True:
        categorical += table.sensitive
    used = {*numeric, *categorical}
    return Spec(
        numeric,
        categorical,
        scale,
        {column: policy for column, policy in table.missing.items() if column in used},
        {column: levels for column, levels in table.levels.items() if column in used},
    )


def _check_missing(table: Table, assignment: Mapping[str, Rows], spec: Spec) -> None:
    for column in spec.numeric + spec.categorical:
        gone = table.frame[column].isna().to_numpy()
        if spec.policy(column) == "error" and gone.any():
            counts = {name: int(gone[rows].sum()) for name, rows in assignment.items()}
            text = ", ".join(f"{n} at client '{name}'" for name, n in counts.items() if n)
            if text:
                raise DataError(
                    f"{table.where}column '{column}' has missing values: {text}. Choose what to "
                    f"do, e.g. missing={{'{column}': 'indicator'}}"
                )


def examples_of(table: Table, rows: Rows, preprocessor: Preprocessor, coded: bool) -> Examples:
    """Rows of a table as tensors."""
    x = preprocessor.transform(table.frame.iloc[rows])
    group = table.group[rows]
    if coded:
        x = np.concatenate([x, group[:, None].astype(np.float32)], axis=1)
    return Examples.of(
        torch.from_numpy(x), torch.from_numpy(table.y[rows]), torch.from_numpy(group)
    )


def _group_notes(table: Table, rows: Mapping[str, dict[Split, Rows]]) -> list[str]:
    """Note groups too small to say anything about, and clients without test rows."""
    trained = np.concatenate([splits["train"] for splits in rows.values()])
    counts = np.bincount(table.group[trained], minlength=len(table.groups))
    words = {0: "no training example", 1: "a single training example"}
    notes = [
        f"group '{label}' has {words[int(n)]}"
        for label, n in zip(table.groups.labels, counts, strict=True)
        if n < 2
    ]
    untested = [name for name, splits in rows.items() if len(splits["test"]) == 0]
    if untested:
        have = "has" if len(untested) == 1 else "have"
        notes.append(f"{counted(len(untested), 'client')} {have} no test example")
    return notes
