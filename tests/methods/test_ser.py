"""SER as a method, and its regulariser inside other methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from evenfed.core import tree as trees
from evenfed.core.errors import ConfigError
from evenfed.core.local import LocalTraining
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


def regularized(**options: Any) -> LocalTraining:
    return replace(LOCAL, regularizer="ser", ser=SignEntropy(**options))


def updates(trained: Any) -> list[Any]:
    return [u for (_, e, _), u in sorted(trained.uploads.items()) if e.startswith("train")]


@pytest.mark.parametrize("cls", [FedAvg, FedProx, Scaffold, QFFL])
@pytest.mark.parametrize("engine", ["vectorized", "sequential"])
def test_rho_of_zero_changes_no_bit(
    cls: type[FedAvg], engine: str, binary: FederatedDataset, train_rounds: Train
) -> None:
    plain = train_rounds(cls(local=LOCAL), binary, engine)
    for options in ({"rho": 0.0}, {"rho": 0.0, "when": "step", "control": "random"}):
        off = train_rounds(cls(local=regularized(**options)), binary, engine)
        assert torch.equal(off.everything, plain.everything)


def test_ser_with_rho_of_zero_is_fedavg_to_the_bit(
    binary: FederatedDataset, train_rounds: Train
) -> None:
    ser = train_rounds(SER(local=regularized(rho=0.0)), binary)
    plain = train_rounds(FedAvg(local=LOCAL), binary)
    for name, value in plain.runner.server["params"].items():
        assert torch.equal(ser.runner.server["params"][name], value)


@pytest.mark.parametrize("cls", [FedAvg, FedProx, SER])
def test_bytes_do_not_depend_on_rho(
    cls: type[FedAvg], binary: FederatedDataset, train_rounds: Train
) -> None:
    def traffic(local: LocalTraining) -> list[tuple[int, int, int]]:
        history = train_rounds(cls(local=local), binary).runner.history
        return [(line["bytes_up"], line["bytes_down"], line["exchanges"]) for line in history]

    plain = traffic(LOCAL if cls is not SER else regularized(rho=0.0))
    for rho in (0.01, 0.1, 0.5):
        for when in ("posthoc", "step"):
            assert traffic(regularized(rho=rho, when=when)) == plain
    if cls is SER:
        fedavg = train_rounds(FedAvg(local=LOCAL), binary).runner.history
        assert plain == [(li["bytes_up"], li["bytes_down"], li["exchanges"]) for li in fedavg]


@pytest.mark.parametrize("cls", [FedProx, Scaffold, QFFL])
@pytest.mark.parametrize(
    "options",
    [{}, {"when": "interval", "interval": 2}, {"when": "step"}, {"mode": "gate"},
     {"control": "random", "when": "step"}, {"control": "shrink"}],
)  # fmt: skip
def test_it_works_inside_other_methods_on_both_engines(
    cls: type[FedAvg],
    options: dict[str, Any],
    binary: FederatedDataset,
    train_rounds: Train,
    distance: Any,
) -> None:
    method = cls(local=regularized(**options))
    a, b = (train_rounds(method, binary, engine) for engine in ("vectorized", "sequential"))
    assert distance(a.everything, b.everything) < 1e-5
    plain = train_rounds(cls(local=LOCAL), binary)
    assert distance(a.server, plain.server) > 1e-4, "the regulariser made no difference"


@pytest.mark.parametrize(
    "method", [SER(local=LOCAL, adaptive=True), SER(local=LOCAL, deploy="global")]
)
def test_variants_agree_on_both_engines(
    method: Method, binary: FederatedDataset, train_rounds: Train, distance: Any
) -> None:
    a, b = (train_rounds(method, binary, engine) for engine in ("vectorized", "sequential"))
    assert distance(a.everything, b.everything) < 1e-5


def test_a_client_uses_its_local_round_from_the_last_global_model(
    binary: FederatedDataset, train_rounds: Train
) -> None:
    trained = train_rounds(SER(local=LOCAL), binary)
    runner = trained.runner
    method, federation = runner.method, runner.federation
    # the same round once more, from the same draws
    federation.begin(runner.settings.rounds)
    replies = federation.map(
        method.train, method.deployed(runner.server), draws=_like_personalize(method),
        clients=federation.everyone,
    )  # fmt: skip
    for i, index in enumerate(replies.clients.tolist()):
        own = federation.states.kept[index]["params"]
        assert {k: v.shape for k, v in own.items()} == {k: v.shape for k, v in method.first.items()}
        update = trees.row(replies.uploads["update"], i)
        # draws are another purpose's: full data, so that only the order of batches differs
        moved = trees.subtract(own, runner.server["params"])
        a, b = (torch.cat([t.reshape(-1) for t in tree.values()]) for tree in (moved, update))
        assert torch.nn.functional.cosine_similarity(a, b, dim=0) > 0.9


def _like_personalize(method: Any) -> Any:
    return method.draw


def test_local_and_global_model_can_both_be_evaluated(tmp_path: Any) -> None:
    result = run_config(parse({"data": "synthetic", "rounds": 2, "method": "ser"}))
    everywhere = result.using(deploy="global")
    assert result.summary()["loss"] != everywhere.summary()["loss"]
    plain = run_config(
        parse(
            {"data": "synthetic", "rounds": 2, "method": {"name": "fedavg", "regularizer": "ser"}}
        )
    )
    assert everywhere.summary()["loss"] == plain.summary()["loss"]
    own, shared = result.parameters(client=0), result.parameters()
    assert any(not torch.equal(own[k], shared[k]) for k in own)
    assert all(torch.equal(everywhere.parameters(client=0)[k], shared[k]) for k in shared)


def test_a_run_that_kept_no_local_models_says_so() -> None:
    table = {"data": "synthetic", "rounds": 1, "method": {"name": "ser", "deploy": "global"}}
    result: Result = run_config(parse(table))
    with pytest.raises(ConfigError, match="kept no models"):
        result.using(deploy="local").summary()


def test_a_new_client_adapts_by_a_local_round() -> None:
    result = run_config(parse({"data": "synthetic", "rounds": 2, "method": "ser"}))
    data = result.data.client(0)
    adapted = result.adapt(data.train)
    loss = result.method.task.mean_loss
    mine = adapted.method.parameters(adapted.deployed, adapted.state)
    assert loss(mine, data.train) < loss(result.parameters(), data.train)
    assert adapted.predict(data.test.x).shape == data.test.y.shape


def test_strength_follows_the_clients_sign_entropy(
    binary: FederatedDataset, train_rounds: Train, distance: Any
) -> None:
    adaptive = train_rounds(SER(local=LOCAL, adaptive=True), binary, rounds=1)
    plain = train_rounds(SER(local=LOCAL), binary, rounds=1)
    # before the first measurement every client has the full strength
    assert torch.equal(adaptive.server, plain.server)
    kept = adaptive.runner.federation.states.kept
    entropies = torch.stack([state["entropy"] for state in kept.values()])
    assert ((entropies > 0) & (entropies <= 1)).all()
    assert entropies.std() > 0
    two, other = (
        train_rounds(SER(local=LOCAL, adaptive=a), binary, rounds=2) for a in (True, False)
    )
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
    options = {"local.regularizer": "ser", "local.ser.rho": 0.25, "ser.when": "step", "lr": 0.05}
    method = build(name, options)
    local = method.local  # type: ignore[attr-defined]
    assert (local.regularizer, local.lr) == ("ser", 0.05)
    assert local.ser == SignEntropy(rho=0.25, when="step")
    table = method_table(method)
    assert build(table.name, table.options) == method


def test_wrong_options_two_levels_down_are_named() -> None:
    with pytest.raises(ConfigError, match=r"no option 'local\.ser\.rhoo'.*local\.ser\.rho"):
        build("fedavg", {"local.ser.rhoo": 1.0})
    with pytest.raises(ConfigError, match=r"local\.ser\.when' is 'never'"):
        build("fedavg", {"local.ser.when": "never"})


def test_what_is_not_given_keeps_the_methods_own_default() -> None:
    assert build("ser", {"lr": 0.5}).local.regularizer == "ser"  # type: ignore[attr-defined]
