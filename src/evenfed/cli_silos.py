"""Options of the command line about own silo files, and the command that gives advice on data."""

from __future__ import annotations

import functools
import inspect
import json
import typing
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenfed.core.errors import ConfigError

if TYPE_CHECKING:
    from evenfed.data.silos import Silos

_PANEL = "Own silo files"


def _option(help: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=_PANEL, **more)


@dataclass
class Record:
    """A schema that is to be written once a command is sure to do its work."""

    silos: Silos | None = None
    path: Path = Path()
    quiet: bool = False

    def write(self) -> None:
        """Write the schema, the first time this is called."""
        if self.silos is None:
            return
        from evenfed.data.silo_record import write_record

        write_record(self.path, self.silos.schema, self.silos.client_column)
        self.silos = None
        if not self.quiet:
            typer.echo(f"schema written to {self.path}", err=True)

    def after_a_round(self, observer: Any) -> None:
        """Write when the observer is told of the first round: all else was accepted."""
        told = observer.round_done

        def round_done(line: dict[str, Any]) -> None:
            self.write()
            told(line)

        observer.round_done = round_done


@dataclass(frozen=True)
class SiloArguments:
    """What the command line says about silo files; None where it says nothing."""

    silos: Annotated[
        list[str] | None,
        _option(
            "CSV or Parquet files, one a client: a path or a pattern in quotes. Repeatable. With "
            "a CONFIG of silo files: other files of its schema."
        ),
    ] = None
    label: Annotated[str | None, _option("Column to predict.")] = None
    sensitive: Annotated[str | None, _option("Columns whose levels are the groups: sex,race.")] = (
        None
    )
    client_column: Annotated[
        str | None, _option("Column that names the client, where a file holds several.")
    ] = None
    features: Annotated[str | None, _option("Columns to use; default: all others.")] = None
    drop: Annotated[str | None, _option("Columns not to use.")] = None
    missing: Annotated[
        str | None,
        _option("Policies: age=mean,smoker=level; mean, mode, level, zeros; *=level for all."),
    ] = None
    kind: Annotated[
        str | None, _option("binary, multiclass or regression; default: inferred.")
    ] = None  # fmt: skip
    classes: Annotated[
        str | None, _option("Values of the label: no,yes; default: inferred.")
    ] = None  # fmt: skip
    favourable: Annotated[
        str | None, _option("The one of two classes that is good for a person: 0 of died.")
    ] = None  # fmt: skip
    numeric: Annotated[str | None, _option("Columns that are numbers, if not inferred.")] = None
    categorical: Annotated[str | None, _option("Columns that are levels, if not inferred.")] = None
    max_levels: Annotated[int | None, _option("Most levels of a column of words: 50.")] = None
    smallest_group: Annotated[int | None, _option("Fewest rows of a group: 10.")] = None
    schema: Annotated[
        Path | None, _option("Record of the schema; default: silos.toml beside the files.")
    ] = None  # fmt: skip
    relearn: Annotated[bool, _option("Write the record anew.", "--relearn")] = False

    def given(self) -> dict[str, Any]:
        """The options that were given."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if value not in (None, False, [])}

    def read(
        self, quiet: bool, configured: dict[str, Any] | None = None
    ) -> tuple[Silos | None, Record]:
        """Read and check the files, and show what was learnt of them; None without --silos.

        A new schema is in `Record`, to be written when nothing else is refused. One that is
        `configured` is kept, but for what options say, unless --schema or --relearn is given.
        """
        given = self.given()
        if not self.silos:
            if given:
                flag = next(iter(given)).replace("_", "-")
                raise ConfigError(f"--{flag} is about silo files: name them with --silos")
            return None, Record()
        from evenfed.data.silos import recorded_silos

        files = given.pop("silos")
        if configured is not None and not self.relearn and self.schema is None:
            return self._again(files, configured, given, quiet), Record()
        found, path, new = recorded_silos(files, write=False, **given)
        if not quiet:
            for line in found.lines():
                typer.echo(line, err=True)
            if not new:
                typer.echo(f"schema checked against {path}", err=True)
        return found, Record(found, path, quiet) if new else Record()

    def _again(
        self, files: list[str], configured: dict[str, Any], given: dict[str, Any], quiet: bool
    ) -> Silos:
        from evenfed.data.silo_again import silos_again

        found = silos_again(files, configured, **given)
        if not quiet:
            for line in found.lines():
                typer.echo(line, err=True)
            kept = f", but for {', '.join(given)}" if given else ""
            typer.echo(f"schema taken from the config{kept}", err=True)
        return found


def takes_silos(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `SiloArguments`; it takes them as `silos`."""
    hints = typing.get_type_hints(SiloArguments, include_extras=True)
    own, types = inspect.signature(command), typing.get_type_hints(command, include_extras=True)
    names = [f.name for f in fields(SiloArguments)]
    added = [
        inspect.Parameter(
            f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name]
        )
        for f in fields(SiloArguments)
    ]

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        said = SiloArguments(**{name: values.pop(name) for name in names})
        config = values.get("config")
        if said.silos and config is not None and config.suffix != ".toml":
            raise ConfigError(
                f"'{config}' is not a config; was the pattern of --silos without quotes? "
                "--silos 'hospital_*.csv', or --silos a.csv --silos b.csv"
            )
        command(**values, silos=said)

    kept = [
        p.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=types[p.name])
        for p in own.parameters.values()
        if p.name != "silos"
    ]
    wrapper.__signature__ = own.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
    before = {k: v for k, v in types.items() if k != "silos"}
    wrapper.__annotations__ = {**before, **{name: hints[name] for name in names}}
    return wrapper


def with_data(
    table: dict[str, Any], silos: SiloArguments, dataset: str | None, quiet: bool, key: str
) -> tuple[dict[str, Any], Record]:
    """The table of a run (`key` "data") or a study ("datasets"), with the silo files in it."""
    if silos.silos and dataset is not None:
        flag = "--dataset" if key == "data" else "--datasets"
        raise ConfigError(f"--silos and {flag} both name the data: give one")
    if not silos.silos:
        return table, silos.read(quiet)[1]
    from evenfed.data.silo import SILOS
    from evenfed.data.silo_again import schema_options

    entry: Any = table.get(key)
    if key == "datasets":
        entry = entry[0] if isinstance(entry, list) and len(entry) == 1 else None
    configured = schema_options(entry)
    found, record = silos.read(quiet, configured)
    assert found is not None
    # of a dataset of a study, what holds on it beside its schema stays
    others = {k: v for k, v in entry.items() if k not in configured} if configured else {}
    data = {**others, "name": SILOS, **found.options()}
    return {**table, key: data if key == "data" else [data]}, record


_NONE = SiloArguments()


@takes_silos
def advise(
    dataset: Annotated[str | None, typer.Option(help="Instead of files: a dataset.")] = None,
    clients: Annotated[int | None, typer.Option(min=1, help="Number of its clients.")] = None,
    partition: Annotated[str | None, typer.Option(help="How its examples are dealt.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of splits and quick runs.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on stdout, nothing else.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No messages.")] = False,
    silos: SiloArguments = _NONE,
) -> None:
    """Look at data and say which methods fit, which cannot, and why, with figures.

    Example: evenfed advise --silos 'hospital_*.csv' --label died --favourable 0 --sensitive sex

    Example: evenfed advise --dataset loans
    """
    found, record = silos.read(quiet)
    if (found is None) == (dataset is None):
        raise ConfigError("name the data: --silos FILES, or --dataset NAME")
    from evenfed.data.dataset import FederatedDataset
    from evenfed.data.registry import load
    from evenfed.runs.advice import advise as look

    data: FederatedDataset
    if found is not None:
        if clients is not None or partition is not None:
            raise ConfigError("silo files are the clients: leave --clients and --partition out")
        data = found.federated(seed)
    else:
        assert dataset is not None
        data = load(dataset, clients=clients, partition=partition, seed=seed)
    advice = look(data, seed=seed)
    record.write()
    named = _named(silos, dataset, clients, partition)
    if as_json:
        typer.echo(json.dumps(advice.table(named), indent=1))
    else:
        typer.echo(advice.text(named))


def _named(
    silos: SiloArguments, dataset: str | None, clients: int | None, partition: str | None
) -> list[str]:
    """Words that name the same data to another command; the record knows the columns by now."""
    given: list[tuple[str, object]] = [("--silos", pattern) for pattern in silos.silos or ()]
    given += [("--schema", silos.schema), ("--dataset", dataset), ("--clients", clients)]
    given.append(("--partition", partition))
    return [word for flag, value in given if value is not None for word in (flag, str(value))]
