"""Clients, models and a plain PyTorch loop to compare with."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from evenfed.core.examples import Examples
from evenfed.core.local import LocalTraining
from evenfed.core.task import Task
from evenfed.data.dataset import ClientData, FederatedDataset, Schema
from evenfed.engines.federation import EngineOptions, Federation
from evenfed.methods.fedavg import FedAvg


def clients(count: int, examples: int, shape: tuple[int, ...], classes: int) -> FederatedDataset:
    """Random clients of equal size, side by side in memory."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(count, examples, *shape, generator=draw)
    y = torch.randint(0, classes, (count, examples), generator=draw)
    group = torch.zeros(count, examples, dtype=torch.int64)
    mask = torch.ones(count, examples, dtype=torch.bool)
    nothing = Examples.of(x[0, :0], y[0, :0])
    made = [
        ClientData(f"{i:06d}", Examples(x[i], y[i], group[i], mask[i]), nothing, nothing)
        for i in range(count)
    ]
    return FederatedDataset(Schema("random", "multiclass", classes, shape), made)


def fedavg_round(
    data: FederatedDataset, make: Callable[[], nn.Module], batch: int, **options: object
) -> Callable[[], None]:
    """One round of FedAvg with full participation as a function without arguments."""
    task = Task(make, "multiclass", data.schema.classes, 1)
    method = FedAvg(local=LocalTraining(lr=0.05, batch=batch)).bound(task, task.init())
    federation = Federation(
        data,
        options=EngineOptions(**options),  # type: ignore[arg-type]
        batch_hint=batch,
        prepare=task.module,
    )
    server = method.start(federation)
    count = [0]

    def round_() -> None:
        federation.begin(count[0])
        count[0] += 1
        server.update(method.round(federation, server))
        federation.commit()

    return round_


def plain_round(
    data: FederatedDataset, make: Callable[[], nn.Module], batch: int
) -> Callable[[], None]:
    """The same round as everybody writes it: a loop over clients, an optimizer each, autograd."""
    glob = make()
    loss = nn.CrossEntropyLoss()

    def round_() -> None:
        weights = {k: v.clone() for k, v in glob.state_dict().items()}
        total = {k: torch.zeros_like(v) for k, v in weights.items()}
        for client in data:
            model = make()
            model.load_state_dict(weights)
            _fit(model, client.train, batch, loss)
            for name, value in model.state_dict().items():
                total[name] += value / len(data)
        glob.load_state_dict(total)

    return round_


def _fit(model: nn.Module, data: Examples, batch: int, loss: Callable[..., Tensor]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    order = torch.randperm(len(data))
    for start in range(0, len(data), batch):
        rows = order[start : start + batch]
        optimizer.zero_grad()
        loss(model(data.x[rows]), data.y[rows]).backward()
        optimizer.step()


def matmul_limit(threads: int) -> float:
    """Best rate of a large float32 matrix product with so many threads, in FLOP/s."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    best = 0.0
    for n in (512, 1024, 2048):
        a, b = torch.randn(n, n), torch.randn(n, n)
        a @ b
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < 0.7:
            a @ b
            count += 1
        best = max(best, 2 * n**3 * count / (time.perf_counter() - begin))
    torch.set_num_threads(before)
    return best


def timed(function: Callable[[], None], repeats: int, warm: int = 2) -> tuple[float, float]:
    """Wall and CPU seconds of one call: the best of `repeats`, after `warm` calls."""
    for _ in range(warm):
        function()
    walls, cpus = [], []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        function()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return min(walls), min(cpus)
