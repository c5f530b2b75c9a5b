"""The commands of a deployment refuse what cannot work before a process starts."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evenfed.cli import app
from evenfed.runs.config import parse
from evenfed.runs.flower.local import MARK, Deployment
from evenfed.runs.flower.processes import Address, Tls, server_command, write_app
from evenfed.runs.flower.server import Order

FLOWER = ("run", "--engine", "flower", "--dataset", "synthetic", "--rounds", "1")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["flower", "node"], "needs --data FILE"),
        (["flower", "node", "--data", "none.csv"], "does not exist"),
        (["flower", "node", "--data", "none.csv", "--client", "1"], "needs --data FILE"),
        (["flower", "server"], "or --insecure"),
        (["flower", "server", "--insecure", "--ca", "x"], "or --insecure"),
        (["flower", "server", "--insecure", "--node-keys"], "needs TLS"),
        (["flower", "submit", "none.toml"], "does not exist"),
        (["flower", "register", "none.pub"], "does not exist"),
        ([*FLOWER, "--method", "centralized"], "choose another method"),
        ([*FLOWER, "--method", "hetpfl", "--set", "method.phf=server"], "method.phf = 'federated'"),
        ([*FLOWER, "--method", "hetpfl", "--set", "method.phf=tuned"], "method.phf = 'federated'"),
        ([*FLOWER, "--method", "fedavg", "--set", "geometry=true"], "set geometry = false"),
        ([*FLOWER, "--method", "nosuch"], "method 'nosuch' is unknown"),
        ([*FLOWER, "--set", "data.nosuch=1"], "nosuch"),
        ([*FLOWER, "--set", "engine.timeout=0"], "greater than 0"),
        (
            ["study", "--methods", "fedavg", "--datasets", "synthetic", "--engine", "flower"],
            "single runs",
        ),
    ],
)
def test_a_mistake_is_named_in_one_line(
    words: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, words)
    assert done.exit_code in (1, 2)
    assert complaint in done.stderr
    assert not list(tmp_path.glob("runs/.*")), "no process was started"


def test_a_bad_address_is_named() -> None:
    with pytest.raises(Exception, match="host:port"):
        Address.parse("example.org", None, False)
    with pytest.raises(Exception, match="exclude each other"):
        Address.parse("example.org:1", Path("x"), True)


def test_flower_may_install_nothing_at_run_time(tmp_path: Path) -> None:
    """It would pull builds of PyTorch for CUDA; neither the app nor the server lets it."""
    import tomllib

    folder = write_app(tmp_path / "app", Order({"rounds": 1}, "x"))
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["dependencies"] == []
    tls = Tls(tmp_path / "ca", tmp_path / "crt", tmp_path / "key")
    for given in (None, tls):
        command, environment = server_command("h", 1, tmp_path / "runs", given, node_keys=False)
        assert "--disable-runtime-dependency-installation" in command
        assert "--allow-runtime-dependency-installation" not in command
        assert environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"


def test_the_app_holds_no_code_but_two_names(tmp_path: Path) -> None:
    folder = write_app(tmp_path / "app")
    code = [line for path in folder.rglob("*.py") for line in path.read_text().splitlines() if line]
    assert [line for line in code if not line.startswith(('"', "__all__"))] == [
        "from evenfed.runs.flower.apps import client, server"
    ]


def test_an_app_is_written_for_somebody_elses_server(tmp_path: Path) -> None:
    import tomllib

    config = tmp_path / "first.toml"
    config.write_text('rounds = 2\ndata = "synthetic"\nmethod = "fedavg"\n')
    words = ["flower", "app", str(config), str(tmp_path / "app"), "--set", "method.local.lr=0.5"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.stderr
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    order = Order.read(project["tool"]["flwr"]["app"]["config"]["evenfed-order"])
    assert order.name == "first"
    assert order.config["rounds"] == 2
    assert parse(order.config).built_method().local.lr == 0.5  # type: ignore[attr-defined]
    again = CliRunner().invoke(app, words)
    assert again.exit_code != 0
    assert "is not empty" in again.stderr


def test_what_left_its_group_ends_with_its_deployment_and_nothing_else_does(
    tmp_path: Path,
) -> None:
    """Flower runs an app in a session of its own, out of reach of the group of its server."""
    mine, other = Deployment(tmp_path / "a"), Deployment(tmp_path / "b")
    left = [
        subprocess.Popen(
            ["sleep", "60"], env={**os.environ, MARK: f"{owner.mark}-server."},
            start_new_session=True,
        )
        for owner in (mine, other)
    ]  # fmt: skip
    try:
        mine.stop()
        assert left[0].wait(10) == -signal.SIGKILL
        assert left[1].poll() is None
        other.stop()
        assert left[1].wait(10) == -signal.SIGKILL
    finally:
        for process in left:
            process.kill()
            process.wait()
