"""What is wrong with the rows of a client, given the schema that all silos share.

`check` runs where the rows are and finds everything at once; `check_together` is about sums.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from evenfed.core.errors import suggest
from evenfed.data.dataset import Groups
from evenfed.data.preprocess import LARGEST, level_codes
from evenfed.data.problems import Problem, in_rows
from evenfed.data.silo_files import Part, as_levels, parsed

if TYPE_CHECKING:
    from evenfed.data.silo import SiloSchema

MISSING = "missing"
"""The level of a sensitive column whose missing values are a group of their own."""


def check(
    part: Part, schema: SiloSchema, skip: Collection[str] = (), *, policies: bool = True
) -> list[Problem]:
    """Everything that is wrong with a client's rows, but for columns to `skip`.

    `policies`: whether there are any for missing values, so that one can be advised.

    Examples
    --------
    >>> from pathlib import Path
    >>> from evenfed.data.silo import SiloSchema
    >>> frame = pd.DataFrame({"age": ["30", "old"], "paid": ["0", "2"]}, index=[1, 2])
    >>> for problem in check(Part("a", Path("a.csv"), frame), SiloSchema("paid", ("age",))):
    ...     print(problem)
    a.csv, column 'age': text where numbers belong, in 1 row: 2
    a.csv, column 'paid': the label is none of 0, 1, in 1 row: 2
    """
    frame = part.frame
    named = [*schema.numeric, *schema.categorical, *schema.sensitive, schema.label]
    named = [column for column in dict.fromkeys(named) if column not in skip]
    gone = [column for column in named if column not in frame.columns]
    names = [str(c) for c in frame.columns]
    problems = [
        part.at(Problem(f"there is no such column.{suggest(column, names)}"), column)
        for column in gone
    ]
    if len(frame) == 0:
        return [*problems, part.at(Problem("there are no rows"))]
    for column in named:
        if column not in gone:
            found = _column(frame, column, schema, policies)
            problems += [part.at(problem, column) for problem in found]
    return problems


def _column(frame: pd.DataFrame, column: str, schema: SiloSchema, policies: bool) -> list[Problem]:
    if column == schema.label:
        return _label(frame, schema)
    problems = []
    values = frame[column]
    sensitive = column in schema.sensitive
    policy = schema.missing.get(column, "error")
    if policy == "error" and values.isna().any():
        advice = "level" if sensitive or column in schema.categorical else "mean"
        text = "missing values"
        if policies:
            text += f"; choose a policy, e.g. --missing {column}={advice}"
        problems.append(in_rows(text, frame, values.isna().to_numpy()))
    if column in schema.numeric and not sensitive:
        return problems + _numbers(values)
    levels = schema.levels.get(column)
    if levels is not None:
        codes, known = level_codes(as_levels(values))
        new = [i for i, level in enumerate(known) if level not in levels]
        bad = np.isin(codes, new)
        if bad.any():
            text = f"a level that is not among the {len(levels)} on the column's list"
            problems.append(in_rows(text, frame, bad))
    return problems


def _numbers(values: pd.Series[Any]) -> list[Problem]:
    x = parsed(values)
    problems = []
    words = np.isnan(x) & values.notna().to_numpy()
    if words.any():
        problems.append(in_rows("text where numbers belong", values, words))
    if np.isinf(x).any():
        problems.append(in_rows("infinite values", values, np.isinf(x)))
    large = np.isfinite(x) & (np.abs(x) > LARGEST)
    if large.any():
        text = f"numbers beyond {LARGEST:.1e}, the largest that a model can take"
        problems.append(in_rows(text, values, large))
    return problems


def _label(frame: pd.DataFrame, schema: SiloSchema) -> list[Problem]:
    values = frame[schema.label]
    gone = values.isna().to_numpy()
    problems = [in_rows("the label is missing", frame, gone)] if gone.any() else []
    if schema.kind == "regression":
        return problems + _numbers(values)
    classes = schema.classes or (("0", "1") if schema.kind == "binary" else ())
    if classes:
        codes, known = level_codes(as_levels(values))
        allowed = set(classes) | ({"False", "True"} if not schema.classes else set())
        bad = np.isin(codes, [i for i, level in enumerate(known) if level not in allowed])
        if bad.any():
            problems.append(in_rows(f"the label is none of {', '.join(classes)}", frame, bad))
    return problems


def group_counts(parts: Sequence[Part], schema: SiloSchema) -> NDArray[np.int64]:
    """Rows of each group over all clients; rows without a known group are left out."""
    groups = groups_of(schema)
    total = np.zeros(len(groups), dtype=np.int64)
    for part in parts:
        if not set(schema.sensitive) <= set(part.frame.columns) or not len(part.frame):
            continue
        columns = []
        for column, levels in zip(groups.names, groups.levels, strict=True):
            codes, known = level_codes(as_levels(part.frame[column]))
            place = {level: i for i, level in enumerate(levels)}
            rest = place[MISSING] if schema.missing.get(column) == "indicator" else -1
            columns.append(np.array([*(place.get(level, -1) for level in known), rest])[codes])
        there = np.all([column >= 0 for column in columns], axis=0)
        total += np.bincount(groups.codes(*(c[there] for c in columns)), minlength=len(groups))
    return total


def groups_of(schema: SiloSchema) -> Groups:
    """The groups of a schema whose levels are known."""
    levels = tuple(tuple(schema.levels[column]) for column in schema.sensitive)
    return Groups(schema.sensitive, levels) if schema.sensitive else Groups()


def check_together(
    parts: Sequence[Part], schema: SiloSchema, smallest: int
) -> tuple[list[Problem], list[str]]:
    """What only sums over clients show: problems, and notes on groups that nobody is in."""
    problems = []
    values: set[str] = set()
    for part in parts:
        if schema.label in part.frame.columns:
            values.update(level_codes(as_levels(part.frame[schema.label]))[1])
    if len(values) == 1:
        problems.append(Problem(f"label '{schema.label}' has one value: nothing can be learnt"))
    if not schema.sensitive:
        return problems, []
    groups, names = groups_of(schema), " / ".join(schema.sensitive)
    notes = []
    for label, n in zip(groups.labels, group_counts(parts, schema).tolist(), strict=True):
        if n == 0:
            notes.append(f"group '{label}' has no example")
        elif n < smallest:
            problems.append(
                Problem(
                    f"group '{label}' ({names}) has {n} row{'s'[: n > 1]} at all clients together, "
                    f"fewer than {smallest}: merge levels, use fewer sensitive columns, or lower "
                    "--smallest-group"
                )
            )
    return problems, notes
