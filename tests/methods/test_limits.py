"""Where a method must become another one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.func import grad

from evenfed.core import tree as trees
from evenfed.core.local import LocalTraining
from evenfed.data.dataset import ClientData, FederatedDataset
from evenfed.engines.federation import EngineOptions
from evenfed.methods.centralized import Centralized
from evenfed.methods.fedavg import FedAvg
from evenfed.methods.fedprox import FedProx
from evenfed.methods.local import Local
from evenfed.methods.qffl import QFFL
from evenfed.methods.scaffold import Scaffold

BATCHES = LocalTraining(lr=0.1, batch=8, epochs=2)
FULL = LocalTraining(lr=0.1, batch=0, epochs=3)
ROUNDING = 1e-6
both_engines = pytest.mark.parametrize("engine", ["vectorized", "sequential"])
Train = Callable[..., Any]


@both_engines
def test_fedprox_without_its_term_is_fedavg(
    engine: str, binary: FederatedDataset, train_rounds: Train
) -> None:
    a = train_rounds(FedProx(local=BATCHES, mu=0.0), binary, engine)
    b = train_rounds(FedAvg(local=BATCHES), binary, engine)
    assert torch.equal(a.everything, b.everything)


def test_fedprox_with_a_strong_term_stays_near_the_received_model(
    binary: FederatedDataset, train_rounds: Train, flat: Any
) -> None:
    def moved(mu: float) -> float:
        trained = train_rounds(FedProx(local=BATCHES, mu=mu), binary, rounds=1)
        return float((trained.server - flat(trained.runner.task.init())).norm())

    assert moved(5.0) < 0.7 * moved(0.0)


@both_engines
@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_qffl_without_fairness_is_fedavg(
    engine: str, weighting: Any, binary: FederatedDataset, train_rounds: Train, distance: Any
) -> None:
    a = train_rounds(QFFL(local=BATCHES, q=0.0, weighting=weighting), binary, engine)
    b = train_rounds(FedAvg(local=BATCHES, weighting=weighting), binary, engine)
    assert distance(a.server, b.server) < ROUNDING


def test_one_client_alone_is_fedavg_local_and_centralized(
    make_dataset: Any, train_rounds: Train, distance: Any, flat: Any
) -> None:
    """With full batches, as each of the three draws its batches for another purpose."""
    data = make_dataset(sizes=(30,))
    average = train_rounds(FedAvg(local=FULL), data, "sequential")
    pooled = train_rounds(Centralized(local=FULL), data, "sequential")
    alone = train_rounds(Local(local=FULL), data, "sequential")
    own = flat(alone.runner.federation.states.kept[0]["params"])
    assert distance(average.server, own) < ROUNDING
    assert distance(pooled.server, own) < ROUNDING
    assert distance(own, flat(alone.runner.task.init())) > 0.01


def test_centralized_with_full_batches_is_one_step_fedavg_by_size(
    binary: FederatedDataset, train_rounds: Train, distance: Any
) -> None:
    """The mean gradient over all examples is the mean of the clients' gradients by size."""
    one = replace(FULL, epochs=1)
    a = train_rounds(Centralized(local=one), binary)
    b = train_rounds(FedAvg(local=one), binary)
    assert distance(a.server, b.server) < ROUNDING


@both_engines
def test_identical_clients_average_to_one_of_them(
    engine: str, make_client: Any, make_schema: Any, train_rounds: Train, distance: Any
) -> None:
    one = make_client("binary", 0, 20)
    clones = [ClientData(name, one.train, one.val, one.test) for name in ("a", "b", "c")]
    many = FederatedDataset(make_schema("binary"), clones)
    alone = FederatedDataset(make_schema("binary"), clones[:1])
    for method in (FedAvg(local=FULL), FedProx(local=FULL, mu=0.5), Scaffold(local=FULL)):
        a = train_rounds(method, many, engine)
        b = train_rounds(method, alone, engine)
        assert distance(a.server, b.server) < ROUNDING, method.name


@both_engines
def test_scaffold_begins_as_fedavg_with_uniform_weights(
    engine: str, binary: FederatedDataset, train_rounds: Train, distance: Any, flat: Any
) -> None:
    a = train_rounds(Scaffold(local=BATCHES), binary, engine, rounds=1)
    b = train_rounds(FedAvg(local=BATCHES, weighting="uniform"), binary, engine, rounds=1)
    assert distance(flat(a.runner.server["params"]), b.server) < ROUNDING
    later = train_rounds(Scaffold(local=BATCHES), binary, engine, rounds=2)
    other = train_rounds(FedAvg(local=BATCHES, weighting="uniform"), binary, engine, rounds=2)
    assert distance(flat(later.runner.server["params"]), other.server) > 1e-4


@both_engines
def test_scaffold_with_one_full_step_is_gradient_descent_on_the_mean(
    engine: str, binary: FederatedDataset, train_rounds: Train, distance: Any, flat: Any
) -> None:
    """`mean(g_i - c_i + c) = mean(g_i)`, as `c` is the mean of the `c_i`."""
    trained = train_rounds(Scaffold(local=replace(FULL, epochs=1)), binary, engine, rounds=4)
    task = trained.runner.task
    params = task.init()
    for _ in range(4):
        gradients = trees.stack([grad(task.mean_loss)(params, c.train) for c in binary])
        params = trees.add(params, trees.map(lambda g: g.mean(0), gradients), -FULL.lr)
    assert distance(flat(trained.runner.server["params"]), flat(params)) < 1e-5


def test_scaffolds_server_keeps_the_mean_of_the_clients_controls(
    binary: FederatedDataset, train_rounds: Train, distance: Any, flat: Any
) -> None:
    trained = train_rounds(Scaffold(local=BATCHES), binary, EngineOptions("vectorized", workers=1))
    kept = trained.runner.federation.states.kept
    controls = torch.stack([flat(kept[i]["control"]) for i in range(len(binary))])
    assert distance(flat(trained.runner.server["control"]), controls.mean(0)) < 1e-5
