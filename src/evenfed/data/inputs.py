"""From raw rows to what a model takes, in two steps that every runtime can take.

`Inputs.raw` reads raw rows into tensors and refuses what does not fit, by column. `Inputs.module`
is the arithmetic behind it (scaling, filling in, one column a level) as a plain module, so that it
can be exported together with the model. Both together are what `Preprocessor.transform` does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from evenfed.core.errors import DataError
from evenfed.data.dataset import Groups, Schema
from evenfed.data.preprocess import Categorical, Numeric, Preprocessor, level_codes, numbers

UNSEEN, MISSING = -1, -2
"""Codes of a level that training rows did not have, and of a value that may not be missing."""


@runtime_checkable
class Inputs(Protocol):
    """How raw examples become the features of a model."""

    def raw(self, rows: Any) -> tuple[Tensor, ...]:
        """Read raw examples into tensors, each `(n, ...)`."""

    def module(self) -> nn.Module:
        """The way from those tensors to features `(n, *shape)`."""

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""


@dataclass(frozen=True)
class Columns:
    """Rows of a table.

    Parameters
    ----------
    preprocessor : Preprocessor
    code : Groups, optional
        Sensitive columns whose intersection is one more feature, its code.

    Examples
    --------
    >>> from evenfed.data.preprocess import Numeric
    >>> inputs = Columns(Preprocessor((Numeric("age", 40.0, 10.0), Categorical("job", ("a", "b")))))
    >>> raw = inputs.raw(pd.DataFrame({"age": [50, 30], "job": ["b", "c"]}))
    >>> inputs.module()(*raw).tolist()
    [[1.0, 0.0, 1.0], [-1.0, 0.0, 0.0]]
    """

    preprocessor: Preprocessor
    code: Groups | None = None

    @property
    def numeric(self) -> tuple[Numeric, ...]:
        """Columns that are numbers."""
        return tuple(c for c in self.preprocessor.columns if isinstance(c, Numeric))

    @property
    def words(self) -> tuple[tuple[str, dict[str, int], int], ...]:
        """Columns that are words: name, code of every level, code of a missing value."""
        found = []
        for column in self.preprocessor.columns:
            if isinstance(column, Categorical):
                codes = {level: i for i, level in enumerate(column.levels)}
                absent = {"mode": codes.get(column.fill or "", UNSEEN), "zeros": UNSEEN}
                absent |= {"indicator": len(codes), "error": MISSING}
                found.append((column.name, codes, absent[column.missing]))
        if self.code is not None:
            for name, levels in zip(self.code.names, self.code.levels, strict=True):
                found.append((name, {level: i for i, level in enumerate(levels)}, MISSING))
        return tuple(found)

    @property
    def names(self) -> tuple[str, ...]:
        """Raw columns that are read."""
        return tuple(c.name for c in self.numeric) + tuple(name for name, _, _ in self.words)

    def raw(self, rows: Any) -> tuple[Tensor, ...]:
        """Numbers `(n, p)` float64 with NaN for missing ones, codes of levels `(n, q)`."""
        if not isinstance(rows, pd.DataFrame):
            raise DataError(f"the model reads a table with columns {', '.join(self.names)}")
        check_columns(self.names, rows)
        result = []
        if self.numeric:
            result.append(np.stack([_numbers(c, rows[c.name]) for c in self.numeric], axis=1))
        if self.words:
            coded = set(self.code.names) if self.code is not None else set()
            codes = [
                _codes(rows[name], levels, absent, name in coded)
                for name, levels, absent in self.words
            ]
            result.append(np.stack(codes, axis=1))
        return tuple(torch.from_numpy(part) for part in result)

    def module(self) -> nn.Module:
        """Scaling, filling in, and one feature a level."""
        return _TableFeatures(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        code = None if self.code is None else asdict(self.code)
        return {"kind": "columns", **self.preprocessor.to_dict(), "code": code}


@dataclass(frozen=True)
class Array:
    """Numbers of a fixed shape, such as pixels: feature = number / scale.

    Examples
    --------
    >>> pixels = Array((1, 2, 2), scale=255.0)
    >>> pixels.module()(*pixels.raw(np.full((3, 2, 2), 51))).unique()
    tensor([0.2000])
    """

    shape: tuple[int, ...]
    scale: float = 1.0

    def raw(self, rows: Any) -> tuple[Tensor, ...]:
        """Numbers `(n, *shape)` float32; an axis of length 1 may be left out."""
        values = torch.as_tensor(np.asarray(rows)).to(torch.float32)
        if values.ndim == 0 or values[:1].numel() not in (0, math.prod(self.shape)):
            raise DataError(
                f"the model reads arrays (n, {', '.join(map(str, self.shape))}), "
                f"not {tuple(values.shape)}"
            )
        return (values.reshape(-1, *self.shape),)

    def module(self) -> nn.Module:
        """The division."""
        return _Scaled(self.scale)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        return {"kind": "array", "shape": list(self.shape), "scale": self.scale}


@dataclass(frozen=True)
class Tokens:
    """Texts of a fixed length over an alphabet, or their codes.

    Examples
    --------
    >>> Tokens(3, "abc").raw(["cab"])[0]
    tensor([[2, 0, 1]])
    """

    length: int
    alphabet: str = ""
    vocabulary: int = 0

    def raw(self, rows: Any) -> tuple[Tensor, ...]:
        """Codes `(n, length)`."""
        if len(rows) and isinstance(rows[0], str):
            place = {letter: i for i, letter in enumerate(self.alphabet)}
            rows = [[place.get(letter, -1) for letter in text] for text in rows]
        if any(len(row) != self.length for row in rows):
            raise DataError(f"the model reads {self.length} tokens an example")
        codes = torch.as_tensor(np.asarray(rows, dtype=np.int64)).reshape(-1, self.length)
        size = len(self.alphabet) or self.vocabulary
        if codes.numel() and not 0 <= int(codes.min()) <= int(codes.max()) < size:
            raise DataError(f"a token is outside the vocabulary of {size}")
        return (codes,)

    def module(self) -> nn.Module:
        """Nothing is left to do."""
        return nn.Identity()

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        return {"kind": "tokens", **asdict(self)}


def inputs_of(found: Mapping[str, Any]) -> Inputs:
    """Inverse of `to_dict`.

    Examples
    --------
    >>> inputs_of(Array((2,), 4.0).to_dict())
    Array(shape=(2,), scale=4.0)
    """
    if found["kind"] == "array":
        return Array(tuple(found["shape"]), float(found["scale"]))
    if found["kind"] == "tokens":
        return Tokens(found["length"], found["alphabet"], found["vocabulary"])
    code = found["code"]
    if code is not None:
        code = Groups(tuple(code["names"]), tuple(tuple(level) for level in code["levels"]))
    return Columns(Preprocessor.from_dict(found), code)


def plain_inputs(schema: Schema) -> Inputs:
    """Inputs of data that carry no preprocessing: the features themselves are the raw values."""
    if schema.vocabulary:
        return Tokens(math.prod(schema.shape), vocabulary=schema.vocabulary)
    if schema.features and schema.shape == (len(schema.features),):
        return Columns(Preprocessor(tuple(Numeric(name) for name in schema.features)))
    return Array(schema.shape)


def check_columns(needed: Sequence[str], frame: pd.DataFrame) -> None:
    """Refuse a table that lacks columns, naming all of them."""
    lacking = [name for name in needed if name not in frame.columns]
    if lacking:
        words = ", ".join(f"'{name}'" for name in lacking)
        there = ", ".join(f"'{name}'" for name in frame.columns)
        raise DataError(
            f"the model needs {'column' if len(lacking) == 1 else 'columns'} {words}; "
            f"the rows have {there}"
        )


def _numbers(column: Numeric, values: pd.Series[Any]) -> NDArray[np.float64]:
    found = numbers(values)
    gone = int(np.isnan(found).sum())
    if gone and column.fill is None:
        raise DataError(f"column '{column.name}': {gone} values are missing")
    return found


def _codes(
    values: pd.Series[Any], levels: Mapping[str, int], absent: int, complete: bool
) -> NDArray[np.int64]:
    codes, known = level_codes(values)
    # The last entry serves code -1, a missing value.
    target = np.array([levels.get(level, UNSEEN) for level in known] + [absent], dtype=np.int64)
    result: NDArray[np.int64] = target[codes]
    if (result == MISSING).any():
        gone = int((result == MISSING).sum())
        raise DataError(f"column '{values.name}': {gone} values are missing")
    if complete and (result == UNSEEN).any():
        raise DataError(f"column '{values.name}' has a level that is none of {', '.join(levels)}")
    return result


class _TableFeatures(nn.Module):
    """Features `(n, d)` from numbers `(n, p)` and codes `(n, q)`, as `Preprocessor` makes them.

    A value that may not be missing, but is, makes NaN of its features.
    """

    offset: Tensor
    scale: Tensor
    fill: Tensor
    places: Tensor

    def __init__(self, inputs: Columns) -> None:
        super().__init__()
        numeric = inputs.numeric
        nan = math.nan
        columns = {
            "offset": [c.offset for c in numeric],
            "scale": [c.scale for c in numeric],
            "fill": [nan if c.fill is None else c.fill for c in numeric],
        }
        for name, values in columns.items():
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64))
        categorical = [c for c in inputs.preprocessor.columns if isinstance(c, Categorical)]
        self.widths = [len(c.features) for c in categorical]
        self.radix = [len(levels) for levels in inputs.code.levels] if inputs.code else []
        self.register_buffer("places", torch.tensor(_places(inputs, len(numeric))))

    def forward(self, *raw: Tensor) -> Tensor:
        parts: list[Tensor] = []
        left = list(raw)
        if len(self.offset):
            values = left.pop(0)
            gone = values.isnan()
            scaled = (torch.where(gone, self.fill, values) - self.offset) / self.scale
            parts += [scaled.to(torch.float32), gone.to(torch.float32)]
        if left:
            parts += self._words(left[0])
        return torch.cat(parts, 1).index_select(1, self.places)

    def _words(self, codes: Tensor) -> list[Tensor]:
        parts = []
        for j, width in enumerate(self.widths):
            code = codes[:, j : j + 1]
            here = (code == torch.arange(width, device=code.device)).to(torch.float32)
            parts.append(torch.where(code == MISSING, math.nan, here))
        if self.radix:
            group = torch.zeros_like(codes[:, :1])
            own = codes[:, len(self.widths) :]
            for k, size in enumerate(self.radix):
                group = group * size + own[:, k : k + 1]
            known = (own >= 0).all(1, keepdim=True)
            parts.append(torch.where(known, group.to(torch.float32), math.nan))
        return parts


def _places(inputs: Columns, numeric: int) -> list[int]:
    """Where each feature stands among scaled numbers, marks of missing ones, levels, code."""
    places, number, level = [], 0, 2 * numeric
    for column in inputs.preprocessor.columns:
        if isinstance(column, Numeric):
            places += [number, numeric + number][: len(column.features)]
            number += 1
        else:
            places += range(level, level + len(column.features))
            level += len(column.features)
    return [*places, level] if inputs.code else places


class _Scaled(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return x if self.scale == 1.0 else x / self.scale
