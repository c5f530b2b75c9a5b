"""The command that rebuilds papers' tables."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenfed.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from evenfed.papers.checking import Difference
    from evenfed.papers.recipe import Paper, Protocol, Setting, Table
    from evenfed.papers.store import Results

PROTOCOL = "published or sound; see the paper's page. By default the paper's first."
REVIEWS = "focus, text: CSV or Parquet file with columns text and label (0 or 1)."
MISSING = (
    "Run only jobs that the paper's stored results lack, or have without the digest of their code "
    "or the name of their processor."
)
CHECK = (
    "Run the quick version and compare with the stored one, all protocols unless one is named; "
    "what moved is run again with other rounding."
)
ENCODER = (
    "focus, text: encoder of its second column, e.g. sentence-transformers:MODEL; by default that "
    "of an installed package, if there is one."
)


def command(
    name: Annotated[str | None, typer.Argument(help="A paper; without it, all are listed.")] = None,
    table: Annotated[str | None, typer.Option(help="One of its tables, e.g. table1.")] = None,
    protocol: Annotated[str | None, typer.Option(help=PROTOCOL)] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small version: two minutes.")] = False,
    seeds: Annotated[
        str | None, typer.Option(help="e.g. 0,1,2 instead of the table's own.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes, of one thread each.")] = 1,
    out: Annotated[
        Path, typer.Option(help="Folder of stored jobs and results; a broken table goes on there.")
    ] = Path("papers"),
    missing: Annotated[bool, typer.Option("--missing", help=MISSING)] = False,
    check: Annotated[bool, typer.Option("--check", help=CHECK)] = False,
    pages: Annotated[
        Path | None, typer.Option(help="Write the pages of all papers there, e.g. docs/papers.")
    ] = None,
    reviews: Annotated[Path | None, typer.Option(help=REVIEWS)] = None,
    encoder: Annotated[str | None, typer.Option(help=ENCODER)] = None,
) -> None:
    """Rebuild a paper's tables: the published figure, ours over seeds, and a verdict.

    Each finished run is stored at once below --out, and the same command goes on after a break.

    Example: evenfed paper hetpfl --table table1 --protocol sound --jobs 2
    """
    from evenfed.papers.index import write_pages
    from evenfed.papers.recipe import PROTOCOLS, paper
    from evenfed.papers.running import MissingDataError

    for variable, value in (("EVENFED_REVIEWS", reviews), ("EVENFED_ENCODER", encoder)):
        if value is not None:
            os.environ[variable] = str(value)  # processes of --jobs see it too
    if missing and check:
        raise ConfigError("--check runs all of the quick version: leave --missing out")
    if pages is not None:
        for path in write_pages(pages, out):
            typer.echo(path)
        return
    if name is None:
        _list()
        return
    wanted = paper(name)
    if protocol not in (None, *PROTOCOLS):
        raise ConfigError(f"--protocol is '{protocol}'; it may be {' or '.join(PROTOCOLS)}")
    protocols = list(wanted.protocols) if check else list(wanted.protocols)[:1]
    protocols = protocols if protocol is None else [protocol]
    tables = wanted.tables if table is None else (wanted.table(table),)
    chosen = [(t, which) for which in protocols for t in tables if which in t.seeds]
    if not chosen:
        has = {one for t in tables for one in t.seeds}
        raise ConfigError(
            f"{table or name} has no protocol '{protocols[0]}'; it has {' and '.join(sorted(has))}"
        )
    given = None if seeds is None else _integers(seeds)
    failed, without = 0, []
    for one, which in chosen:
        setting = one.setting(which, quick or check, given)
        try:
            failed += (
                _checked(wanted, one, setting, out, jobs)
                if check
                else _run(wanted, one, setting, out, jobs, missing)
            )
        except MissingDataError as error:
            if len(chosen) == 1:
                raise
            without.append(one.title)
            typer.echo(f"skipped: {error}", err=True)
    if len(without) == len(chosen):
        raise DataError(f"no table of '{name}' has its data: {', '.join(without)} were skipped")
    if failed:
        raise typer.Exit(1)


def _run(wanted: Paper, table: Table, setting: Setting, out: Path, jobs: int, missing: bool) -> int:
    from evenfed.papers import store
    from evenfed.papers.pages import table_text
    from evenfed.papers.running import rebuild

    minutes = table.minutes(setting)
    typer.echo(
        f"{wanted.title}, {table.title}, {setting.protocol}: about {minutes:.0f} minutes of one "
        f"thread, {minutes / jobs:.0f} with --jobs {jobs}", err=True,
    )  # fmt: skip
    results = rebuild(
        wanted, table, setting, folder=out, jobs=jobs, say=lambda text: typer.echo(text, err=True),
        known=store.stored(out, wanted.name) if missing else (),
    )  # fmt: skip
    typer.echo(f"{wanted.title}, {table.title}, {setting.protocol} protocol\n")
    typer.echo(table_text(table, results))
    typer.echo(f"\nstored in {store.result_path(wanted.name, table.key, setting, out)}")
    return 0


def _checked(wanted: Paper, table: Table, setting: Setting, out: Path, jobs: int) -> int:
    """Number of cells that moved further than rounding does; 1 if the recipe is another."""
    from evenfed.papers import store
    from evenfed.papers.checking import differences
    from evenfed.papers.running import rebuild

    stored = store.read(store.result_path(wanted.name, table.key, setting, out))
    what = f"{wanted.title}, {table.title}, {setting.protocol}, quick"
    if not store.is_current(table, stored):
        typer.echo(f"{what}: stored with an older recipe; store it again, with --quick")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        fresh = rebuild(wanted, table, stored.setting, folder=Path(folder), jobs=jobs)
    moved = differences(table, stored, fresh)
    beyond = _beyond(wanted, table, fresh, moved)
    for difference in moved:
        rounding = "" if difference in beyond else " (as other rounding moves it)"
        typer.echo(f"{difference}{rounding}")
    few = len(moved) - len(beyond)
    kept = f"as stored{f', but for the rounding of {few} numbers' if few else ''}"
    typer.echo(f"{what}: {f'{len(beyond)} numbers moved' if beyond else kept}")
    return len(beyond)


def _beyond(
    wanted: Paper, table: Table, fresh: Results, moved: list[Difference]
) -> list[Difference]:
    """What rounding does not explain of what moved: its jobs are run again, rounded otherwise."""
    from evenfed.papers.checking import FEW, ROUNDINGS, beyond_rounding, cells
    from evenfed.papers.running import otherwise

    gone = {difference.cell for difference in moved}
    keys = [run.job for run in fresh.runs if gone & cells([run]).keys()]
    if not keys or len(keys) > FEW:
        return moved
    again = [otherwise(wanted, table, fresh.setting, keys, of) for of in ROUNDINGS]
    return beyond_rounding(moved, again)


def _list() -> None:
    from evenfed.papers.recipe import names, paper

    for name in names():
        wanted = paper(name)
        typer.echo(f"{name}: {wanted.title}")
        for table in wanted.tables:
            for protocol in table.seeds:
                full, quick = (_minutes(table, protocol, q) for q in (False, True))
                typer.echo(
                    f"  --table {table.key:<8} --protocol {protocol:<9} {table.title}; minutes of "
                    f"one thread: {full:.0f}, --quick {quick:.1f}"
                )


def _minutes(table: Table, protocol: Protocol, quick: bool) -> float:
    return table.minutes(table.setting(protocol, quick))


def _integers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--seeds takes whole numbers with commas, not '{text}'") from error
