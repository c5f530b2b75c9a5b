"""A deployment on this machine that starts, runs one run and stops: for trying out."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evenfed.core.errors import EvenfedError
from evenfed.data.dataset import FederatedDataset
from evenfed.data.silos import SiloDataset
from evenfed.runs.config import RunConfig
from evenfed.runs.flower.processes import (
    Address,
    die_with_parent,
    environment,
    free_port,
    stop,
    submit,
)
from evenfed.runs.flower.server import Order, check
from evenfed.runs.folder import RunFolder, made
from evenfed.runs.runner import Observer, Silent, build_task
from evenfed.runs.train import load_data

MARK = "EVENFED_DEPLOYMENT_MARK"
_LOOK = 0.5
_NEAR = ("--poll", "0.3")
"""Nodes of one machine cost each other nothing by looking often."""


@dataclass
class Deployment:
    """A SuperLink and its nodes as processes of this machine, with their logs in `folder`."""

    folder: Path
    address: Address = field(default_factory=lambda: Address("127.0.0.1", 0, insecure=True))
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    """In the environment of all processes, by which those that outlive their parents are found."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.address.port:
            self.address = Address("127.0.0.1", free_port(), insecure=True)

    def start(self, name: str, *words: str, **env: str) -> None:
        """Start `evenfed flower WORDS` as a process group of its own."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "evenfed", "flower", *words],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env=environment(**{MARK: f"{self.mark}-{name}."}, **env),
                start_new_session=True, preexec_fn=die_with_parent,
            )  # fmt: skip

    def start_server(self, runs: Path, *more: str) -> None:
        """The SuperLink."""
        plain = ("--insecure",) if self.address.insecure else ()
        words = ("--port", str(self.address.port), "--runs", str(runs), *plain, *more)
        self.start("server", "server", *words)

    def start_node(self, name: str, *more: str) -> None:
        """A node; its state is kept in the deployment's folder."""
        words = ("--server", self.address.text, "--state", str(self.folder / name), *_NEAR, *more)
        self.start(name, "node", *self.address.flags(), *words)

    def log(self, name: str, letters: int = 1500) -> str:
        """The end of a process's log."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace")[-letters:] if path.is_file() else ""

    def check(self) -> None:
        """Raise if a process has ended by itself."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise EvenfedError(
                    f"process '{name}' ended with code {process.returncode}; its log ends: "
                    f"{self.log(name)}"
                )

    def kill(self, name: str) -> None:
        """End a process and all it started, at once."""
        process = self.processes.pop(name)
        try:
            _signal(process, signal.SIGKILL)
        finally:
            process.wait()
            _kill_marked(f"{self.mark}-{name}.")

    def stop(self) -> None:
        """End everything, nodes first."""
        for name in sorted(self.processes, key=lambda name: name == "server"):
            process = self.processes[name]
            if process.poll() is None:
                _signal(process, signal.SIGTERM)
        stop(list(self.processes.values()), 15.0)
        for process in self.processes.values():
            _signal(process, signal.SIGKILL)
        _kill_marked(f"{self.mark}-")
        self.processes.clear()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """Signal the group that a process leads, also what is left of it."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def _kill_marked(mark: str) -> None:
    """End what has left its group: a SuperLink's app runs in a session of its own (Linux)."""
    for place in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has just ended, or is somebody else's
            if f"{MARK}={mark}".encode() in place.read_bytes():
                os.kill(int(place.parent.name), signal.SIGKILL)


@dataclass(frozen=True)
class LocalResult:
    """What a run on a local deployment leaves: its folder."""

    folder: Path

    def measured(self) -> dict[str, Any]:
        """The content of `result.json`."""
        return RunFolder(self.folder).result()


def run_local(
    config: RunConfig,
    out: Path,
    observer: Observer | None = None,
    *,
    counted: bool = False,
    resumed: bool = False,
) -> LocalResult:
    """Run on processes of this machine, one node a client; they are gone when it returns.

    Everything is refused here that can be, before a process starts.
    """
    observer = observer or Silent()
    method = check(config)
    data = load_data(config.data, config.seed)
    if isinstance(data, SiloDataset):
        config = config.model_copy(update={"engine": {**config.engine, "nodes": len(data)}})
    task = build_task(data, config.model.name, seed=config.seed, options=config.model.options)
    method.bound(task, task.init())
    if counted:
        out = made(out, counted=True)
        out.rmdir()
    out = out.resolve()
    root = out.parent
    deployment = Deployment(root / f".{out.name}.flower")
    try:
        deployment.start_server(root)
        for index in range(len(data)):
            deployment.start_node(f"node-{index}", *_words(data, index))
        wait_for_server(deployment)
        observer.say(f"engine: flower (a SuperLink and {len(data)} nodes on this machine)")
        written = config.anchored(out).model_dump(exclude_none=True)
        submit(deployment.address, Order(written, out.name, resumed))
        _follow(deployment, out, observer, resumed)
    finally:
        deployment.stop()
    shutil.rmtree(deployment.folder, ignore_errors=True)
    for left in (".superlink.db", ".superlink.db-shm", ".superlink.db-wal"):
        (root / left).unlink(missing_ok=True)
    shutil.rmtree(root / ".flwr", ignore_errors=True)
    return LocalResult(out)


def _words(data: FederatedDataset, index: int) -> list[str]:
    """Which data a node has: its file, or the number of a client of a dataset by name."""
    if not isinstance(data, SiloDataset):
        return ["--client", str(index)]
    part = data.parts[data.client(index).name]
    column = ["--client-column", data.options["client_column"]] if part.shared else []
    return ["--data", str(part.path.resolve()), "--name", part.client, *column]


def wait_for_server(deployment: Deployment, seconds: float = 180.0) -> None:
    """Wait until the SuperLink listens."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        deployment.check()
        with socket.socket() as probe:
            probe.settimeout(1.0)
            if probe.connect_ex((deployment.address.host, deployment.address.port)) == 0:
                return
        time.sleep(_LOOK)
    raise EvenfedError(f"the SuperLink did not start: {deployment.log('server')}")


def _follow(deployment: Deployment, out: Path, observer: Observer, resumed: bool) -> None:
    """Show rounds as they end, until the result is there or the server says why not."""
    folder, error = RunFolder(out), out.parent / f".{out.name}.error"
    seen = len(folder.history()) if resumed else 0
    shown: dict[str, Any] = {}
    while True:
        finished = folder.finished
        lines = folder.history()
        # the evaluation of a round comes with the next one
        if 0 < seen <= len(lines) and lines[seen - 1] != shown:
            shown = lines[seen - 1]
            observer.round_done(shown)
        for line in lines[seen:]:
            observer.round_done(line)
            shown = line
        seen = max(seen, len(lines))
        if finished:
            return
        deployment.check()
        if error.is_file():
            text = error.read_text(encoding="utf-8")
            error.unlink()
            raise EvenfedError(text)
        time.sleep(_LOOK)
