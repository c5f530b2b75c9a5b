"""Seconds a round on a local Flower deployment, and bytes a round by method.

python -m benchmarks.flower seconds [NODES ...]   default: 2 5 10; a small and a 10-million model
python -m benchmarks.flower bytes                 every method, in this process
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

from evenfed.core.errors import EvenfedError
from evenfed.methods.registry import methods
from evenfed.runs.config import parse
from evenfed.runs.flower.apps import reply_to
from evenfed.runs.flower.local import Deployment, wait_for_server
from evenfed.runs.flower.node import NamedData, Node
from evenfed.runs.flower.processes import submit
from evenfed.runs.flower.server import Order, _Run
from evenfed.runs.folder import RunFolder
from evenfed.runs.runner import Silent

ROUNDS = 6
LIMIT = 480.0
"""Seconds after which a run is given up."""
MODELS: dict[str, Any] = {
    "small (logistic, 4 features)": {"name": "linear"},
    "10 million parameters (MLP)": {"name": "mlp", "hidden": [3200, 3100]},
}


def seconds(counts: list[int]) -> None:
    """Rounds of FedAvg, with both models on one deployment for each number of nodes.

    The first round is left out, because processes still warm up in it; the last one, because it
    also holds the evaluation.
    """
    print("| nodes | model | median seconds a round | fastest | slowest | to start (s) |")
    print("|---:|---|---:|---:|---:|---:|", flush=True)
    for nodes in counts:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            deployment = Deployment(root / "logs")
            begin = time.perf_counter()
            try:
                deployment.start_server(root / "runs")
                for index in range(nodes):
                    deployment.start_node(f"node-{index}", "--client", str(index))
                wait_for_server(deployment)
                for i, (label, model) in enumerate(MODELS.items()):
                    found, started = timed(deployment, root / "runs" / f"run-{i}", nodes, model)
                    start = f"{started - begin:.0f}" if i == 0 else ""
                    print(
                        f"| {nodes} | {label} | {statistics.median(found):.1f} | {min(found):.1f} "
                        f"| {max(found):.1f} | {start} |",
                        flush=True,
                    )
            finally:
                deployment.stop()


def timed(
    deployment: Deployment, path: Path, nodes: int, model: dict[str, Any]
) -> tuple[list[float], float]:
    """Seconds of the rounds of one run, and when its first one ended."""
    config = parse(
        {
            "method": {"name": "fedavg", "local": {"steps": 1, "batch": 8}},
            "data": {"name": "loans", "clients": nodes, "partition": "iid"},
            "model": model, "rounds": ROUNDS, "evaluate_every": 0, "checkpoint_every": ROUNDS,
            "engine": {"engine": "flower"},
        }
    )  # fmt: skip
    submit(deployment.address, Order(config.model_dump(exclude_none=True), path.name))
    folder, error = RunFolder(path), path.parent / f".{path.name}.error"
    end, first = time.monotonic() + LIMIT, 0.0
    while not folder.finished:
        deployment.check()
        if error.is_file() or time.monotonic() > end:
            why = error.read_text() if error.is_file() else f"not done within {LIMIT:.0f} s"
            raise EvenfedError(f"{nodes} nodes, model {model}: {why}")
        if not first and folder.history():
            first = time.perf_counter()
        time.sleep(0.2)
    lines = folder.history()
    return [line["seconds"] for line in lines[1:-1]], first or time.perf_counter()


class Here:
    """A grid whose nodes are objects of this process."""

    def __init__(self, nodes: dict[int, Node]) -> None:
        self.nodes = nodes
        self.replies: dict[str, Message] = {}
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = []
        for message in messages:
            sent.append(f"{len(self.replies)}-{id(message)}-{time.perf_counter_ns()}")
            message.metadata.__dict__["_message_id"] = sent[-1]
            self.replies[sent[-1]] = reply_to(message, self.nodes[message.metadata.dst_node_id])
        return sent

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(i) for i in list(message_ids) if i in self.replies]


class Rounds(Silent):
    """Notes what had been sent after each round."""

    def __init__(self) -> None:
        self.run: Any = None
        self.found: list[tuple[int, int, int]] = []

    def round_done(self, line: dict[str, Any]) -> None:
        roster = self.run.roster
        self.found.append((roster.bytes_down, roster.bytes_up, line["exchanges"]))


def sent_bytes() -> None:
    """The third round of each method on `synthetic` (3 clients), MLP with 64 hidden units."""
    print("method | exchanges a round | bytes to a node | bytes from a node")
    for name in methods():
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            grid = Here({i + 1: Node(NamedData(i), root / str(i)) for i in range(3)})
            table = {
                "method": {"name": name}, "data": {"name": "synthetic"}, "rounds": 4,
                "model": {"name": "mlp"}, "evaluate_every": 0,
                "engine": {"engine": "flower", "wait": 5.0},
            }  # fmt: skip
            seen = Rounds()
            try:
                order = Order(table, "run")
                config = parse(order.config)
                run = _Run(grid, config, root / "run", seen, 0.0, False)
                seen.run = run
                run.carry_out()
            except EvenfedError as error:
                print(f"{name} | - | {str(error)[:70]}", flush=True)
                continue
        (a_down, a_up, _), (b_down, b_up, exchanges) = seen.found[1:3]
        print(
            f"{name} | {exchanges} | {(b_down - a_down) // 3:,} | {(b_up - a_up) // 3:,}",
            flush=True,
        )


if __name__ == "__main__":
    what, *rest = sys.argv[1:] or ["bytes"]
    if what == "seconds":
        seconds([int(word) for word in rest] or [2, 5, 10])
    else:
        sent_bytes()
