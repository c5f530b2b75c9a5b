"""Silo files as one federated dataset: find, read, learn or check the schema, record it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from evenfed.core.errors import ConfigError, counted, suggest
from evenfed.data import fitting
from evenfed.data.dataset import ClientData, FederatedDataset, Kind, Schema
from evenfed.data.inputs import Columns
from evenfed.data.preprocess import Scale
from evenfed.data.problems import Problem, raise_if_any
from evenfed.data.silo import Silo, SiloSchema, schema_of
from evenfed.data.silo_checks import check, check_together
from evenfed.data.silo_files import Part, files_of, find_files, parts_of, read_frame
from evenfed.data.silo_record import (
    against,
    check_writable,
    fixed,
    read_record,
    record_path,
    write_record,
)
from evenfed.data.silo_types import Described, Learned, Wanted, policy_word
from evenfed.data.table import MAX_LEVELS

Files = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class Silos:
    """Silo files that have been read and found to fit, by client.

    Parameters
    ----------
    schema : SiloSchema
        What all share.
    silos : dict of client to Silo
        `silo.table` has typed rows, `y` and `group`.
    parts : dict of client to Part
        Raw rows as they were read, and the file.
    columns : mapping of column to Described
        Counts over all clients.
    client_column : str, optional
    """

    schema: SiloSchema
    silos: Mapping[str, Silo]
    parts: Mapping[str, Part]
    columns: Mapping[str, Described]
    files: tuple[str, ...]
    client_column: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def frames(self) -> dict[str, pd.DataFrame]:
        """Typed rows of each client: numbers, categories, label and groups as read."""
        return {name: silo.table.frame for name, silo in self.silos.items()}

    def options(self) -> dict[str, Any]:
        """What `[data]` of a config holds besides the name: files and the whole schema."""
        where: dict[str, Any] = {"files": list(self.files)}
        if self.client_column is not None:
            where["client_column"] = self.client_column
        return {**where, **self.schema.table()}

    def lines(self) -> list[str]:
        """Types, label, groups and missing values, for a reader."""
        schema = self.schema
        rows = sum(len(silo.table) for silo in self.silos.values())
        lines = [f"{counted(len(self.silos), 'client')}, {counted(rows, 'row')}"]
        if schema.kind == "regression":
            scaled = {"standard": ", standardised for training", "none": ""}
            how = scaled.get(schema.scale, ", brought to [0, 1] for training")
            lines.append(f"label {schema.label}: a number{how}")
        elif schema.kind == "binary":
            names = schema.classes or ("0", "1")
            lines.append(f"label {schema.label}: {' or '.join(names)}; favourable: {names[1]}")
        else:
            lines.append(
                f"label {schema.label}: {len(schema.classes)} classes: {', '.join(schema.classes)}"
            )
        lines += [f"sensitive {c}: {', '.join(schema.levels[c])}" for c in schema.sensitive]
        lines += [f"feature {c}: numbers{self._gaps(c)}" for c in schema.spec.numeric]
        lines += [
            f"feature {c}: {len(schema.levels[c])} levels{self._gaps(c)}"
            for c in schema.spec.categorical
        ]
        return lines

    def _gaps(self, column: str) -> str:
        n = self.columns[column].missing
        policy = policy_word(self.schema.missing.get(column, "error"))
        return f", {n} missing: {policy}" if n else ""

    def federated(self, seed: int = 0) -> SiloDataset:
        """Split each client's rows, fit the preprocessing by sums, make tensors."""
        training = {name: silo.training(seed) for name, silo in self.silos.items()}
        fitted, ledger = fitting.fit(training, self.schema.fitted_spec)
        clients = [silo.client(fitted[name], seed) for name, silo in self.silos.items()]
        one = next(iter(fitted.values()))
        schema = schema_of(self.schema, one, ledger)
        schema = replace(schema, notes=(*schema.notes, *self.notes))
        return SiloDataset(schema, clients, self, Columns(self.schema.parted(one)[0]), seed)


class SiloDataset(FederatedDataset):
    """A federated dataset of silo files; `options` let a config load it again."""

    def __init__(
        self,
        schema: Schema,
        clients: Sequence[ClientData],
        silos: Silos,
        inputs: Columns,
        seed: int,
    ) -> None:
        rows = {name: silo.splits(seed) for name, silo in silos.silos.items()}
        super().__init__(
            schema, clients, inputs=inputs,
            rows=lambda name, split: silos.silos[name].table.frame.iloc[rows[name][split]],
        )  # fmt: skip
        self.options = silos.options()
        self.parts = silos.parts


def read_silos(
    files: Files,
    wanted: Wanted | None = None,
    *,
    client_column: str | None = None,
    **options: Any,
) -> Silos:
    """Read silo files, learn what is not said about them, and check everything.

    Parameters
    ----------
    files : str, path or sequence of them
        Patterns or paths of CSV and Parquet files.
    wanted : Wanted, optional
        What the user says; or give its fields as keywords: `label="died", sensitive="sex"`.
    client_column : str, optional
        Column that names the client of a row; without it each file is a client.

    Raises
    ------
    DataProblemsError
        With everything that is wrong, by file, column and row.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in "ab":
    ...     frame = pd.DataFrame({"age": range(20), "sex": ["f", "m"] * 10})
    ...     frame.assign(paid=[0, 0, 1, 1] * 5).to_csv(folder / f"{name}.csv", index=False)
    >>> found = read_silos(f"{folder}/*.csv", label="paid", sensitive="sex")
    >>> found.schema.numeric, found.schema.levels, list(found.frames)
    (('age',), {'sex': ('f', 'm')}, ['a', 'b'])
    """
    if wanted is None:
        wanted = as_wanted(**options)
    elif options:
        raise ConfigError("give what is wanted once: as an object, or as keywords")
    paths, problems = find_files(files)
    parts, found = parts_of(paths, client_column)
    problems += found
    if not parts:
        raise_if_any([*problems, *([] if problems else [Problem("there are no clients")])])
    learned = Learned.of(parts, wanted)
    schema = learned.schema()
    used = {schema.label, *schema.numeric, *schema.categorical, *schema.sensitive}
    # a duplicated column that nobody uses does no harm
    problems = [p for p in problems if not p.column or p.column in {*used, client_column}]
    problems += learned.problems
    unknown = used - set(learned.columns)
    for part in parts:
        problems += check(part, schema, skip=unknown)
    more, notes = check_together(parts, schema, wanted.smallest_group)
    raise_if_any([*problems, *more])
    silos = {part.client: Silo.of(part, schema) for part in parts}
    words = [files] if isinstance(files, str | Path) else files
    return Silos(
        schema, silos, {part.client: part for part in parts}, learned.columns,
        tuple(str(word) for word in words), client_column, tuple(notes),
    )  # fmt: skip


def recorded_silos(
    files: Files,
    *,
    client_column: str | None = None,
    schema: Path | str | None = None,
    relearn: bool = False,
    write: bool = True,
    **options: Any,
) -> tuple[Silos, Path, bool]:
    """As `read_silos`, with the schema recorded in a file: written the first time, then held to.

    With `write` false the record is left to the caller: `write_record`.

    Returns
    -------
    Silos, path of the record, whether it is new
    """
    paths, problems = find_files(files)
    if not paths:
        raise_if_any(problems)
    path = Path(schema) if schema is not None else record_path(paths)
    options = {name: value for name, value in options.items() if value is not None}
    if relearn or not path.is_file():
        if "label" not in options:
            raise ConfigError(f"name the label: there is no record of it in '{path}'")
        found = read_silos(files, as_wanted(**options), client_column=client_column)
        check_writable(path)
        if write:
            write_record(path, found.schema, client_column)
        return found, path, True
    before, column = read_record(path)
    wanted = as_wanted(**{"label": before.label, **options})
    said = {name: getattr(wanted, name) for name in options}
    if client_column is not None:
        said["client_column"] = client_column
    against(before, column, said, path, lambda: _check_names(paths, wanted, client_column))
    found = read_silos(files, fixed(before), client_column=column)
    return found, path, False


def _check_names(paths: Sequence[Path], wanted: Wanted, client_column: str | None) -> None:
    """Refuse names of columns that no file has."""
    frames = [frame for path in paths if (frame := read_frame(path)[0]) is not None]
    known = list(dict.fromkeys(str(column) for frame in frames for column in frame.columns))
    named = [
        wanted.label, *wanted.sensitive, *wanted.features, *wanted.drop, *wanted.numeric,
        *wanted.categorical, *(c for c in wanted.missing if c != "*"), client_column,
    ]  # fmt: skip
    gone = [column for column in named if column is not None and column not in known]
    raise_if_any(Problem(f"no file has a column '{c}'.{suggest(c, known)}") for c in gone)


def load_silos(
    files: Files,
    *,
    label: str | None = None,
    sensitive: str | Sequence[str] | None = None,
    client_column: str | None = None,
    schema: Path | str | None = None,
    relearn: bool = False,
    seed: int = 0,
    **options: Any,
) -> SiloDataset:
    """Silo files as a federated dataset; their schema is recorded in `silos.toml` beside them.

    Parameters
    ----------
    files : str, path or sequence of them
        Patterns or paths of CSV and Parquet files, one a client.
    label : str
        Column to predict; may be left out where the record names it.
    sensitive : str or sequence of str
        Columns whose levels are the groups.
    client_column : str, optional
        Column that names the client of a row, where one file holds several.
    schema : path, optional
        The record, if not `silos.toml` in the folder of the files.
    relearn : bool
        Write the record anew instead of holding the files to it.
    seed : int
        Decides which rows are training, validation and test rows.
    **options
        `features`, `drop`, `numeric`, `categorical`, `missing`, `kind`, `classes`, `favourable`,
        `levels`, `val`, `test`, `scale`, `max_levels`, `smallest_group`; see `Wanted`.

    Returns
    -------
    SiloDataset

    Raises
    ------
    DataProblemsError
        With everything that is wrong, by file, column and row.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in "ab":
    ...     frame = pd.DataFrame({"age": range(20), "sex": ["f", "m"] * 10})
    ...     frame.assign(paid=[0, 0, 1, 1] * 5).to_csv(folder / f"{name}.csv", index=False)
    >>> data = load_silos(f"{folder}/*.csv", label="paid", sensitive="sex")
    >>> data.names, data.schema.features, (folder / "silos.toml").is_file()
    (['a', 'b'], ('age',), True)
    """
    found, _, _ = recorded_silos(
        files, label=label, sensitive=sensitive, client_column=client_column, schema=schema,
        relearn=relearn, **options,
    )  # fmt: skip
    return found.federated(seed)


def silos_of_config(options: Mapping[str, Any]) -> Silos:
    """Silo files that a config names in `data.files`, with its schema."""
    if not options.get("files"):
        raise ConfigError(
            "data of silos lie at nodes; to run here, name the files: data.files or --silos"
        )
    schema = SiloSchema.of_config(options)
    return read_silos(files_of(options), fixed(schema), client_column=options.get("client_column"))


def as_wanted(
    *,
    label: str,
    sensitive: str | Sequence[str] = (),
    features: str | Sequence[str] = (),
    drop: str | Sequence[str] = (),
    numeric: str | Sequence[str] = (),
    categorical: str | Sequence[str] = (),
    missing: str | Mapping[str, str] | None = None,
    kind: Kind | None = None,
    classes: str | Sequence[object] = (),
    favourable: object = None,
    levels: Mapping[str, Sequence[object]] | None = None,
    val: float = 0.1,
    test: float = 0.2,
    scale: Scale = "standard",
    max_levels: int = MAX_LEVELS,
    smallest_group: int = 10,
) -> Wanted:
    """`Wanted` from words: lists may be texts with commas, policies `"age=mean,job=level"`."""
    policies = _policies(missing) if isinstance(missing, str) else dict(missing or {})
    return Wanted(
        label, words(sensitive), words(features), words(drop), words(numeric), words(categorical),
        policies, kind, words(classes if isinstance(classes, str) else [str(c) for c in classes]),
        None if favourable is None else str(favourable),
        {column: tuple(str(x) for x in known) for column, known in (levels or {}).items()},
        val, test, scale, max_levels, smallest_group,
    )  # fmt: skip


def words(given: str | Sequence[str]) -> tuple[str, ...]:
    """Names out of a text with commas, or out of a list.

    Examples
    --------
    >>> words("sex, race")
    ('sex', 'race')
    """
    parts = given.split(",") if isinstance(given, str) else [str(word) for word in given]
    return tuple(part.strip() for part in parts if part.strip())


def _policies(text: str) -> dict[str, str]:
    found = {}
    for part in words(text):
        column, equals, policy = part.rpartition("=")
        if not equals or not column:
            raise ConfigError(f"missing values: '{part}' is not COLUMN=POLICY, e.g. age=mean")
        found[column.strip()] = policy.strip()
    return found
