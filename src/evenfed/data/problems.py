"""Everything that is wrong with files, collected so that it is reported at once.

A problem names file, column and row numbers. It never holds the content of a cell: that is a
client's data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from evenfed.core.errors import DataError

SHOWN = 5
"""Row numbers that a problem names; the others are counted."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Parameters
    ----------
    text : str
        What is wrong and what would be right.
    file, column, client : str
        Where; empty where it concerns all.
    rows : tuple of int
        The first few rows; row 1 is the first below the header.
    count : int
        How many rows in all.

    Examples
    --------
    >>> print(Problem("text where numbers belong", "a.csv", "age", rows=(3, 8), count=7))
    a.csv, column 'age': text where numbers belong, in 7 rows: 3, 8 and 5 more
    """

    text: str
    file: str = ""
    column: str = ""
    client: str = ""
    rows: tuple[int, ...] = ()
    count: int = 0

    def __str__(self) -> str:
        client = f"client '{self.client}'" if self.client else ""
        column = f"column '{self.column}'" if self.column else ""
        where = ", ".join(part for part in (self.file, client, column) if part)
        text = f"{where}: {self.text}" if where else self.text
        if not self.count:
            return text
        more = self.count - len(self.rows)
        which = ", ".join(str(row) for row in self.rows) + (f" and {more} more" if more else "")
        return f"{text}, in {self.count} row{'s'[: self.count > 1]}: {which}"


def in_rows(text: str, frame: pd.DataFrame | pd.Series[Any], bad: NDArray[np.bool_]) -> Problem:
    """A problem of the rows where `bad` `(n,)`; a row's number is its index."""
    rows = frame.index[bad]
    return Problem(text, rows=tuple(int(row) for row in rows[:SHOWN]), count=len(rows))


class DataProblemsError(DataError):
    """Data that cannot be used, with everything that was found wrong in `problems`."""

    def __init__(self, problems: Sequence[Problem], left: str = "nothing was trained") -> None:
        self.problems = tuple(problems)
        n = len(self.problems)
        lines = [f"{n} problem{'s'[: n > 1]} with the data; {left}"]
        lines += [f"- {problem}" for problem in self.problems]
        if any(problem.rows for problem in self.problems):
            lines.append("(row 1 is the first below the header; contents of cells are not shown)")
        super().__init__("\n".join(lines))


def raise_if_any(problems: Iterable[Problem], left: str = "nothing was trained") -> None:
    """Raise `DataProblemsError` unless there is none; `left` says what was left undone."""
    found = list(dict.fromkeys(problems))
    if found:
        raise DataProblemsError(found, left)
