"""SER as a method, and its regulariser inside other methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from evenfed.core.errors import ConfigError
from evenfed.core.local import LocalTraining
from evenfed.core.randomness import generator
from evenfed.core.regularizer import SignEntropy
from evenfed.data.dataset import FederatedDataset
from evenfed.methods.base import Method
from evenfed.methods.fedavg import FedAvg
from evenfed.methods.fedprox import FedProx
from evenfed.methods.qffl import QFFL
from evenfed.methods.registry import build, methods
from evenfed.methods.scaffold import Scaffold
from evenfed.methods.ser import SER
from evenfed.runs.config import method_table, parse
from evenfed.runs.result import Result
from evenfed.runs.train import resume, run_config

LOCAL = LocalTraining(lr=0.1, batch=8, epochs=2)
Train = Callable[..., Any]


@pytest.fixture(scope="module")
def few(make_dataset: Any) -> FederatedDataset:
    """Three clients of like size: a regularised step takes a while to trace for every size."""
    return make_dataset(sizes=(20, 23, 22))  # type: ignore[no-any-return]


def regularized(**options: Any) -> LocalTraining:
    return replace(LOCAL, regularizer="ser", ser=SignEntropy(**options))


@pytest.mark.proves("ser", "rho = 0 changes no bit of FedAvg, FedProx, SCAFFOLD and q-FFL")
@pytest.mark.parametrize("cls", [FedAvg, FedProx, Scaffold, QFFL])
@pytest.mark.parametrize("engine", ["vectorized", "sequential"])
def test_rho_of_zero_changes_no_bit(
    cls: type[FedAvg], engine: str, few: FederatedDataset, train_rounds: Train
) -> None:
    plain = train_rounds(cls(local=LOCAL), few, engine)
    for options in ({"rho": 0.0}, {"rho": 0.0, "when": "step", "control": "random"}):
        off = train_rounds(cls(local=regularized(**options)), few, engine)
        assert torch.equal(off.everything, plain.everything)


def test_ser_with_rho_of_zero_is_fedavg_to_the_bit(
    few: FederatedDataset, train_rounds: Train
) -> None:
    ser = train_rounds(SER(local=regularized(rho=0.0)), few)
    plain = train_rounds(FedAvg(local=LOCAL), few)
    for name, value in plain.runner.server["params"].items():
        assert torch.equal(ser.runner.server["params"][name], value)


@pytest.mark.proves("ser", "bytes do not depend on rho")
@pytest.mark.parametrize("cls", [FedAvg, FedProx, SER])
def test_bytes_do_not_depend_on_rho(
    cls: type[FedAvg], few: FederatedDataset, train_rounds: Train
) -> None:
    def traffic(local: LocalTraining) -> list[tuple[int, int, int]]:
        history = train_rounds(cls(local=local), few).runner.history
        return [(line["bytes_up"], line["bytes_down"], line["exchanges"]) for line in history]

    plain = traffic(LOCAL if cls is not SER else regularized(rho=0.0))
    for rho, when in ((0.01, "posthoc"), (0.1, "step"), (0.5, "interval")):
        assert traffic(regularized(rho=rho, when=when)) == plain
    if cls is SER:
        fedavg = train_rounds(FedAvg(local=LOCAL), few).runner.history
        assert plain == [(li["bytes_up"], li["bytes_down"], li["exchanges"]) for li in fedavg]


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (FedProx, {}),
        (FedProx, {"when": "posthoc"}),
        (FedProx, {"mode": "gate"}),
        (Scaffold, {"when": "posthoc"}),
        (Scaffold, {"when": "interval", "interval": 2}),
        (Scaffold, {"when": "step", "control": "random"}),
        (QFFL, {}),
        (QFFL, {"control": "shrink", "when": "posthoc"}),
    ],
)
def test_it_works_inside_other_methods_on_both_engines(
    cls: type[FedAvg],
    options: dict[str, Any],
    few: FederatedDataset,
    train_rounds: Train,
    distance: Any,
) -> None:
    method = cls(local=regularized(**options))
    a, b = (train_rounds(method, few, engine) for engine in ("vectorized", "sequential"))
    assert distance(a.everything, b.everything) < 1e-5
    plain = train_rounds(cls(local=LOCAL), few)
    assert distance(a.server, plain.server) > 1e-4, "the regulariser made no difference"


@pytest.mark.parametrize(
    "method", [SER(local=LOCAL, adaptive=True), SER(local=LOCAL, deploy="global")]
)
def test_variants_agree_on_both_engines(
    method: Method, few: FederatedDataset, train_rounds: Train, distance: Any
) -> None:
    a, b = (train_rounds(method, few, engine) for engine in ("vectorized", "sequential"))
    assert distance(a.everything, b.everything) < 1e-5


@pytest.mark.proves("ser", "a client uses its local round from the last global model")
def test_a_client_uses_its_local_round_from_the_last_global_model(
    few: FederatedDataset, train_rounds: Train
) -> None:
    runner = train_rounds(SER(local=LOCAL), few, "sequential").runner
    method, data = runner.method, few.client(1)
    # the draws of the exchange after the last of two rounds
    made = generator(0, "personalize/1", 2, few.key(1))
    drawn = method.draw(made, (), len(data.train))
    rate = method.local.rate(1, 2)
    expected = method.local.run(method.task, runner.server["params"], data.train, drawn, lr=rate)
    own = runner.federation.states.kept[1]["params"]
    assert all(torch.equal(own[name], expected[name]) for name in expected)


def test_local_and_global_model_can_both_be_evaluated(tmp_path: Any) -> None:
    result = run_config(parse({"data": "synthetic", "rounds": 2, "method": "ser"}))
    everywhere = result.using(deploy="global")
    assert result.summary()["loss"] != everywhere.summary()["loss"]
    plain = run_config(
        parse(
            {"data": "synthetic", "rounds": 2, "method": {"name": "fedavg", "regularizer": "ser"}}
        )
    )
    assert everywhere.summary()["loss"] == pytest.approx(plain.summary()["loss"], rel=1e-6)
    own, shared = result.parameters(client=0), result.parameters()
    assert any(not torch.equal(own[k], shared[k]) for k in own)
    assert all(torch.equal(everywhere.parameters(client=0)[k], shared[k]) for k in shared)


def test_a_run_that_kept_no_local_models_says_so() -> None:
    table = {"data": "synthetic", "rounds": 1, "method": {"name": "ser", "deploy": "global"}}
    result: Result = run_config(parse(table))
    with pytest.raises(ConfigError, match="kept no models"):
        result.using(deploy="local").summary()
    adaptive = run_config(parse({**table, "method": {**table["method"], "adaptive": True}}))  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="kept no models"):
        adaptive.using(deploy="local").parameters(client=0)


@pytest.mark.proves("ser", "local models where a schedule ends at a rate of 0")
@pytest.mark.parametrize("schedule", ["cosine", "exponential"])
def test_a_schedule_that_ends_at_zero_leaves_a_local_round_at_the_base_rate(
    schedule: Any, few: FederatedDataset, train_rounds: Train
) -> None:
    local = replace(LOCAL, schedule=schedule, decay=0.0)
    runner = train_rounds(SER(local=local), few, "sequential").runner
    method, data, last = runner.method, few.client(1), runner.server["params"]
    assert float(method.local.rate(1, 2)) == 0.0
    drawn = method.draw(generator(0, "personalize/1", 2, few.key(1)), (), len(data.train))
    rate = torch.tensor(LOCAL.lr, dtype=torch.float64)
    expected = method.local.run(method.task, last, data.train, drawn, lr=rate)
    own = runner.federation.states.kept[1]["params"]
    assert all(torch.equal(own[name], expected[name]) for name in expected)
    assert not any(torch.equal(own[name], last[name]) for name in last)
    adapted = method.adapted(method.deployed(runner.server), data.train)["params"]
    assert not any(torch.equal(adapted[name], last[name]) for name in last)


def test_the_term_of_fedprox_is_that_of_fedprox(few: FederatedDataset, train_rounds: Train) -> None:
    """Without strength, SER with `mu` has FedProx's global model to the bit.

    The local round is FedProx's too: its models stay nearer to the global one than FedAvg's.
    """
    prox = train_rounds(SER(mu=5.0, local=regularized(rho=0.0)), few, "sequential").runner
    plain = train_rounds(FedProx(mu=5.0, local=LOCAL), few, "sequential").runner
    for name, value in plain.server["params"].items():
        assert torch.equal(prox.server["params"][name], value)
    free = SER(local=regularized(rho=0.0)).bound(prox.method.task, prox.method.first)
    deployed, data = prox.method.deployed(prox.server), few.client(0).train
    lengths = [
        sum(
            float((new - deployed["params"][name]).square().sum())
            for name, new in method.adapted(deployed, data)["params"].items()
        )
        for method in (prox.method, free)
    ]
    assert 0 < lengths[0] < 0.9 * lengths[1]


def test_the_grid_has_no_strength_and_widths() -> None:
    assert SER.grid["local.ser.rho"] == (0.0, 0.01, 0.05, 0.1, 0.3, 0.5)
    assert SER.grid["local.ser.kappa"] == (0.5, 1.0, 2.0)
    assert not build("ser", {"local.ser.rho": 0.0}).local.regularized  # type: ignore[attr-defined]


def test_a_new_client_adapts_by_a_local_round(few: FederatedDataset, train_rounds: Train) -> None:
    runner = train_rounds(SER(local=LOCAL), few, "sequential").runner
    method, data = runner.method, few.client(0)
    deployed = method.deployed(runner.server)
    state = method.adapted(deployed, data.train)
    drawn = method.draw(torch.Generator().manual_seed(0), (), len(data.train))
    expected = method.local.run(
        method.task, runner.server["params"], data.train, drawn, lr=deployed["lr"]
    )
    own = method.parameters(deployed, state)
    assert all(torch.equal(own[name], expected[name]) for name in expected)


def test_strength_follows_the_clients_sign_entropy(
    few: FederatedDataset, train_rounds: Train, distance: Any
) -> None:
    adaptive = train_rounds(SER(local=LOCAL, adaptive=True), few, rounds=1)
    plain = train_rounds(SER(local=LOCAL), few, rounds=1)
    # before the first measurement every client has the full strength
    assert torch.equal(adaptive.server, plain.server)
    kept = adaptive.runner.federation.states.kept
    entropies = torch.stack([state["entropy"] for state in kept.values()])
    assert ((entropies > 0) & (entropies <= 1)).all()
    assert entropies.std() > 0
    two, other = (train_rounds(SER(local=LOCAL, adaptive=a), few, rounds=2) for a in (True, False))
    assert distance(two.server, other.server) > 1e-6


def test_a_resumed_run_has_the_bits_of_the_unbroken_one(tmp_path: Any) -> None:
    table = {
        "data": "synthetic", "rounds": 2, "checkpoint_every": 1,
        "method": {"name": "ser", "adaptive": True},
    }  # fmt: skip
    first = run_config(parse(table), tmp_path / "run")
    again = resume(tmp_path / "run")
    assert all(
        torch.equal(first.parameters(client=c)[k], again.parameters(client=c)[k])
        for c in range(2) for k in first.parameters()
    )  # fmt: skip


def test_the_regulariser_is_always_on() -> None:
    assert SER().local.regularizer == "ser"
    assert SER(local=LOCAL) == SER(local=replace(LOCAL, regularizer="ser"))


@pytest.mark.parametrize("name", [n for n, cls in methods().items() if issubclass(cls, FedAvg)])
def test_options_two_levels_down_survive_the_config(name: str) -> None:
    options = {"local.regularizer": "ser", "local.ser.rho": 0.25, "ser.when": "posthoc", "lr": 0.05}
    method = build(name, options)
    local = method.local  # type: ignore[attr-defined]
    assert (local.regularizer, local.lr) == ("ser", 0.05)
    assert local.ser == SignEntropy(rho=0.25, when="posthoc")
    assert not local.ser.derives_through
    table = method_table(method)
    assert build(table.name, table.options) == method


def test_wrong_options_two_levels_down_are_named() -> None:
    with pytest.raises(ConfigError, match=r"no option 'local\.ser\.rhoo'.*local\.ser\.rho"):
        build("fedavg", {"local.ser.rhoo": 1.0})
    with pytest.raises(ConfigError, match=r"local\.ser\.when' is 'never'"):
        build("fedavg", {"local.ser.when": "never"})


def test_what_is_not_given_keeps_the_methods_own_default() -> None:
    assert build("ser", {"lr": 0.5}).local.regularizer == "ser"  # type: ignore[attr-defined]
