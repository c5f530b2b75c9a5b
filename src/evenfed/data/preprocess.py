"""Turns columns of a table into features.

Numeric columns are standardised or brought to [0, 1]; categorical ones become one column a
level. `fitting` finds the numbers and levels; what it found is a `Preprocessor`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from evenfed.core.errors import DataError

Scale = Literal["standard", "minmax", "none"]
Missing = Literal["error", "mean", "mode", "indicator", "zeros"]

POLICIES: dict[str, tuple[Missing, ...]] = {
    "numeric": ("error", "mean", "indicator"),
    "categorical": ("error", "mode", "indicator", "zeros"),
}

LARGEST = float(np.finfo(np.float32).max)
"""The largest number that a feature can be; beyond it there is infinity."""


@dataclass(frozen=True)
class Spec:
    """Which columns become features, and how.

    Parameters
    ----------
    numeric, categorical : tuple of str
        Columns, in the order of the features; numeric ones come first.
    scale : {"standard", "minmax", "none"}
        What is done to numeric columns.
    missing : mapping of column to policy
        `"error"` (default) refuses missing values; `"mean"` and `"mode"` fill in what
        training rows have on average or most often; `"indicator"` does so too and adds a
        column that says so (a categorical column gets a level of its own); `"zeros"` gives a
        categorical column no level.
    levels : mapping of column to levels
        Levels of a categorical column that are known beforehand, e.g. from a code book.
    """

    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    scale: Scale = "standard"
    missing: Mapping[str, Missing] = field(default_factory=dict)
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.scale not in ("standard", "minmax", "none"):
            raise DataError(f"scale is 'standard', 'minmax' or 'none', not '{self.scale}'")
        for kind, columns in (("numeric", self.numeric), ("categorical", self.categorical)):
            for column in columns:
                if self.policy(column) not in POLICIES[kind]:
                    raise DataError(
                        f"missing values of {kind} column '{column}': the policy is one of "
                        f"{', '.join(POLICIES[kind])}, not '{self.policy(column)}'"
                    )
        for column in self.missing:
            if column not in self.numeric + self.categorical:
                raise DataError(f"a policy for missing values names no feature: '{column}'")

    def policy(self, column: str) -> Missing:
        """Policy for missing values of a column."""
        return self.missing.get(column, "error")

    def needs_mean(self, column: str) -> bool:
        """Whether the fit asks for the mean of a numeric column."""
        return self.scale == "standard" or self.policy(column) in ("mean", "indicator")

    def needs_levels(self, column: str) -> bool:
        """Whether the fit asks which levels a categorical column has."""
        return column not in self.levels or self.policy(column) == "mode"


@dataclass(frozen=True)
class Numeric:
    """A numeric column: feature = (value - offset) / scale."""

    name: str
    offset: float = 0.0
    scale: float = 1.0
    missing: Missing = "error"
    fill: float | None = None

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features made of this column."""
        return (self.name, f"{self.name}=missing") if self.missing == "indicator" else (self.name,)

    def transform(self, values: pd.Series[Any]) -> NDArray[np.float64]:
        """Features `(n, 1)`, or `(n, 2)` with an indicator."""
        x = numbers(values)
        gone = np.isnan(x)
        if gone.any():
            if self.fill is None:
                raise DataError(f"column '{self.name}': {int(gone.sum())} values are missing")
            x = np.where(gone, self.fill, x)
        scaled = (x - self.offset) / self.scale
        parts = [scaled, gone.astype(np.float64)] if self.missing == "indicator" else [scaled]
        return np.stack(parts, axis=1)


@dataclass(frozen=True)
class Categorical:
    """A categorical column: one feature a level; a level not seen in training is all zeros."""

    name: str
    levels: tuple[str, ...]
    missing: Missing = "error"
    fill: str | None = None

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features made of this column."""
        names = tuple(f"{self.name}={level}" for level in self.levels)
        return (*names, f"{self.name}=missing") if self.missing == "indicator" else names

    def transform(self, values: pd.Series[Any]) -> NDArray[np.float64]:
        """Features `(n, len(self.features))`."""
        codes, known = level_codes(values)
        if (codes < 0).any() and self.missing == "error":
            raise DataError(f"column '{self.name}': {int((codes < 0).sum())} values are missing")
        place = {level: i for i, level in enumerate(self.levels)}
        width = len(self.features)
        absent = {"mode": place.get(self.fill or "", -1), "indicator": width - 1}
        # The last entry serves code -1, a missing value.
        target = np.array(
            [place.get(level, -1) for level in known] + [absent.get(self.missing, -1)]
        )
        column = target[codes]
        out = np.zeros((len(codes), width))
        rows = np.flatnonzero(column >= 0)
        out[rows, column[rows]] = 1.0
        return out


@dataclass(frozen=True)
class Preprocessor:
    """Fitted preprocessing; plain numbers and words, so it can be stored and sent as JSON.

    Examples
    --------
    >>> age = Numeric("age", offset=40.0, scale=10.0)
    >>> both = Preprocessor((age, Categorical("job", ("clerk", "nurse"))))
    >>> both.features
    ('age', 'job=clerk', 'job=nurse')
    >>> both.transform(pd.DataFrame({"age": [50, 30], "job": ["nurse", "pilot"]})).tolist()
    [[1.0, 0.0, 1.0], [-1.0, 0.0, 0.0]]
    >>> Preprocessor.from_dict(both.to_dict()) == both
    True
    """

    columns: tuple[Numeric | Categorical, ...]

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features, in order."""
        return tuple(name for column in self.columns for name in column.features)

    def transform(self, frame: pd.DataFrame) -> NDArray[np.float32]:
        """Features `(n, len(self.features))` of raw rows."""
        out = np.empty((len(frame), len(self.features)), dtype=np.float32)
        start = 0
        for column in self.columns:
            if column.name not in frame.columns:
                raise DataError(f"column '{column.name}' is missing; the model needs it")
            stop = start + len(column.features)
            out[:, start:stop] = column.transform(frame[column.name])
            start = stop
        return out

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        columns = [
            {"kind": type(column).__name__.lower(), **asdict(column)} for column in self.columns
        ]
        for column in columns:
            if "levels" in column:
                column["levels"] = list(column["levels"])
        return {"columns": columns}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Preprocessor:
        """Inverse of `to_dict`."""
        columns: list[Numeric | Categorical] = []
        for entry in data["columns"]:
            rest = {key: value for key, value in entry.items() if key != "kind"}
            if entry["kind"] == "numeric":
                columns.append(Numeric(**rest))
            else:
                columns.append(Categorical(**{**rest, "levels": tuple(rest["levels"])}))
        return cls(tuple(columns))


def numbers(values: pd.Series[Any]) -> NDArray[np.float64]:
    """Read a column as float64, missing values as NaN; refuse words and infinities by row.

    A number that float32 cannot hold would become an infinity.

    Examples
    --------
    >>> numbers(pd.Series(["1", None, 2.5], dtype=object)).tolist()
    [1.0, nan, 2.5]
    """
    x = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    bad = (np.isnan(x) & values.notna().to_numpy()) | (np.abs(x) > LARGEST)
    if bad.any():
        raise DataError(
            f"column '{values.name}': row {values.index[int(np.argmax(bad))]} "
            f"is not a finite number, or is beyond {LARGEST:.1e}"
        )
    return x


def level_codes(values: pd.Series[Any]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Read a column as codes `(n,)` into levels written as text; -1 is a missing value.

    Whole numbers are written without a fraction, so that 1 and 1.0 are one level.

    Examples
    --------
    >>> codes, levels = level_codes(pd.Series([10.0, None, 2.0]))
    >>> codes.tolist(), levels
    ([1, -1, 0], ('2', '10'))
    """
    if isinstance(values.dtype, pd.CategoricalDtype):
        raw, known = values.cat.codes.to_numpy(), values.cat.categories
    else:
        raw, known = pd.factorize(values, use_na_sentinel=True)
    raw = raw.astype(np.int64)
    used = np.bincount(raw[raw >= 0], minlength=len(known)) > 0
    texts = [_text(level) for level in known]
    levels = sorted({text for text, n in zip(texts, used, strict=True) if n}, key=level_order)
    place = {level: i for i, level in enumerate(levels)}
    # The last entry serves code -1, a missing value.
    target = np.array([place.get(text, -1) for text in texts] + [-1], dtype=np.int64)
    return target[raw], tuple(levels)


def _text(level: object) -> str:
    if isinstance(level, float | np.floating) and float(level).is_integer():
        return str(int(level))
    return str(level)


def level_order(level: str) -> tuple[int, float, str]:
    """Numbers first and by value, then words."""
    try:
        return (0, float(level), level)
    except ValueError:
        return (1, 0.0, level)
