"""The processes of a deployment: commands, certificates, starting, stopping."""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

import evenfed
from evenfed.core.errors import ConfigError, EvenfedError
from evenfed.runs.flower.server import Order

RUNS = "EVENFED_RUNS"


@dataclass(frozen=True)
class Address:
    """Where the SuperLink is, and how a client knows it for the right one.

    Parameters
    ----------
    certificate : Path, optional
        Certificate of the authority that signed the server's; None with `insecure`: no TLS.
    """

    host: str
    port: int
    certificate: Path | None = None
    insecure: bool = False

    @classmethod
    def parse(cls, text: str, certificate: Path | None, insecure: bool) -> Address:
        """Read `host:port`."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdecimal():
            raise ConfigError(f"--server takes host:port, not '{text}'")
        if insecure and certificate is not None:
            raise ConfigError("--insecure and --root-certificates exclude each other")
        return cls(host, int(port), certificate, insecure)

    @property
    def text(self) -> str:
        """`host:port`."""
        return f"{self.host}:{self.port}"

    def flags(self) -> list[str]:
        """Options of Flower's commands."""
        if self.insecure:
            return ["--insecure"]
        if self.certificate is None:
            return []
        return ["--root-certificates", str(self.certificate)]


@dataclass(frozen=True)
class Tls:
    """The server's certificate, its key, and the certificate of the authority that signed it."""

    authority: Path
    certificate: Path
    key: Path

    def flags(self) -> list[str]:
        """Options of Flower's command."""
        return [
            "--ssl-ca-certfile", str(self.authority), "--ssl-certfile", str(self.certificate),
            "--ssl-keyfile", str(self.key),
        ]  # fmt: skip


def environment(**more: str) -> dict[str, str]:
    """For Flower's processes: our scripts first, nothing sent home, nothing installed."""
    scripts = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", os.defpath)
    return os.environ | {
        "PATH": f"{scripts}{os.pathsep}{path}",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        **more,
    }


def script(name: str) -> str:
    """Path of one of Flower's commands, beside this Python."""
    found = Path(sys.executable).parent / name
    if not found.is_file():
        raise ConfigError(f"command '{name}' is not installed: pip install 'evenfed[flower]'")
    return str(found)


def server_command(
    host: str, port: int, runs: Path, tls: Tls | None, *, node_keys: bool
) -> tuple[list[str], dict[str, str]]:
    """Command and environment of the SuperLink, which also runs the server's app."""
    if node_keys and tls is None:
        raise ConfigError("--node-keys needs TLS: give the three certificate files")
    runs.mkdir(parents=True, exist_ok=True)
    command = [
        script("flower-superlink"), "--host", host, "--port", str(port),
        "--database", str(runs.resolve() / ".superlink.db"),
        "--disable-runtime-dependency-installation",
        *(["--insecure"] if tls is None else tls.flags()),
        *(["--enable-supernode-auth"] if node_keys else []),
    ]  # fmt: skip
    home = runs.resolve() / ".flwr"
    return command, environment(**{RUNS: str(runs.resolve()), "FLWR_HOME": str(home)})


def run_node(
    server: Address,
    config: dict[str, str | int],
    state: Path,
    *,
    key: Path | None,
    port: int,
    retry: float,
    poll: float,
) -> int:
    """A SuperNode and the executor of its messages, until one of them ends.

    Returns the exit code. The SuperNode never runs code that the server sends: it has no other
    executor than ours. One that ends within `retry` seconds is started again: after a crash, a
    server lets a node with a key in only once it has noticed that the old process is gone. The
    SuperNode looks for messages every `poll` seconds.
    """
    script("flower-supernode")
    state.mkdir(parents=True, exist_ok=True)
    secret = state / ".executor.secret"
    secret.touch(mode=0o600)
    secret.write_bytes(secrets.token_bytes(32))
    port = port or free_port()
    config = {**config, "evenfed-state": str(state.resolve())}
    words = " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())
    supernode = [
        sys.executable, "-m", "evenfed.runs.flower.supernode",
        "--superlink", server.text, *server.flags(),
        "--isolation", "process", "--superexec-auth-secret-file", str(secret),
        "--host", "127.0.0.1", "--port", str(port), "--node-config", words,
        *(["--auth-supernode-private-key", str(key)] if key else []),
    ]  # fmt: skip
    executor = [
        sys.executable, "-m", "evenfed.runs.flower.executor", "--address", f"127.0.0.1:{port}",
        "--secret", str(secret), "--parent", str(os.getpid()),
    ]  # fmt: skip
    env = environment(FLWR_HOME=str(state.resolve() / ".flwr"), EVENFED_POLL=str(poll))

    def start(command: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, env=env, preexec_fn=die_with_parent)

    begin = time.monotonic()
    children = [start(supernode), start(executor)]
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    try:
        while children[1].poll() is None:
            if children[0].poll() is not None:
                if not children[0].returncode or time.monotonic() - begin > retry:
                    return int(children[0].returncode)
                time.sleep(5.0)
                children[0] = start(supernode)
            time.sleep(0.5)
        return int(children[1].returncode)
    finally:
        stop(children)


def die_with_parent() -> None:
    """Ask Linux to end this process with its parent, however that one ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def stop(children: list[subprocess.Popen[Any]], patience: float = 10.0) -> None:
    """End processes: ask first, then insist."""
    for child in children:
        if child.poll() is None:
            child.terminate()
    end = time.monotonic() + patience
    for child in children:
        try:
            child.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


_MODULE = '''"""Names of the apps; their code is that of the installed package."""

from evenfed.runs.flower.apps import client, server

__all__ = ["client", "server"]
'''


def write_app(folder: Path, order: Order | None = None) -> Path:
    """Write the folder that Flower takes for an app: two names, a config, no dependencies.

    The dependencies are empty on purpose: Flower would install them at run time.
    """
    config = {"evenfed-order": order.text() if order is not None else ""}
    project = {
        "project": {
            "name": "evenfed-app", "version": evenfed.__version__, "dependencies": [],
            "license": "Apache-2.0", "description": "Evenfed on Flower",
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "evenfed",
                    "components": {
                        "serverapp": "evenfed_app.apps:server",
                        "clientapp": "evenfed_app.apps:client",
                    },
                    "config": config,
                }
            }
        },
    }  # fmt: skip
    package = folder / "evenfed_app"
    package.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(tomli_w.dumps(project), encoding="utf-8")
    (folder / "README.md").write_text("Evenfed on Flower.\n", encoding="utf-8")
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "apps.py").write_text(_MODULE, encoding="utf-8")
    return folder


@contextmanager
def flower_home(server: Address) -> Iterator[dict[str, str]]:
    """The environment of Flower's own commands, with the connection `evenfed` to the server."""
    connection: dict[str, Any] = {"address": server.text}
    if server.insecure:
        connection["insecure"] = True
    if server.certificate is not None:
        connection["root-certificates"] = str(server.certificate.resolve())
    with tempfile.TemporaryDirectory(prefix="evenfed-flwr-") as home:
        content = {"superlink": {"default": "evenfed", "evenfed": connection}}
        (Path(home) / "config.toml").write_text(tomli_w.dumps(content), encoding="utf-8")
        yield environment(FLWR_HOME=home)


def flwr(server: Address, *words: str) -> str:
    """Call Flower's command; its answer."""
    with flower_home(server) as env:
        done = subprocess.run(
            [script("flwr"), *words], env=env, capture_output=True, text=True, check=False
        )
    if done.returncode:
        said = " ".join((done.stderr + " " + done.stdout).split())
        raise EvenfedError(f"`flwr {words[0]}` failed: {said[-600:]}")
    return done.stdout


def submit(server: Address, order: Order) -> str:
    """Hand an order to the server; the number that Flower gives the run."""
    with tempfile.TemporaryDirectory(prefix="evenfed-app-") as folder:
        app = write_app(Path(folder) / "app", order)
        said = flwr(server, "run", str(app), "evenfed", "--format", "json")
    answer = json.loads(said[said.index("{") :])
    if not answer.get("run-id"):
        why = " ".join(str(answer.get("error-message", said)).split())
        raise EvenfedError(f"server {server.text} did not take the run: {why[-600:]}")
    return str(answer["run-id"])
