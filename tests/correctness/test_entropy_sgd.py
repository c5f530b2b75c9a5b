"""Entropy-SGD as the local optimizer: rounds by hand, its noise, and where it is SGD."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from evenfed.core.descent import Direction
from evenfed.core.entropy_sgd import EntropySGD
from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.local import LocalTraining
from evenfed.core.regularizer import SignEntropy
from evenfed.core.tree import Tree
from evenfed.methods.fedavg import FedAvg
from evenfed.methods.fedprox import FedProx
from evenfed.methods.scaffold import Scaffold

QUIET = EntropySGD(walk=2, gamma=0.5, scoping=0.3, noise=0.0, decay=0.6, rate=0.9)
WALKS = LocalTraining(
    lr=0.05, batch=0, epochs=5, optimizer="entropy_sgd", entropy_sgd=QUIET, weight_decay=0.1
)


def walked(problem: Any, i: int, x: Any, pull: float = 0.0) -> Any:
    """Five gradients of client i as walks of two, two and one steps, from `x`.

    `x' <- x' - lr (g(x') + gamma (x' - x) + 0.1 x')` and `mu <- 0.6 mu + 0.4 x'`; at the end of a
    walk `x <- x - 0.9 (x - mu)`. FedProx adds `pull (x' - received)` to `g`.
    """
    received = x
    for t, length in enumerate((2, 2, 1)):
        walk, mu, gamma = x, x, 0.5 * 1.3**t
        for _ in range(length):
            g = problem.gradient(i, walk) + pull * (walk - received)
            walk = walk - 0.05 * (g + gamma * (walk - x) + 0.1 * walk)
            mu = 0.6 * mu + 0.4 * walk
        x = x - 0.9 * (x - mu)
    return x


@pytest.mark.proves("fedavg", "two rounds by hand with Entropy-SGD, the last walk cut short")
@pytest.mark.proves("fedprox", "two rounds by hand with Entropy-SGD")
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_entropy_sgd(line: Any, engine: str, mu: float) -> None:
    w = line.start
    for _ in range(line.rounds):
        models = np.stack([walked(line, i, w, mu) for i in line.clients])
        w = np.average(models, axis=0, weights=line.sizes)
    method = FedProx(local=WALKS, mu=mu) if mu else FedAvg(local=WALKS)
    run = line.run(method, engine)
    np.testing.assert_allclose(line.theta(run.runner.server["params"]), w, rtol=1e-5)


@pytest.mark.proves("fedavg", "Entropy-SGD with walks of one quiet step is SGD")
def test_walks_of_one_step_are_sgd(binary: Any, engine: str, train_rounds: Any, flat: Any) -> None:
    """`mu = a x + (1 - a) (x - lr g)`, so `x` moves by `rate (1 - a) lr g`; `gamma` never acts."""
    quiet = EntropySGD(walk=1, gamma=3.0, noise=0.0, decay=0.75, rate=0.8)
    local = LocalTraining(lr=0.5, batch=8, optimizer="entropy_sgd", entropy_sgd=quiet)
    a = train_rounds(FedAvg(local=local), binary, engine)
    b = train_rounds(FedAvg(local=LocalTraining(lr=0.5 * 0.25 * 0.8, batch=8)), binary, engine)
    assert torch.allclose(a.server, b.server, rtol=1e-5, atol=1e-6)
    assert float((b.server - flat(b.runner.task.init())).norm()) > 0.01


@pytest.mark.proves("ser", "inside Entropy-SGD, walks of one quiet step are SGD with SER")
def test_walks_of_one_corrected_step_are_sgd_with_ser(
    binary: Any, engine: str, train_rounds: Any, flat: Any
) -> None:
    """Without noise and memory `x` moves to the walk's only point."""
    quiet = EntropySGD(walk=1, noise=0.0, decay=0.0, rate=1.0)
    ser = LocalTraining(lr=0.3, batch=8, regularizer="ser", ser=SignEntropy(rho=0.5))
    a = train_rounds(
        FedAvg(local=replace(ser, optimizer="entropy_sgd", entropy_sgd=quiet)), binary, engine
    )
    b = train_rounds(FedAvg(local=ser), binary, engine)
    assert torch.allclose(a.server, b.server, rtol=1e-5, atol=1e-6)
    c = train_rounds(FedAvg(local=replace(ser, regularizer="none")), binary, engine)
    assert float((b.server - c.server).norm()) > 0.01


def flatland(params: Tree, batch: Examples, context: Tree) -> tuple[Tree, Tree]:
    """A direction of zeros."""
    return torch.zeros_like(params), ()


def test_the_noise_has_the_variance_of_langevin_dynamics() -> None:
    """Without gradients and pull, a walk of `n` steps that keeps its last point ends at

    `x + eps sqrt(2 lr)` times a sum of `n` independent standard normal values.
    """
    eps, lr, steps = 0.1, 0.02, 3
    options = EntropySGD(walk=steps, gamma=0.0, noise=eps, decay=0.0)
    local = LocalTraining(
        lr=lr, batch=0, epochs=steps, optimizer="entropy_sgd", entropy_sgd=options
    )
    data = Examples.of(torch.zeros(1, 1), torch.zeros(1))
    direction: Direction = flatland
    moved = []
    for seed in (0, 1):
        drawn = local.draw(torch.Generator().manual_seed(seed), (), 1)
        moved.append(
            options.descend(direction, torch.zeros(40_000), data, drawn, lr=local.rate(0, 1))  # type: ignore[arg-type]
        )
    expected = eps * np.sqrt(2 * lr * steps)
    for end in moved:
        assert float(end.mean()) == pytest.approx(0, abs=5 * expected / 200)
        # the standard error of a standard deviation from 40,000 values is 0.35 %
        assert float(end.std()) == pytest.approx(expected, rel=0.02)
    assert abs(float(torch.corrcoef(torch.stack(moved))[0, 1])) < 0.03


def test_engines_agree_on_the_noise(make_dataset: Any, train_rounds: Any, distance: Any) -> None:
    data = make_dataset(sizes=(16, 16, 7))
    local = LocalTraining(
        lr=0.1, batch=8, epochs=2, optimizer="entropy_sgd", entropy_sgd=EntropySGD(noise=0.05)
    )
    a, b = (train_rounds(FedAvg(local=local), data, e) for e in ("vectorized", "sequential"))
    assert distance(a.everything, b.everything) < 1e-5
    quiet = replace(local, entropy_sgd=EntropySGD(noise=0.0))
    c = train_rounds(FedAvg(local=quiet), data)
    assert distance(a.server, c.server) > 1e-3


def test_a_rate_of_zero_moves_nothing(line: Any) -> None:
    """A cosine to 0 has the rate 0 in the last of two rounds."""
    local = replace(WALKS, schedule="cosine", decay=0.0, entropy_sgd=EntropySGD())
    one = line.run(FedAvg(local=replace(local, schedule="constant")), rounds=1).runner
    two = line.run(FedAvg(local=local), rounds=2).runner
    for name, value in one.server["params"].items():
        assert torch.equal(two.server["params"][name], value)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"walk": 0}, "walk"),
        ({"decay": 1.0}, "decay"),
        ({"rate": 0.0}, "rate"),
        ({"noise": -1.0}, "noise"),
    ],
)
def test_options_that_cannot_be_are_refused(options: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        EntropySGD(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.9},
        {"clip": 1.0},
        {"regularizer": "ser", "ser": SignEntropy(when="posthoc")},
        {"regularizer": "ser", "ser": SignEntropy(mode="gate")},
        {"regularizer": "ser", "ser": SignEntropy(control="random")},
    ],
)
def test_what_does_not_go_with_walks_is_refused(options: Any) -> None:
    with pytest.raises(ConfigError, match="entropy_sgd"):
        LocalTraining(optimizer="entropy_sgd", **options)


def test_methods_that_need_plain_steps_refuse_walks() -> None:
    with pytest.raises(ConfigError, match=r"local\.optimizer"):
        Scaffold(local=LocalTraining(optimizer="entropy_sgd"))
    with pytest.raises(ConfigError, match="walks"):
        _ = LocalTraining(optimizer="entropy_sgd").rule
