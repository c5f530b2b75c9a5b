"""The commands that show something at work: the demo, and a live page of a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from evenfed.runs.comparison import Study

_PAGE_WIDTH = 100
"""Of the demo's text where the output is no terminal."""


@contextmanager
def observed(rounds: int, runs: int, quiet: bool, folder: Path | None) -> Iterator[Any]:
    """Progress on stderr; an interruption says how to go on."""
    from evenfed.runs.progress import ProgressObserver

    try:
        with ProgressObserver(rounds, runs, quiet=quiet) as observer:
            yield observer
    except KeyboardInterrupt as error:
        where = folder or "DIR` with the newest folder below `runs"
        typer.echo(f"interrupted; go on with `evenfed resume {where}`", err=True)
        raise typer.Exit(130) from error


def demo(
    out: Annotated[
        Path | None, typer.Option(help="Folder; by default a new one below runs/.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on stdout, nothing else.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress and no messages.")
    ] = False,
) -> None:
    """Five fair methods beside FedAvg on data that need no download; about a minute.

    FedEBA+, SER and FOCUS on rotated digits, PFFL on mortgage decisions, HetPFL on synthetic data:
    three tables over three seeds, what they mean in three sentences, and a report.

    Example: evenfed demo --out runs/demo
    """
    from evenfed.report.page import write_page
    from evenfed.runs.demo import demo_config, findings, run_demo

    plans = demo_config().planned()
    with observed(max(p.config.rounds for p in plans), len(plans), quiet, out) as observer:
        result = run_demo(out or Path("runs", "demo"), observer, counted=out is None)
    assert result.folder is not None
    page = write_page(result.folder)
    if as_json:
        found = {**result.measured(), "findings": findings(result)}
        typer.echo(json.dumps(found, allow_nan=False, indent=1))
    else:
        _print_demo(result)
        if not quiet:
            typer.echo(f"\nreport {page}")
    if result.failed:
        typer.echo(f"{len(result.failed)} of {len(result.runs)} runs have no result", err=True)
        raise typer.Exit(1)


def _print_demo(study: Study) -> None:
    """Tables, legend and sentences, within the terminal's width."""
    from rich.console import Console

    from evenfed.runs.demo import ABOUT, findings, tables
    from evenfed.runs.rendering import console_tables

    width = None if sys.stdout.isatty() else _PAGE_WIDTH
    console = Console(highlight=False, width=width)
    for part in tables(study):
        _print(console, f"\n{part.dataset}: {ABOUT[part.dataset]}")
        for table in console_tables(part, console.width):
            table.title = None
            console.print(table)
        for note in part.notes:
            _print(console, f"  {note}")
    _print(console, study.legend())
    for sentence in findings(study):
        _print(console, f"\n{sentence}")


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False)


def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run or a study.")],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on this machine; 0 takes a free one.")
    ] = 8765,
) -> None:
    """Follow a run or a study in the browser while it trains; on this machine alone.

    Reads the folder and changes nothing in it. Ctrl-C ends the page, not the run.

    Example: evenfed watch runs/loans-fedavg-0
    """
    from evenfed.report.watch import watch as serve

    serve(folder, port, typer.echo)
