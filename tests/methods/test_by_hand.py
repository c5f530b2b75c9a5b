"""Two rounds of each method against the published formulas, in NumPy.

Three clients fit `y = w x + b`. The loss of client i is `F_i = mean (w x + b - y)^2`, so its
gradient is `(2 mean x r, 2 mean r)` with residuals `r`. Training takes full batches and E = 2
steps of rate `ETA` a round. Formulas: /specs/baselines.md, which cites the papers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from evenfed.core.examples import Examples
from evenfed.core.local import LocalTraining
from evenfed.data.dataset import ClientData, FederatedDataset, Schema
from evenfed.methods.base import Method
from evenfed.methods.fedavg import FedAvg
from evenfed.methods.fedprox import FedProx
from evenfed.methods.qffl import QFFL
from evenfed.methods.scaffold import Scaffold

Vector = np.ndarray
CLIENTS: list[tuple[list[float], list[float]]] = [
    ([0.0, 1.0, 2.0, 3.0], [1.0, 3.0, 5.0, 7.0]),
    ([-1.0, 1.0], [2.0, -2.0]),
    ([0.5], [1.0]),
]
SIZES = np.array([4.0, 2.0, 1.0])
ETA, STEPS, ROUNDS = 0.05, 2, 2
START = np.array([0.5, -0.25])
LOCAL = LocalTraining(lr=ETA, batch=0, epochs=STEPS)
both_engines = pytest.mark.parametrize("engine", ["vectorized", "sequential"])


def residuals(i: int, theta: Vector) -> tuple[Vector, Vector]:
    x, y = np.array(CLIENTS[i][0]), np.array(CLIENTS[i][1])
    return x, theta[0] * x + theta[1] - y


def loss(i: int, theta: Vector) -> float:
    return float((residuals(i, theta)[1] ** 2).mean())


def gradient(i: int, theta: Vector) -> Vector:
    x, r = residuals(i, theta)
    return 2 * np.array([(x * r).mean(), r.mean()])


def trained(i: int, theta: Vector, extra: Callable[[Vector], Vector]) -> Vector:
    """`E` steps along the gradient plus a term of the method."""
    start = theta.copy()
    for _ in range(STEPS):
        start = start - ETA * (gradient(i, start) + extra(start))
    return start


def nothing(theta: Vector) -> Vector:
    return np.zeros(2)


def result(method: Method, engine: str, train_rounds: Callable[..., Any]) -> Any:
    module = nn.Linear(1, 1)
    with torch.no_grad():
        module.weight.fill_(START[0])
        module.bias.fill_(START[1])
    clients = []
    for i, (x, y) in enumerate(CLIENTS):
        data = Examples.of(torch.tensor(x).unsqueeze(-1), torch.tensor(y))
        clients.append(ClientData(f"c{i}", data, data, data))
    dataset = FederatedDataset(Schema("line", "regression", 1, (1,)), clients)
    return train_rounds(method, dataset, engine, rounds=ROUNDS, model=module)


def theta_of(params: dict[str, torch.Tensor]) -> Vector:
    return np.array([params["weight"].item(), params["bias"].item()])


@both_engines
@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_fedavg(engine: str, server_lr: float, train_rounds: Callable[..., Any]) -> None:
    """`w+ = w + eta_g sum_i a_i (w_i - w)` with `a_i = n_i / n`; for `eta_g = 1` the average."""
    w = START
    for _ in range(ROUNDS):
        models = np.stack([trained(i, w, nothing) for i in range(3)])
        w = w + server_lr * (np.average(models, axis=0, weights=SIZES) - w)
    run = result(FedAvg(local=LOCAL, server_lr=server_lr), engine, train_rounds)
    np.testing.assert_allclose(theta_of(run.runner.server["params"]), w, rtol=1e-5)


@both_engines
def test_fedprox(engine: str, train_rounds: Callable[..., Any]) -> None:
    """A local step follows `g + mu (w_i - w)`; the rest is FedAvg."""
    mu, w = 0.7, START
    for _ in range(ROUNDS):
        received = w
        models = np.stack([trained(i, w, lambda p, at=received: mu * (p - at)) for i in range(3)])
        w = np.average(models, axis=0, weights=SIZES)
    run = result(FedProx(local=LOCAL, mu=mu), engine, train_rounds)
    np.testing.assert_allclose(theta_of(run.runner.server["params"]), w, rtol=1e-5)


@both_engines
def test_scaffold(engine: str, train_rounds: Callable[..., Any]) -> None:
    """A local step follows `g - c_i + c`, and with `dy = w_i - w` and K steps:

    `c_i+ = c_i - c - dy / (K eta)`, `w+ = w + mean dy`, `c+ = c + (1/N) sum (c_i+ - c_i)`.
    """
    w, c, own = START, np.zeros(2), np.zeros((3, 2))
    for _ in range(ROUNDS):
        shifts = c - own
        moves = np.stack([trained(i, w, lambda p, s=shifts[i]: s) - w for i in range(3)])
        new = own - c - moves / (STEPS * ETA)
        w, c, own = w + moves.mean(0), c + (new - own).mean(0), new
    run = result(Scaffold(local=LOCAL), engine, train_rounds)
    server = run.runner.server
    np.testing.assert_allclose(theta_of(server["params"]), w, rtol=1e-5)
    np.testing.assert_allclose(theta_of(server["control"]), c, rtol=1e-5)
    kept = run.runner.federation.states.kept
    for i in range(3):
        np.testing.assert_allclose(theta_of(kept[i]["control"]), own[i], rtol=1e-5)


@both_engines
@pytest.mark.parametrize("q", [0.5, 2.0])
@pytest.mark.parametrize("weighting", ["uniform", "size"])
def test_qffl(engine: str, q: float, weighting: Any, train_rounds: Callable[..., Any]) -> None:
    """With `L = 1 / eta`, `F_i` before training and `dw_i = L (w - w_i)`:

    `Delta_i = F_i^q dw_i`, `h_i = q F_i^(q-1) |dw_i|^2 + L F_i^q`,
    `w+ = w - sum_i Delta_i / sum_i h_i`. The sums are plain where clients are sampled by size
    (the paper); where they are sampled uniformly, client i counts `n_i` times in both.
    """
    share = np.ones(3) if weighting == "uniform" else SIZES
    w, big_l = START, 1 / ETA
    for _ in range(ROUNDS):
        losses = np.array([loss(i, w) for i in range(3)])
        steps = big_l * np.stack([w - trained(i, w, nothing) for i in range(3)])
        delta = losses[:, None] ** q * steps
        h = q * losses ** (q - 1) * (steps**2).sum(1) + big_l * losses**q
        w = w - (share[:, None] * delta).sum(0) / (share * h).sum()
    run = result(QFFL(local=LOCAL, q=q, weighting=weighting), engine, train_rounds)
    np.testing.assert_allclose(theta_of(run.runner.server["params"]), w, rtol=1e-5)
