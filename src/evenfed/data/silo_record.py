"""`silos.toml`: the schema of silo files as it was learnt the first time.

Its `[data]` is that of a run's config, so that a deployment can submit it as it is.
"""

from __future__ import annotations

import os
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from evenfed.core.errors import ConfigError
from evenfed.data.silo import SILOS, SiloSchema
from evenfed.data.silo_files import SCHEMA_FILE
from evenfed.data.silo_types import Wanted, policy_word

_HEAD = """\
# The schema of silo files: written when they were first read, checked against from then on.
# `--relearn` writes it anew. A deployment takes it as it is: docs/deploy.md.

"""


def record_path(paths: Sequence[Path]) -> Path:
    """Where the schema of these files is recorded: in the folder that holds them all.

    Examples
    --------
    >>> record_path([Path("data/a.csv"), Path("data/b.csv")]).as_posix()
    'data/silos.toml'
    """
    folders = {str(path.parent) for path in paths}
    folder = folders.pop() if len(folders) == 1 else os.path.commonpath(map(os.path.abspath, paths))
    return Path(folder) / SCHEMA_FILE


def write_record(path: Path, schema: SiloSchema, client_column: str | None) -> None:
    """Write the schema; the file appears whole or not at all."""
    table = {"name": SILOS, **({"client_column": client_column} if client_column else {})}
    text = _HEAD + tomli_w.dumps({"data": {**table, **_plain(schema.table())}})
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except OSError as error:
        raise ConfigError(
            f"the schema cannot be written to '{path}' ({type(error).__name__}); "
            "name another place with --schema FILE"
        ) from error


def check_writable(path: Path) -> None:
    """Refuse a place in which no record can be written."""
    if not os.access(path.parent, os.W_OK) or path.is_dir():
        raise ConfigError(
            f"the schema cannot be written to '{path}'; name another place with --schema FILE"
        )


def read_record(path: Path) -> tuple[SiloSchema, str | None]:
    """The schema of a file, and the client column."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))["data"]
        column = table.pop("client_column", None)
        for place in ("files", "base"):
            table.pop(place, None)
        if table.pop("name") != SILOS:
            raise KeyError
        return SiloSchema.of(table), column
    except (OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(f"'{path}' does not hold a schema of silo files") from error


def fixed(schema: SiloSchema) -> Wanted:
    """A schema as what a user wants: what it says is not learnt again."""
    return Wanted(
        schema.label, schema.sensitive, (*schema.numeric, *schema.categorical), (),
        schema.numeric, schema.categorical, dict(schema.missing), schema.kind, schema.classes,
        None, dict(schema.levels), schema.val, schema.test, schema.scale,
        schema.max_levels, schema.smallest_group, schema.learnt,
    )  # fmt: skip


def against(
    schema: SiloSchema,
    client_column: str | None,
    given: Mapping[str, Any],
    path: Path,
    first: Callable[[], None],
) -> None:
    """Refuse options that a record contradicts; those that are not given are free.

    What `first` raises goes before: a misspelt column is no contradiction.
    """
    features = {*schema.numeric, *schema.categorical}
    policies = dict(schema.missing)
    agrees: dict[str, Callable[[Any], bool]] = {
        "label": lambda v: v == schema.label,
        "sensitive": lambda v: v == schema.sensitive,
        "features": lambda v: set(v) == features,
        "drop": lambda v: not set(v) & features,
        "numeric": lambda v: set(v) <= set(schema.numeric),
        "categorical": lambda v: set(v) <= set(schema.categorical),
        "kind": lambda v: v == schema.kind,
        "classes": lambda v: (
            sorted(v) == sorted(schema.classes) if "favourable" in given else v == schema.classes
        ),
        "favourable": lambda v: v == (schema.classes or ("1",))[-1],
        "missing": lambda v: all(
            column == "*" or policies.get(column) == ("indicator" if word == "level" else word)
            for column, word in v.items()
        ),
        "val": lambda v: v == schema.val,
        "test": lambda v: v == schema.test,
        "scale": lambda v: v == schema.scale,
        "max_levels": lambda v: v == schema.max_levels,
        "smallest_group": lambda v: v == schema.smallest_group,
        "levels": lambda v: all(schema.levels.get(column) == known for column, known in v.items()),
        "client_column": lambda v: v == client_column,
    }
    wrong = [name for name, value in given.items() if name in agrees and not agrees[name](value)]
    if wrong:
        first()
        recorded = {
            **schema.table(), "features": tuple(sorted(features)), "drop": (),
            "favourable": (schema.classes or ("1",))[-1], "client_column": client_column,
        }  # fmt: skip
        texts = [
            f"records {name.replace('_', ' ')} {_shown(recorded[name])}, asked for is "
            f"{_shown(given[name])}"
            for name in wrong
        ]
        raise ConfigError(
            f"'{path}' {'; '.join(texts)}: --relearn writes it anew, --schema FILE names another "
            "record"
        )


def _shown(value: Any) -> str:
    """A value of an option as a user writes it."""
    if isinstance(value, Mapping):
        value = [
            f"{k}={policy_word(v) if isinstance(v, str) else '/'.join(v)}" for k, v in value.items()
        ]
    if isinstance(value, tuple | list):
        value = ",".join(value)
    return f"'{value}'" if value not in (None, "") else "none"


def _plain(table: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _plain(value)
        if isinstance(value, dict)
        else (list(value) if isinstance(value, tuple) else value)
        for key, value in table.items()
    }
