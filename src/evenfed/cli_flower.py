"""The commands of a deployment on Flower: server, node, submit, register."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenfed.cli_group import Group
from evenfed.core.errors import ConfigError

if TYPE_CHECKING:
    from evenfed.runs.config import RunConfig
    from evenfed.runs.flower.local import LocalResult
    from evenfed.runs.runner import Observer

app = typer.Typer(cls=Group, no_args_is_help=True)

Server = Annotated[str, typer.Option("--server", help="Address of the server, host:port.")]
Roots = Annotated[
    Path | None,
    typer.Option("--root-certificates", help="Certificate of the authority of the server's."),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Without TLS: for trying out on one machine.")
]
_DEFAULT = "127.0.0.1:8000"


def run_here(config: RunConfig, path: Path, observer: Observer, **more: bool) -> LocalResult:
    """A run on processes of this machine, which are gone when it ends."""
    _check_installed()
    from evenfed.runs.flower.local import run_local

    return run_local(config, path, observer, **more)


@app.callback()
def _check_installed() -> None:
    """Run methods on real machines with Flower; see docs/deploy.

    Example: evenfed flower node --data silo.csv --server example.org:8000
    """
    if importlib.util.find_spec("flwr") is None:
        raise ConfigError("engine 'flower' needs Flower: pip install 'evenfed[flower]'")


@app.command()
def server(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    runs: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs"),
    authority: Annotated[
        Path | None, typer.Option("--ca", help="Certificate of the authority.")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", help="The server's certificate.")
    ] = None,
    key: Annotated[Path | None, typer.Option("--key", help="The certificate's key.")] = None,
    node_keys: Annotated[
        bool, typer.Option("--node-keys", help="Accept only nodes whose key is registered.")
    ] = False,
    insecure: Insecure = False,
) -> None:
    """Start the server: Flower's SuperLink, which also runs the server's side of methods.

    Example: evenfed flower server --ca ca.crt --certificate server.crt --key server.key
    """
    from evenfed.runs.flower.processes import Tls, server_command

    files = [authority, certificate, key]
    if insecure == (None not in files) or (insecure and any(files)):
        raise ConfigError("give --ca, --certificate and --key, or --insecure without TLS")
    tls = None
    if authority and certificate and key:
        for file in (authority, certificate, key):
            if not file.is_file():
                raise ConfigError(f"file '{file}' does not exist")
        tls = Tls(authority, certificate, key)
    command, environment = server_command(host, port, runs, tls, node_keys=node_keys)
    os.execve(command[0], command, environment)


@app.command()
def node(
    server: Server = _DEFAULT,
    data: Annotated[Path | None, typer.Option(help="Silo file: CSV or Parquet.")] = None,
    name: Annotated[str, typer.Option(help="Name of the client; default: the file's.")] = "",
    client_column: Annotated[
        str, typer.Option(help="Column that is --name in this client's rows, if others have some.")
    ] = "",
    client: Annotated[
        int, typer.Option(help="Instead of --data: number of a client of the run's dataset.")
    ] = -1,
    state: Annotated[
        Path, typer.Option(help="Folder of what this client keeps between rounds.")
    ] = Path("evenfed-node"),
    key: Annotated[
        Path | None, typer.Option("--key", help="Private key of the node (NIST curve, OpenSSH).")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    port: Annotated[int, typer.Option(help="Local port of the SuperNode; 0 chooses.")] = 0,
    retry: Annotated[
        float, typer.Option(min=0, help="Seconds in which a refused connection is tried again.")
    ] = 120.0,
    poll: Annotated[
        float, typer.Option(min=0.05, max=3.0, help="Seconds between two looks for messages.")
    ] = 1.0,
    root_certificates: Roots = None,
    insecure: Insecure = False,
) -> None:
    """Start a node: Flower's SuperNode, answering with this installation's own code.

    Example: evenfed flower node --server example.org:8000 --root-certificates ca.crt --data my.csv
    """
    from evenfed.runs.flower.processes import Address, run_node

    if (data is None) == (client < 0):
        raise ConfigError("a node needs --data FILE (or --client NUMBER, for trying out)")
    if data is not None and not data.is_file():
        raise ConfigError(f"file '{data}' does not exist")
    if client_column and not (data and name):
        raise ConfigError("--client-column needs --data and --name, the client of this node")
    config: dict[str, str | int] = {"evenfed-device": device}
    if data is not None:
        config |= {"evenfed-data": str(data.resolve()), "evenfed-name": name or data.stem}
        config |= {"evenfed-column": client_column} if client_column else {}
    else:
        config |= {"evenfed-client": client}
    address = Address.parse(server, root_certificates, insecure)
    raise typer.Exit(run_node(address, config, state, key=key, port=port, retry=retry, poll=poll))


@app.command()
def submit(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml")],
    server: Server = _DEFAULT,
    name: Annotated[
        str | None, typer.Option(help="Folder of the run on the server; default: the config's.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run of that name.")
    ] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Repeatable.")
    ] = None,
    root_certificates: Roots = None,
    insecure: Insecure = False,
) -> None:
    """Hand a run to the server, which waits for the nodes and carries it out.

    Example: evenfed flower submit run.toml --server example.org:8000 --root-certificates ca.crt
    """
    from evenfed.runs.config import parse, read, with_settings
    from evenfed.runs.flower.processes import Address
    from evenfed.runs.flower.processes import submit as hand_over
    from evenfed.runs.flower.server import Order, check

    parsed = parse(with_settings(read(config), settings or []), str(config))
    check(parsed)
    order = Order(parsed.model_dump(exclude_none=True), name or config.stem, resume)
    number = hand_over(Address.parse(server, root_certificates, insecure), order)
    typer.echo(f"run {number} submitted; its folder on the server is {order.name}")


@app.command("app")
def write(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to write.")],
    name: Annotated[
        str | None, typer.Option(help="Folder of the run on the server; default: the config's.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Repeatable.")
    ] = None,
) -> None:
    """Write a run as an app of Flower, for `flwr run` on a SuperLink that somebody else runs.

    Example: evenfed flower app run.toml app && flwr run app CONNECTION
    """
    from evenfed.runs.config import parse, read, with_settings
    from evenfed.runs.flower.processes import write_app
    from evenfed.runs.flower.server import Order, check

    parsed = parse(with_settings(read(config), settings or []), str(config))
    check(parsed)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"folder '{folder}' is not empty; choose another")
    order = Order(parsed.model_dump(exclude_none=True), name or config.stem)
    typer.echo(f"app {write_app(folder, order)}")


@app.command()
def register(
    key: Annotated[Path, typer.Argument(metavar="NODE.pub", help="Public key of a node.")],
    server: Server = _DEFAULT,
    root_certificates: Roots = None,
    insecure: Insecure = False,
) -> None:
    """Let a node in whose public key this is; for a server started with --node-keys.

    Example: evenfed flower register hospital-a.pub --root-certificates ca.crt
    """
    from evenfed.runs.flower.processes import Address, flwr

    if not key.is_file():
        raise ConfigError(f"file '{key}' does not exist")
    address = Address.parse(server, root_certificates, insecure)
    typer.echo(flwr(address, "supernode", "register", str(key.resolve()), "evenfed").strip())
