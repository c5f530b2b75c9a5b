"""What is measured. Each function returns rows; ratios compare things timed in this process."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

import evenfed as ef
from benchmarks.workloads import clients, fedavg_round, matmul_limit, plain_round, timed
from evenfed.core import models
from evenfed.data.registry import load
from evenfed.runs.fronts import front_counts, grid

CORES = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Row:
    name: str
    value: float
    unit: str
    target: str = ""
    met: bool | None = None


def small() -> list[Row]:
    """MLP 100-64-2, 500 examples a client, batch 50: CPU time a client against a plain loop."""
    make = partial(models.mlp, 100, 2, (64,))
    torch.set_num_threads(1)
    data = clients(100, 500, (100,), 2)
    _, plain = timed(plain_round(data, make, 50), 3, warm=1)
    plain /= 100
    rows = [Row("plain loop, CPU a client-round", plain * 1e6, "us")]
    base = 0.0
    for count in (100, 1000, 10_000):
        data = clients(count, 500, (100,), 2)
        run = fedavg_round(data, make, 50, engine="vectorized")
        _, cpu = timed(run, 5 if count < 10_000 else 2)
        cpu /= count
        if count == 100:
            base = cpu
            rows.append(
                Row("100 clients, plain loop / Evenfed", plain / cpu, "x", ">= 5", plain / cpu >= 5)
            )
        rows.append(Row(f"{count} clients, CPU a client-round", cpu * 1e6, "us"))
        if count > 100:
            ratio = cpu / base
            rows.append(
                Row(f"{count} clients, relative to 100", ratio, "x", "<= 1.2", ratio <= 1.2)
            )
        del data, run
    return rows


def limit() -> list[Row]:
    """MLP 784-200-10, 100 clients x 600, batch 50: share of the matmul limit."""
    make = partial(models.mlp, 784, 10, (200,))
    data = clients(100, 600, (784,), 10)
    # forward and weight gradient of the first layer; the second also needs its input's gradient
    flops = 100 * 600 * (4 * 784 * 200 + 6 * 200 * 10)
    rows = []
    for workers in sorted({1, CORES}):
        run = fedavg_round(data, make, 50, engine="vectorized", workers=workers)
        top = matmul_limit(workers)
        wall, _ = timed(run, 25)
        top = max(top, matmul_limit(workers))
        share = flops / wall / top
        rows.append(Row(f"matmul limit, {workers} thread(s)", top / 1e9, "GFLOP/s"))
        rows.append(
            Row(
                f"share of the limit, {workers} worker(s)",
                100 * share,
                "%",
                ">= 45 %",
                share >= 0.45,
            )
        )
    return rows


def cnn() -> list[Row]:
    """CNN on 28 x 28: `auto` against the plain loop, wall time, both on all cores."""
    rows = []
    for name, channels in (("8-16", (8, 16)), ("32-64", (32, 64))):
        make = partial(models.cnn, (1, 28, 28), 10, channels, 64)
        data = clients(10, 100, (1, 28, 28), 10)
        torch.set_num_threads(CORES)
        plain, _ = timed(plain_round(data, make, 25), 5, warm=1)
        run = fedavg_round(data, make, 25, engine="auto")
        wall, _ = timed(run, 5)
        ratio = wall / plain
        rows.append(Row(f"CNN {name}, auto / plain loop", ratio, "x", "<= 1.05", ratio <= 1.05))
    return rows


def memory() -> list[Row]:
    """10,000 clients, 200,000 parameters, through `mean`: peak memory of a process."""
    peak = float(_child("memory_child"))
    return [Row("10,000 clients x 200k parameters, peak memory", peak, "GB", "< 2", peak < 2)]


def memory_child() -> None:
    make = partial(models.mlp, 784, 10, (251,))
    data = load("population", clients=10_000, examples=20, features=784, classes=10)
    fedavg_round(data, make, 20, engine="vectorized")()
    print(peak_memory())


def peak_memory() -> float:
    """Peak of this process in gigabytes; getrusage would also count the parent it came from."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return float(line.split()[1]) / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def population() -> list[Row]:
    """A cohort of 1,000 out of 1,000 and out of 1,000,000: time and memory."""
    few = [float(v) for v in _child("population_child", "1000").split()]
    many = [float(v) for v in _child("population_child", "1000000").split()]
    slower, larger = many[0] / few[0], many[1] / few[1]
    return [
        Row("cohort 1,000 of 1,000: round", few[0], "s"),
        Row("cohort 1,000 of 1,000,000: time relative", slower, "x", "<= 1.2", slower <= 1.2),
        Row("cohort 1,000 of 1,000,000: memory relative", larger, "x", "<= 1.2", larger <= 1.2),
    ]


def population_child(size: str) -> None:
    from evenfed.core.local import LocalTraining
    from evenfed.core.task import Task
    from evenfed.engines.federation import EngineOptions, Federation
    from evenfed.engines.participation import Participation
    from evenfed.methods.fedavg import FedAvg

    data = load("population", clients=int(size))
    features, classes = data.schema.shape[0], data.schema.classes
    task = Task(partial(models.mlp, features, classes, (64,)), data.schema.kind, classes, 1)
    method = FedAvg(local=LocalTraining(batch=20)).bound(task, task.init())
    federation = Federation(
        data,
        participation=Participation(number=1000),
        options=EngineOptions("vectorized"),
        batch_hint=20,
        prepare=task.module,
    )
    server, seconds = method.start(federation), []
    for t in range(4):
        begin = time.perf_counter()
        federation.begin(t)
        server = method.round(federation, server)
        federation.commit()
        seconds.append(time.perf_counter() - begin)
    print(min(seconds[1:]), peak_memory())


def start() -> list[Row]:
    """From the start of `evenfed run` to the end of its first round."""
    best = float("inf")
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            history = Path(folder) / "run" / "history.jsonl"
            begin = time.perf_counter()
            command = [sys.executable, "-m", "evenfed", "run", "--method", "fedavg"]
            command += ["--dataset", "loans", "--rounds", "2", "--quiet", "--out", f"{folder}/run"]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
                while not history.exists() and process.poll() is None:
                    time.sleep(0.005)
                best = min(best, time.perf_counter() - begin)
    return [Row("evenfed run, start to end of the first round", best, "s", "< 4", best < 4)]


def front() -> list[Row]:
    """1,000 models of HetPFL on SYNTHETIC's test data: all at once against one after the other."""
    torch.set_num_threads(1)
    result = ef.train(
        "hetpfl", load("synthetic", seed=0), rounds=1, fusion_steps=5, evaluate_every=0,
        engine=ef.EngineOptions("vectorized", workers=1),
    )  # fmt: skip
    asked, rows = grid(1000), []
    for deploy, name in (("own", "each client's own"), ("global", "the global")):
        _, together = timed(partial(front_counts, result._runner, "test", asked, deploy), 5)
        begin = time.process_time()
        for p in asked.tolist():
            result.using(preference=p, deploy=deploy).evaluation("test")
        ratio = (time.process_time() - begin) / together
        rows.append(Row(f"1,000 models, {name}: CPU at once", together * 1e3, "ms"))
        rows.append(Row("the same, one by one / at once", ratio, "x", ">= 100", ratio >= 100))
    return rows


def _child(function: str, *args: str) -> str:
    code = f"from benchmarks.measures import {function} as f; f(*{list(args)!r})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.strip()


MEASURES: dict[str, Callable[[], list[Row]]] = {
    "small": small,
    "limit": limit,
    "cnn": cnn,
    "memory": memory,
    "population": population,
    "start": start,
    "front": front,
}
