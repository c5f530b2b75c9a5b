"""FedAvg, FedProx, SCAFFOLD and q-FedAvg: two rounds by hand. Formulas: the papers named there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evenfed.methods.fedavg import FedAvg
from evenfed.methods.fedprox import FedProx
from evenfed.methods.qffl import QFFL
from evenfed.methods.scaffold import Scaffold


@pytest.mark.proves("fedavg", "two rounds by hand")
@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_fedavg(line: Any, engine: str, server_lr: float) -> None:
    """`w+ = w + eta_g sum_i a_i (w_i - w)` with `a_i = n_i / n`; for `eta_g = 1` the average."""
    w = line.start
    for _ in range(line.rounds):
        models = np.stack([line.trained(i, w) for i in line.clients])
        w = w + server_lr * (np.average(models, axis=0, weights=line.sizes) - w)
    run = line.run(FedAvg(local=line.local, server_lr=server_lr), engine)
    np.testing.assert_allclose(line.theta(run.runner.server["params"]), w, rtol=1e-5)


@pytest.mark.proves("fedprox", "two rounds by hand")
def test_fedprox(line: Any, engine: str) -> None:
    """A local step follows `g + mu (w_i - w)`; the rest is FedAvg."""
    mu, w = 0.7, line.start
    for _ in range(line.rounds):
        models = [line.trained(i, w, lambda p, at=w: mu * (p - at)) for i in line.clients]
        w = np.average(np.stack(models), axis=0, weights=line.sizes)
    run = line.run(FedProx(local=line.local, mu=mu), engine)
    np.testing.assert_allclose(line.theta(run.runner.server["params"]), w, rtol=1e-5)


@pytest.mark.proves("scaffold", "two rounds by hand")
def test_scaffold(line: Any, engine: str) -> None:
    """A local step follows `g - c_i + c`, and with `dy = w_i - w` and K steps:

    `c_i+ = c_i - c - dy / (K eta)`, `w+ = w + mean dy`, `c+ = c + (1/N) sum (c_i+ - c_i)`.
    """
    w, c, own = line.start, np.zeros(2), np.zeros((3, 2))
    for _ in range(line.rounds):
        shifts = c - own
        moves = [line.trained(i, w, lambda p, s=shifts[i]: s) - w for i in line.clients]
        new = own - c - np.stack(moves) / (line.steps * line.eta)
        w, c, own = w + np.mean(moves, axis=0), c + (new - own).mean(0), new
    run = line.run(Scaffold(local=line.local), engine)
    server = run.runner.server
    np.testing.assert_allclose(line.theta(server["params"]), w, rtol=1e-5)
    np.testing.assert_allclose(line.theta(server["control"]), c, rtol=1e-5)
    kept = run.runner.federation.states.kept
    for i in line.clients:
        np.testing.assert_allclose(line.theta(kept[i]["control"]), own[i], rtol=1e-5)


@pytest.mark.proves("qffl", "two rounds by hand")
@pytest.mark.parametrize("q", [0.5, 2.0])
@pytest.mark.parametrize("weighting", ["uniform", "size"])
def test_qffl(line: Any, engine: str, q: float, weighting: Any) -> None:
    """With `L = 1 / eta`, `F_i` before training and `dw_i = L (w - w_i)`:

    `Delta_i = F_i^q dw_i`, `h_i = q F_i^(q-1) |dw_i|^2 + L F_i^q`,
    `w+ = w - sum_i Delta_i / sum_i h_i`. The sums are plain where clients are sampled by size
    (the paper); where they are sampled uniformly, client i counts `n_i` times in both.
    """
    share = np.ones(3) if weighting == "uniform" else line.sizes
    w, big_l = line.start, 1 / line.eta
    for _ in range(line.rounds):
        losses = np.array([line.loss(i, w) for i in line.clients])
        steps = big_l * np.stack([w - line.trained(i, w) for i in line.clients])
        delta = losses[:, None] ** q * steps
        h = q * losses ** (q - 1) * (steps**2).sum(1) + big_l * losses**q
        w = w - (share[:, None] * delta).sum(0) / (share * h).sum()
    run = line.run(QFFL(local=line.local, q=q, weighting=weighting), engine)
    np.testing.assert_allclose(line.theta(run.runner.server["params"]), w, rtol=1e-5)


@pytest.mark.proves("fedavg", "two rounds of classification by hand")
def test_fedavg_on_classes(logit: Any, engine: str) -> None:
    """The second toy problem is what it says: FedAvg on it, with softmax cross-entropy."""
    w = logit.start
    for _ in range(logit.rounds):
        models = np.stack([logit.trained(i, w) for i in logit.clients])
        w = np.average(models, axis=0, weights=logit.sizes)
    run = logit.run(FedAvg(local=logit.local), engine)
    np.testing.assert_allclose(logit.theta(run.runner.server["params"]), w, rtol=1e-5)
