"""FedAvgM, FedAdam and FedYogi: rounds by hand, and where each becomes another method.

`delta(w)` is the weighted mean of the clients' changes, FedAvg's step: `sum_i a_i (w_i - w)`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from evenfed.core.errors import ConfigError
from evenfed.methods.fedadam import FedAdam
from evenfed.methods.fedavg import FedAvg
from evenfed.methods.fedavgm import FedAvgM
from evenfed.methods.fedyogi import FedYogi

ETA, B1, B2, TAU = 0.3, 0.6, 0.8, 0.05


def delta(problem: Any, w: Any) -> Any:
    changes = np.stack([problem.trained(i, w) - w for i in problem.clients])
    return np.average(changes, axis=0, weights=problem.sizes)


@pytest.mark.proves("fedavgm", "two rounds by hand")
@pytest.mark.parametrize("nesterov", [False, True])
def test_fedavgm(line: Any, engine: str, nesterov: bool) -> None:
    """`v = beta v - delta(w)`, `w = w - eta v`; Nesterov: `w = w - eta (beta v - delta(w))`."""
    beta, eta, w, v = 0.7, 0.8, line.start, np.zeros(2)
    for _ in range(line.rounds):
        d = delta(line, w)
        v = beta * v - d
        w = w - eta * (beta * v - d if nesterov else v)
    method = FedAvgM(local=line.local, beta=beta, server_lr=eta, nesterov=nesterov)
    run = line.run(method, engine)
    np.testing.assert_allclose(line.theta(run.runner.server["params"]), w, rtol=1e-5)


@pytest.mark.proves("fedavgm", "without momentum it is FedAvg, bit for bit")
def test_fedavgm_without_momentum_is_fedavg(logit: Any, engine: str) -> None:
    a = logit.run(FedAvgM(local=logit.local, beta=0.0), engine)
    b = logit.run(FedAvg(local=logit.local), engine)
    for name, value in b.runner.server["params"].items():
        assert torch.equal(a.runner.server["params"][name], value)


@pytest.mark.proves("fedadam", "three rounds by hand")
@pytest.mark.proves("fedyogi", "three rounds by hand")
@pytest.mark.parametrize("method", [FedAdam, FedYogi])
def test_adaptive(line: Any, engine: str, method: Any) -> None:
    """From `m = 0`, `v = tau^2`, with `d = delta(w)`, coordinate by coordinate:

    `m = b1 m + (1 - b1) d`; Adam: `v = b2 v + (1 - b2) d^2`; Yogi: `v` moves by
    `(1 - b2) d^2`, up where `d^2 > v`, else down; `w = w + eta m / (sqrt(v) + tau)`.
    Three rounds: the signs of Yogi's moves are not all the same then.
    """
    w, m, v, signs = line.start, np.zeros(2), np.full(2, TAU**2), []
    for _ in range(3):
        d = delta(line, w)
        m = B1 * m + (1 - B1) * d
        if method is FedYogi:
            signs += (d**2 > v).tolist()
            v = np.where(d**2 > v, v + (1 - B2) * d**2, v - (1 - B2) * d**2)
        else:
            v = B2 * v + (1 - B2) * d**2
        w = w + ETA * m / (np.sqrt(v) + TAU)
    assert method is FedAdam or len(set(signs)) == 2, "both directions of Yogi's move are needed"
    options = {"server_lr": ETA, "beta1": B1, "beta2": B2, "tau": TAU}
    server = line.run(method(local=line.local, **options), engine, rounds=3).runner.server
    np.testing.assert_allclose(line.theta(server["params"]), w, rtol=1e-4)
    np.testing.assert_allclose(line.theta(server["m"]), m, rtol=1e-4)
    np.testing.assert_allclose(line.theta(server["v"]), v, rtol=1e-4)


@pytest.mark.proves("fedadam", "with moments that do not move it is FedAvg of rate eta / 2 tau")
@pytest.mark.proves("fedyogi", "with moments that do not move it is FedAvg of rate eta / 2 tau")
@pytest.mark.parametrize("method", [FedAdam, FedYogi])
def test_adaptive_with_fixed_moments_is_fedavg(logit: Any, engine: str, method: Any) -> None:
    """`beta1 = 0`: `m = d`. `beta2 = 1`: `v` stays `tau^2`. So the step is `eta d / (2 tau)`."""
    options = {"server_lr": 0.3, "beta1": 0.0, "beta2": 1.0, "tau": 0.25}
    a = logit.run(method(local=logit.local, **options), engine)
    b = logit.run(FedAvg(local=logit.local, server_lr=0.6), engine)
    np.testing.assert_allclose(
        logit.theta(a.runner.server["params"]), logit.theta(b.runner.server["params"]), rtol=1e-5
    )


@pytest.mark.proves("fedadam", "without memory every coordinate moves by eta")
def test_fedadam_without_memory_takes_steps_of_equal_length(line: Any) -> None:
    """`beta1 = beta2 = 0` and a tiny `tau`: `w + eta d / |d|`."""
    method = FedAdam(local=line.local, server_lr=0.1, beta1=0.0, beta2=0.0, tau=1e-9)
    w = line.start
    for _ in range(2):
        w = w + 0.1 * np.sign(delta(line, w))
    run = line.run(method)
    np.testing.assert_allclose(line.theta(run.runner.server["params"]), w, rtol=1e-5)


@pytest.mark.parametrize(
    ("method", "options", "named"),
    [
        (FedAvgM, {"beta": 1.0}, "beta"),
        (FedAdam, {"beta1": 1.0}, "beta1"),
        (FedAdam, {"beta2": 1.5}, "beta2"),
        (FedYogi, {"tau": 0.0}, "tau"),
        (FedYogi, {"server_lr": -1.0}, "server_lr"),
    ],
)
def test_options_that_cannot_be_are_refused(method: Any, options: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        method(**options)
