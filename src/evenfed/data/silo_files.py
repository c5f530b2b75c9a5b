"""Finds and reads silo files: CSV or Parquet, one a client, or one with a client column."""

from __future__ import annotations

import glob
import gzip
import os
import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet
from numpy.typing import NDArray

from evenfed.core.errors import suggest
from evenfed.data.preprocess import level_codes
from evenfed.data.problems import Problem, in_rows

_WHOLE = re.compile(r"(-?\d+)\.0+")
_LINE = re.compile(r"line (\d+)")
_ENDINGS = (".csv", ".tsv", ".txt", ".parquet", ".pq")
SEPARATORS = ",;\t|"
SCHEMA_FILE = "silos.toml"
"""Record of the schema, beside the files; it is none of them."""


@dataclass(frozen=True)
class Part:
    """The raw rows of one client: where they lie, and a frame whose index is the row's number."""

    client: str
    path: Path
    frame: pd.DataFrame
    shared: bool = False
    """Whether other clients have rows in the same file."""

    def at(self, problem: Problem, column: str = "") -> Problem:
        """The problem, with the place of these rows."""
        client = self.client if self.shared else ""
        return Problem(
            problem.text, str(self.path), column, client, problem.rows, problem.count
        )  # fmt: skip


def find_files(patterns: str | Path | Sequence[str | Path]) -> tuple[list[Path], list[Problem]]:
    """Files that patterns or paths name, sorted, and what matches nothing.

    Examples
    --------
    >>> found, problems = find_files("/nowhere/none_*.csv")
    >>> found, str(problems[0])
    ([], "no file matches '/nowhere/none_*.csv'")
    """
    words = [patterns] if isinstance(patterns, str | Path) else list(patterns)
    found: dict[Path, None] = {}
    problems = []
    for word in words:
        text = str(word)
        names = sorted(glob.glob(text)) or ([text] if os.path.exists(text) else [])
        files = [Path(name) for name in names if Path(name).is_file()]
        files = [path for path in files if path.name != SCHEMA_FILE]
        if not files:
            beside = os.listdir(os.path.dirname(text) or ".") if _is_folder(text) else []
            near = [name for name in beside if name.endswith(_ENDINGS)]
            hint = suggest(os.path.basename(text), near) if near else ""
            problems.append(Problem(f"no file matches '{text}'{'.' if hint else ''}{hint}"))
        found.update(dict.fromkeys(files))
    if not words:
        problems.append(Problem("no silo file is named"))
    return list(found), problems


def files_of(options: Mapping[str, Any]) -> list[str]:
    """Files that a config names; relative ones lie below `base`, by default where we are.

    Examples
    --------
    >>> files_of({"files": ["a_*.csv", "/b.csv"], "base": "../data"})
    ['../data/a_*.csv', '/b.csv']
    """
    named = options["files"]
    words = [named] if isinstance(named, str) else [str(word) for word in named]
    base = str(options.get("base", ""))
    # signs of a pattern in the name of the folder are none
    folders = [glob.escape(base) if glob.has_magic(word) else base for word in words]
    return [os.path.join(folder, word) for folder, word in zip(folders, words, strict=True)]


def _is_folder(text: str) -> bool:
    return os.path.isdir(os.path.dirname(text) or ".")


def client_names(paths: Sequence[Path]) -> list[str]:
    """A name for each file: without its ending, and with its folder where names repeat.

    Examples
    --------
    >>> client_names([Path("north/a.csv"), Path("south/a.csv"), Path("b.csv.gz")])
    ['north/a', 'south/a', 'b']
    """
    stems = [path.name.removesuffix(".gz").rsplit(".", 1)[0] for path in paths]
    twice = {stem for stem, n in Counter(stems).items() if n > 1}
    names = [
        f"{path.parent.name}/{stem}" if stem in twice else stem
        for path, stem in zip(paths, stems, strict=True)
    ]
    if len(set(names)) < len(names):
        return [str(path) for path in paths]
    return names


def read_frame(path: Path) -> tuple[pd.DataFrame | None, list[Problem]]:
    """Read a file; None where it cannot be read. The index counts rows from 1.

    Cells of a CSV file stay text, so that a code such as 007 is the same level at every client,
    whatever else is in the column.
    """
    try:
        frame = _parquet(path) if path.suffix in (".parquet", ".pq") else _csv(path)
    except _UnreadableError as error:
        return None, [Problem(f"cannot be read: {error}", str(path))]
    except pd.errors.EmptyDataError:
        return None, [Problem("is empty: there is not even a header", str(path))]
    except pd.errors.ParserError as error:
        line = _LINE.search(str(error))
        where = f" in line {line[1]}" if line else ""
        return None, [Problem(f"cannot be read: the number of cells differs{where}", str(path))]
    except UnicodeDecodeError:
        return None, [Problem("cannot be read: it is not text in UTF-8", str(path))]
    except (ValueError, OSError, EOFError, zlib.error, pyarrow.ArrowException) as error:
        return None, [Problem(f"cannot be read ({type(error).__name__})", str(path))]
    problems = []
    names = [str(name) for name in frame.columns]
    for name, times in Counter(names).items():
        if times > 1:
            problems.append(Problem(f"occurs {times} times", str(path), name))
    for place, name in enumerate(names, start=1):
        if not name.strip():
            text = f"column {place} has no name: name it, or leave it out (to_csv(index=False))"
            problems.append(Problem(text, str(path)))
        if "\0" in name:
            problems.append(Problem(f"the name of column {place} holds a NUL byte", str(path)))
    frame.columns = pd.Index(names)
    frame = frame.loc[:, ~frame.columns.duplicated()]
    frame.index = pd.RangeIndex(1, len(frame) + 1)
    return frame, [*problems, *_nul_bytes(path, frame)]


def _nul_bytes(path: Path, frame: pd.DataFrame) -> list[Problem]:
    """Cells with a NUL byte: a damaged file, and text that other programs cut off there."""
    problems = []
    for column in frame.columns:
        values = frame[column]
        if pd.api.types.is_numeric_dtype(values.dtype):
            continue
        try:
            codes, known = pd.factorize(values, use_na_sentinel=True)
        except TypeError:  # lists and the like, which are no text
            continue
        odd = np.array([*(isinstance(v, str) and "\0" in v for v in known), False])
        if odd.any():
            found = in_rows("a cell holds a NUL byte", frame, odd[codes])
            problems.append(Part("", path, frame).at(found, str(column)))
    return problems


class _UnreadableError(Exception):
    """A file whose form is wrong; the text holds no cell."""


def _parquet(path: Path) -> pd.DataFrame:
    table = pyarrow.parquet.read_table(path)
    names = table.column_names
    unique = [f"column {i}" for i in range(len(names))]
    frame: pd.DataFrame = table.rename_columns(unique).to_pandas(ignore_metadata=True)
    frame.columns = pd.Index(names)
    kept = [not re.fullmatch(r"__index_level_\d+__", name) for name in names]
    named: pd.DataFrame = frame.loc[:, kept]
    return named


def _csv(path: Path) -> pd.DataFrame:
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
        first = file.readline()
    separator = max(SEPARATORS, key=first.count)
    how: dict[str, Any] = {
        "sep": separator, "dtype": str, "skipinitialspace": True, "encoding": "utf-8-sig",
    }  # fmt: skip
    header = pd.read_csv(path, header=None, nrows=1, keep_default_na=False, **how)
    frame: pd.DataFrame = pd.read_csv(path, **how)
    if not isinstance(frame.index, pd.RangeIndex) or len(frame.columns) != header.shape[1]:
        raise _UnreadableError("rows have more cells than the header")
    frame.columns = pd.Index(header.iloc[0].astype(str).str.strip())
    return frame


def parts_of(
    paths: Sequence[Path], client_column: str | None = None
) -> tuple[list[Part], list[Problem]]:
    """Read files and give each client its rows.

    Without `client_column` a file is a client; with it, its values name the clients, and a client
    may have rows in one file only.
    """
    parts: list[Part] = []
    problems: list[Problem] = []
    for path, name in zip(paths, client_names(paths), strict=True):
        frame, found = read_frame(path)
        problems += found
        if frame is None:
            continue
        if client_column is None:
            parts.append(Part(name, path, frame))
            continue
        if client_column not in frame.columns:
            hint = suggest(client_column, [str(c) for c in frame.columns])
            problems.append(Problem(f"there is no client column.{hint}", str(path), client_column))
            continue
        values = as_levels(frame[client_column])
        codes, known = level_codes(values)
        if (codes < 0).any():
            gone = in_rows("the client is missing", frame, codes < 0)
            problems.append(Part("", path, frame).at(gone, client_column))
        others = frame.drop(columns=client_column)
        for k, client in enumerate(known):
            parts.append(Part(client, path, others[codes == k], shared=True))
        if not known:
            problems.append(Problem("there are no rows", str(path)))
    for client, times in Counter(part.client for part in parts).items():
        if times > 1:
            problems.append(Problem(f"client '{client}' has rows in {times} files"))
    return sorted(parts, key=lambda part: part.client), problems


def as_levels(values: pd.Series[Any]) -> pd.Series[Any]:
    """Text of a CSV file in the form in which levels are compared: 1.0 is 1, true is True."""
    if pd.api.types.is_numeric_dtype(values.dtype):
        return values
    codes, known = pd.factorize(values, use_na_sentinel=True)
    texts = np.array([*(_level(level) for level in known), None], dtype=object)
    return pd.Series(texts[codes], index=values.index, name=values.name, dtype=object)


def _level(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.capitalize() if value in (value.lower(), value.upper()) else value
    whole = _WHOLE.fullmatch(value)
    return whole[1] if whole else value


def parsed(values: pd.Series[Any]) -> NDArray[np.float64]:
    """Numbers of a column `(n,)`; NaN where a value is missing or is none (text, dates)."""
    if pd.api.types.is_datetime64_any_dtype(values) or pd.api.types.is_timedelta64_dtype(values):
        return np.full(len(values), np.nan)
    read = pd.to_numeric(values, errors="coerce")
    return np.asarray(read.to_numpy(dtype=np.float64, na_value=np.nan))
