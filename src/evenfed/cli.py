"""The command line: parses, calls, prints.

What is heavy is imported inside the commands, so that `evenfed --help` answers at once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenfed import __version__, cli_flower, cli_model, cli_papers, cli_show, cli_silos
from evenfed.cli_group import Group
from evenfed.cli_show import observed
from evenfed.core.errors import ConfigError

if TYPE_CHECKING:
    from evenfed.runs.comparison import Study
    from evenfed.runs.flower.local import LocalResult
    from evenfed.runs.result import Result


app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(cli_flower.app, name="flower")
app.command()(cli_silos.advise)
cli_model.register(app)
app.command("demo")(cli_show.demo)
app.command("watch")(cli_show.watch)
app.command("paper")(cli_papers.command)

ConfigFile = Annotated[
    Path | None, typer.Argument(metavar="[CONFIG.toml]", help="Settings; options win over them.")
]
Clients = Annotated[int | None, typer.Option(min=1, help="Number of clients.")]
Partition = Annotated[
    str | None, typer.Option(help="How examples are dealt, e.g. iid, dirichlet:sensitive:0.5.")
]
Rounds = Annotated[int | None, typer.Option(min=1, help="Rounds of training.")]
Engine = Annotated[str | None, typer.Option(help="auto, vectorized, sequential or flower.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda.")]
Model = Annotated[str | None, typer.Option(help="Built-in model; auto fits the data.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Repeatable.")]
Out = Annotated[Path | None, typer.Option(help="Folder; by default a new one below runs/.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no messages.")]
_NO_SILOS = cli_silos.SiloArguments()
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run or a study.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"evenfed {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Version.")
    ] = False,
) -> None:
    """Fair federated learning: to every silo, to every group.

    Example: evenfed demo
    """


@app.command()
@cli_silos.takes_silos
def run(
    config: ConfigFile = None,
    method: Annotated[str | None, typer.Option(help="`evenfed methods` lists them.")] = None,
    dataset: Annotated[str | None, typer.Option(help="`evenfed datasets` lists them.")] = None,
    clients: Clients = None,
    partition: Partition = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of data and training.")] = None,
    engine: Engine = None,
    device: Device = None,
    model: Model = None,
    reference: Annotated[
        bool | None,
        typer.Option(
            "--reference/--no-reference",
            help="Train Local afterwards, for comparison; default: as many clients as cost little.",
        ),
    ] = None,
    settings: Set = None,
    out: Out = None,
    as_json: Json = False,
    quiet: Quiet = False,
    silos: cli_silos.SiloArguments = _NO_SILOS,
) -> None:
    """Train one method on one dataset with one seed.

    --set takes options of the method (mu=0.1, lr=0.05, local.epochs=2), and data.x, model.x,
    participation.x, engine.x and keys of the file by name.

    Example: evenfed run --method fedprox --dataset loans --rounds 20 --set mu=0.1

    Example: evenfed run --silos 'hospital_*.csv' --label died --favourable 0 --sensitive sex
    """
    from evenfed.runs.config import parse, read, with_settings
    from evenfed.runs.train import run_config

    table = {} if config is None else read(config)
    table, record = cli_silos.with_data(table, silos, dataset, quiet, "data")
    given = {
        "method.name": method, "data.name": dataset, "data.clients": clients,
        "data.partition": partition, "rounds": rounds, "seed": seed, "engine.engine": engine,
        "engine.device": device, "model.name": model, "local_reference": reference,
    }  # fmt: skip
    flags = [f"{key}={json.dumps(value)}" for key, value in given.items() if value is not None]
    table = with_settings(table, [*flags, *(settings or [])])
    parsed = parse(table, str(config) if config else "settings", deep=True)
    if not quiet:
        _say_defaults(table, parsed.data.name, parsed.method.name)
    path = out or Path("runs", f"{parsed.data.name}-{parsed.method.name}-{parsed.seed}")
    with observed(parsed.rounds, 1, quiet, out) as observer:
        record.after_a_round(observer)
        carry_out = cli_flower.run_here if parsed.built_engine().engine == "flower" else run_config
        result: Result | LocalResult = carry_out(parsed, path, observer, counted=out is None)
    assert result.folder is not None
    _print_run(result.folder, as_json, quiet)


@app.command()
@cli_silos.takes_silos
def study(
    config: ConfigFile = None,
    methods: Annotated[
        str | None, typer.Option(help="e.g. fedavg,qffl:q=2 - options after a colon; or all.")
    ] = None,
    datasets: Annotated[str | None, typer.Option(help="e.g. loans,digits:clients=10.")] = None,
    seeds: Annotated[str | None, typer.Option(help="e.g. 0,1,2.")] = None,
    clients: Clients = None,
    partition: Partition = None,
    rounds: Rounds = None,
    engine: Engine = None,
    device: Device = None,
    model: Model = None,
    tune: Annotated[
        str | None, typer.Option(help="val: choose every method's options on validation data.")
    ] = None,
    budget: Annotated[
        int | None, typer.Option(min=1, help="Trials of the tuning a method; 6 by default.")
    ] = None,
    references: Annotated[
        bool, typer.Option(help="Rows of Local and Centralized for comparison.")
    ] = True,
    settings: Set = None,
    out: Out = None,
    format: Annotated[str, typer.Option(help="console, csv, markdown or latex.")] = "console",
    as_json: Json = False,
    quiet: Quiet = False,
    silos: cli_silos.SiloArguments = _NO_SILOS,
) -> None:
    """Compare methods on datasets over seeds. With the --out of a broken study, go on with it.

    --set takes options of all methods (lr=0.05), of one method (qffl.q=2), of one dataset
    (digits.clients=10, digits.rounds=60, digits.method.lr=0.5), and data.x, model.x,
    participation.x, engine.x and keys of the file by name. A run that fails is a row that says
    why, and the exit code is 1; a method that does not apply to the data is a row that says so.

    Example: evenfed study --methods fedavg,qffl:q=2,local --datasets loans --seeds 0,1,2
    """
    from evenfed.runs.config import read
    from evenfed.runs.plan import parse_study, with_study_settings
    from evenfed.runs.study import run_study

    _check_format(format)
    table = {} if config is None else read(config)
    if methods is not None:
        table["methods"] = methods
    table, record = cli_silos.with_data(table, silos, datasets, quiet, "datasets")
    if datasets is not None:
        table["datasets"] = datasets
    if not references:
        table["references"] = []
    if tune is not None or budget is not None:
        before = table.get("tune") or {}
        table["tune"] = {"on": before} if isinstance(before, str) else dict(before)
        table["tune"] |= {k: v for k, v in (("on", tune), ("budget", budget)) if v is not None}
    given = {
        "data.clients": clients, "data.partition": partition, "rounds": rounds,
        "engine.engine": engine, "engine.device": device, "model.name": model,
        "seeds": None if seeds is None else _integers(seeds),
    }  # fmt: skip
    flags = [f"{key}={json.dumps(value)}" for key, value in given.items() if value is not None]
    parsed = parse_study(
        with_study_settings(table, [*flags, *(settings or [])]), str(config) if config else "study"
    )
    path = out or Path("runs", "study-" + "-".join(dict.fromkeys(d.name for d in parsed.datasets)))
    plans = parsed.planned()
    with observed(max(p.config.rounds for p in plans), len(plans), quiet, out) as observer:
        record.after_a_round(observer)
        result = run_study(parsed, path, observer, counted=out is None)
    _print_study(result, format, as_json, quiet)


@app.command()
def resume(folder: Folder, as_json: Json = False, quiet: Quiet = False) -> None:
    """Go on with an interrupted run or study, to the bits of an unbroken one.

    Example: evenfed resume runs/loans-fedavg-0
    """
    from evenfed.runs.config import parse, read
    from evenfed.runs.folder import CONFIG, RunFolder
    from evenfed.runs.study import STUDY, resume_study, study_config
    from evenfed.runs.train import resume as resume_run

    if (folder / STUDY).is_file():
        plans = study_config(folder).planned()
        with observed(max(p.config.rounds for p in plans), len(plans), quiet, folder) as observer:
            result = resume_study(folder, observer)
        _print_study(result, "console", as_json, quiet)
        return
    RunFolder.open(folder)
    config = parse(read(folder / CONFIG), str(folder / CONFIG))
    if not RunFolder(folder).finished:
        with observed(config.rounds, 1, quiet, folder) as observer:
            if config.built_engine().engine == "flower":
                cli_flower.run_here(config, folder, observer, resumed=True)
            else:
                resume_run(folder, observer)
    _print_run(folder, as_json, quiet)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="All of one method.")] = None,
    as_json: Json = False,
) -> None:
    """List the methods, or show one: paper, hyperparameters, exchanges, what is revealed.

    Example: evenfed methods scaffold
    """
    from evenfed.runs.catalogue import method_card, method_cards

    if name is not None:
        _print(method_card(name), as_json, _card)
        return
    _print(
        {"methods": method_cards()}, as_json,
        lambda found: _listed(found["methods"], "{paper}; exchanges a round: {exchanges}"),
    )  # fmt: skip


@app.command()
def datasets(
    name: Annotated[str | None, typer.Argument(help="All of one dataset.")] = None,
    as_json: Json = False,
) -> None:
    """List the datasets, or show one: clients, sensitive columns, files, notes, options.

    Example: evenfed datasets loans
    """
    from evenfed.runs.catalogue import dataset_card, dataset_cards

    if name is not None:
        _print(dataset_card(name), as_json, _card)
        return
    _print(
        {"datasets": dataset_cards()}, as_json, lambda found: _listed(found["datasets"], "{files}")
    )


@app.command()
def report(
    folder: Folder,
    figures: Annotated[
        list[str] | None, typer.Option(help="Figures as files too: svg, pdf or png. Repeatable.")
    ] = None,
    tables: Annotated[
        list[str] | None,
        typer.Option(help="Tables as files too: latex, markdown or csv. Repeatable."),
    ] = None,
) -> None:
    """(Re)build the report of a run or a study, and print the paths of its files.

    Example: evenfed report runs/loans-fedavg-0 --figures pdf --tables latex
    """
    from evenfed.report.files import write_files

    for path in write_files(folder, figures or [], tables or []):
        typer.echo(path)


def _say_defaults(table: dict[str, Any], data: str, method: str) -> None:
    """Say which data and method are taken where none are named, and how to name them."""

    def named(section: str) -> bool:
        found = table.get(section, {})
        return isinstance(found, str) or "name" in found

    choices = {"data": "--silos FILES or --dataset NAME", "method": "--method NAME"}
    left = [section for section in choices if not named(section)]
    said = {
        "data": f"no data are named: training on '{data}'",
        "method": f"no method is named: training '{method}'",
        "data method": f"neither data nor method is named: training '{method}' on '{data}'",
    }
    if left:
        how = ", and ".join(choices[section] for section in left)
        typer.echo(f"{said[' '.join(left)]}; choose with {how}", err=True)


def _check_format(format: str) -> None:
    if format not in ("console", "csv", "markdown", "latex"):
        raise ConfigError(f"--format is '{format}'; it may be console, csv, markdown or latex")


def _integers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--seeds takes whole numbers with commas, not '{text}'") from error


def _json(value: Any) -> None:
    typer.echo(json.dumps(value, allow_nan=False, indent=1))


def _print(value: Any, as_json: bool, show: Callable[[Any], None]) -> None:
    _json(value) if as_json else show(value)


def _print_run(folder: Path, as_json: bool, quiet: bool) -> None:
    """Print what the folder of a finished run holds; nothing is measured again."""
    from evenfed.report.page import write_page
    from evenfed.runs.folder import RunFolder
    from evenfed.runs.run_text import run_text

    measured = RunFolder(folder).result()
    page = write_page(folder)
    if as_json:
        _json({**measured, "folder": str(folder)})
        return
    typer.echo(run_text(measured))
    if not quiet:
        typer.echo(f"\nfolder {folder}\npage   {page}")


def _print_study(result: Study, format: str, as_json: bool, quiet: bool) -> None:
    from rich.console import Console

    from evenfed.report.page import write_page

    assert result.folder is not None
    page = write_page(result.folder)
    texts = {"csv": result.to_csv, "markdown": result.to_markdown, "latex": result.to_latex}
    if as_json:
        _json(result.measured())
    elif format in texts:
        typer.echo(texts[format](), nl=False)
    else:
        result.console(to=Console(highlight=False, width=None if sys.stdout.isatty() else 180))
        if not quiet:
            typer.echo(f"\nfolder {result.folder}\npage   {page}")
    if result.failed:
        typer.echo(f"{len(result.failed)} of {len(result.runs)} runs have no result", err=True)
        raise typer.Exit(1)


def _listed(cards: list[dict[str, Any]], beside: str) -> None:
    width = max(len(card["name"]) for card in cards)
    for card in cards:
        typer.echo(f"{card['name']:<{width}}  {card['title']}  ({beside.format(**card)})")


def _card(card: dict[str, Any]) -> None:
    for key, value in card.items():
        if isinstance(value, dict):
            typer.echo(f"{key}:")
            for name, inner in value.items():
                typer.echo(f"  {name} = {json.dumps(inner)}")
        elif isinstance(value, list):
            typer.echo(f"{key}:{'' if value else ' none'}")
            for inner in value:
                typer.echo(f"  - {inner if isinstance(inner, str) else _revealed(inner)}")
        else:
            typer.echo(f"{key}: {value}")


def _revealed(reveal: dict[str, Any]) -> str:
    hidden = "a sum over clients suffices" if reveal["summed"] else "of each client"
    return f"{reveal['meaning']} ({reveal['size']}, {hidden})"


def main() -> None:
    """Entry point of `evenfed`."""
    app(prog_name="evenfed")
