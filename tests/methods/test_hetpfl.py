"""What PraFFL and HetPFL promise besides their equations: fronts, choices, rows, groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import evenfed as ef
from evenfed.core.errors import ConfigError, DataError, ModelError
from evenfed.core.examples import Examples
from evenfed.core.local import LocalTraining
from evenfed.data.dataset import ClientData, FederatedDataset, Groups
from evenfed.methods.hetpfl import HetPFL
from evenfed.methods.praffl import PraFFL
from evenfed.metrics.group import demographic_parity_to_overall, equal_opportunity_difference

SHORT = LocalTraining(lr=0.02, batch=64, epochs=4, optimizer="adam")
FUSED: dict[str, Any] = {"local": SHORT, "fusion_steps": 20, "refresh": 1}


@pytest.fixture(scope="module")
def data() -> FederatedDataset:
    return ef.load("synthetic", seed=0, examples=900, test_examples=450)


def train(method: ef.Method, data: FederatedDataset, **options: Any) -> ef.Result:
    return ef.train(
        method, data, **{"rounds": 4, "evaluate_every": 0, "engine": "vectorized"} | options
    )


@pytest.fixture(scope="module")
def result(data: FederatedDataset) -> ef.Result:
    return train(HetPFL(**{**FUSED, "local": replace(SHORT, epochs=12)}), data)


def test_it_learns_a_front_on_every_client_and_for_all(result: ef.Result) -> None:
    summary = result.front_summary("test", models=101)
    for where in ("local", "global"):
        assert summary[f"{where}_hypervolume"] > summary[f"{where}_hypervolume_constant"] + 0.1
        assert summary[f"{where}_points_nondominated"] >= 3
    front = result.front("test", models=101)
    accurate, fair = front.points[0], front.points[-1]
    assert accurate[0] < fair[0] - 0.05, "the accurate end errs less"
    assert fair[1] < accurate[1] - 0.05, "the fair end differs less between groups"


@pytest.mark.proves("hetpfl", "all models of a front at once equal one after the other")
@pytest.mark.parametrize("deploy", ["own", "global"])
def test_a_front_is_what_each_model_gives_alone(result: ef.Result, deploy: Any) -> None:
    asked = [0.0, 0.3, 0.9, 1.0]
    together = result.front("val", deploy=deploy, preferences=asked)
    for i, p in enumerate(asked):
        alone = result.using(preference=p, deploy=deploy).evaluation("val")
        assert torch.equal(together.counts.confusion[i], alone.counts.total().confusion)
    client = "client-1"
    module = result.model(None if deploy == "global" else client, preference=0.9)
    own = result.data.client(1).val
    with torch.no_grad():
        wrong = (module(own.x).argmax(-1) != own.y).double().mean()
    front = result.front("val", client, deploy=deploy, preferences=asked)
    assert front.points[2, 0] == pytest.approx(float(wrong))


def test_the_plain_module_of_a_client_is_of_the_models_own_kind(result: ef.Result) -> None:
    module = result.model(client=0, preference=0.2)
    assert [type(layer) for layer in module] == [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear]


def test_a_preference_is_chosen_on_validation_data_alone(result: ef.Result) -> None:
    front = result.front("val", models=101)
    table = front.table()
    chosen = front.choose(max_disparity=0.1)
    allowed = table[table.disparity <= 0.1]
    assert table.error[chosen] == allowed.error.min()
    other = front.choose(max_error=0.3)
    assert table.disparity[other] == table[table.error <= 0.3].disparity.min()
    test = result.front("test", models=101)
    for choice in (lambda: test.choose(max_disparity=0.1), test.lookup):
        with pytest.raises(ConfigError, match="test data"):
            choice()
    with pytest.raises(DataError, match="no model of the front has error of at most"):
        front.choose(max_error=0.0)
    with pytest.raises(ConfigError, match="either"):
        front.choose()


def test_a_lookup_is_monotone_where_it_was_made(result: ef.Result) -> None:
    front = result.front("val", client=2, models=201)
    lookup = front.lookup()
    scale = lookup(np.linspace(0, 1, 9))
    points = result.front("val", client=2, preferences=scale.tolist()).points
    assert (np.diff(points[:, 0]) >= 0).all()
    assert (np.diff(points[:, 1]) <= 0).all()
    assert front.metrics()["disparity_rise"] >= 0
    assert result.model(client=2, preference=float(lookup(0.5))) is not None
    with pytest.raises(ConfigError, match="shares"):
        lookup(1.5)


def test_a_client_that_took_no_part_uses_the_fused_model(result: ef.Result) -> None:
    new = result.data.client(0).test
    expected = result.using(deploy="global").evaluation("test").counts.confusion[0]
    assert torch.equal(result.adapt(new).counts(new).confusion, expected)


def test_the_result_file_holds_fronts_and_the_cost_of_the_last_exchanges(
    result: ef.Result,
) -> None:
    measured = result.measured()
    expected = result.front_summary("test")["global_hypervolume"]
    assert measured["front"]["global_hypervolume"] == pytest.approx(expected)
    # refresh, hypernetworks, 20 gradients of the FusionNet
    assert measured["cost"]["exchanges"] == result.history["exchanges"].sum() + 22
    assert measured["cost"]["bytes_up"] > result.history["bytes_up"].sum()


def test_loss_geometry_is_that_of_the_preference_in_use(result: ef.Result) -> None:
    a, b = (result.using(preference=p).geometry(probes=2, rows=64) for p in (0.1, 0.9))
    assert np.isfinite(a.to_numpy()).all()
    assert not np.allclose(a["hessian_trace"], b["hessian_trace"])


def test_other_methods_have_no_front(data: FederatedDataset) -> None:
    plain = train(ef.FedAvg(), data, rounds=1)
    for ask in (plain.front, lambda: plain.model(preference=0.5)):
        with pytest.raises(ConfigError, match="one model, not one for every preference"):
            ask()


def test_without_a_mean_no_hypernetwork_leaves_a_client(data: FederatedDataset) -> None:
    result = train(PraFFL(local=SHORT, average=False), data, rounds=1)
    assert not result.method.united_in(result.server)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="no global model"):
        result.front("val")
    assert result.front("val", deploy="own", models=5).points.shape == (5, 2)
    assert not [k for k in result.front_summary("val", models=5).index if k.startswith("global")]


@pytest.mark.parametrize("phf", ["server", "tuned"])
def test_rows_that_leave_are_declared_and_warned_of(data: FederatedDataset, phf: Any) -> None:
    said: list[str] = []

    class Listener:
        def say(self, message: str) -> None:
            said.append(message)

        def round_done(self, line: dict[str, Any]) -> None:
            pass

    result = train(HetPFL(phf=phf, **FUSED), data, rounds=1, observer=Listener())
    assert any("leave the clients" in line and "phf='federated'" in line for line in said)
    assert {r.part for r in result.method.reveals if r.size == "rows"} >= {"features", "labels"}
    assert "rows" not in {r.size for r in HetPFL().reveals}
    fused = result.front("val", models=21).hypervolume()
    mean = train(HetPFL(phf="none", **FUSED), data, rounds=1).front("val", models=21)
    assert abs(fused - mean.hypervolume()) > 1e-6


def several_groups(groups: int) -> FederatedDataset:
    """The favourable label is the rarer, the higher the group's code."""
    rng = np.random.default_rng(0)
    clients = []
    for name in ("a", "b"):
        group = rng.integers(groups, size=600)
        x = rng.normal(size=(600, 3)) + 0.8 * group[:, None] * np.array([1.0, 0.0, 0.0])
        y = (x[:, 0] + 0.5 * x[:, 1] + rng.normal(size=600) < 1.0).astype(np.int64)
        parts = [
            Examples.of(
                torch.tensor(x[s], dtype=torch.float32), torch.tensor(y[s]), torch.tensor(group[s])
            )
            for s in (slice(0, 400), slice(400, 500), slice(500, 600))
        ]
        clients.append(ClientData(name, *parts))
    labels = tuple(f"g{i}" for i in range(groups))
    schema = replace(
        ef.load("synthetic", seed=0).schema, name="several", groups=Groups(("g",), (labels,))
    )
    return FederatedDataset(schema, clients)


@pytest.mark.parametrize("fairness", ["covariance", "demographic_parity", "equal_opportunity"])
def test_four_groups_become_alike_along_the_front(fairness: Any) -> None:
    method = PraFFL(local=replace(SHORT, epochs=8), fairness=fairness)
    result = train(method, several_groups(4))
    measure = (
        equal_opportunity_difference
        if fairness == "equal_opportunity"
        else demographic_parity_to_overall
    )
    front = result.front("test", preferences=[0.0, 1.0])
    accurate, fair = measure(front.counts)
    assert fair < 0.75 * accurate
    assert accurate > 0.1


def test_a_fairness_loss_that_is_none_is_warned_of(data: FederatedDataset) -> None:
    advice = PraFFL(fairness="squared_covariance").advice(None)  # type: ignore[arg-type]
    assert "not fairness" in advice[0]
    assert PraFFL().advice(None) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"eps": 0.5}, "eps"),
        ({"body_share": 1.0}, "body_share"),
        ({"n_preferences": 1}, "n_preferences"),
        ({"fairness": "none"}, "fairness"),
        ({"alpha_bounds": (1.5, 2.0)}, "alpha_bounds"),
        ({"alpha_bounds": (0.0, 2.0)}, "alpha_bounds"),
        ({"fusion_steps": 0}, "fusion_steps"),
        ({"preference": 1.5}, "preference"),
        ({"average": False}, "average"),
        ({"local": LocalTraining(optimizer="entropy_sgd")}, "local.optimizer"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        HetPFL(**options)


def test_refreshed_heads_agree_on_both_engines(
    make_dataset: Any, train_rounds: Callable[..., Any], distance: Any
) -> None:
    """Rounds are short, the refresh is most of the training."""
    local = LocalTraining(lr=0.02, batch=16, epochs=2, optimizer="adam")
    method = HetPFL(local=local, refresh=4, phf="none")
    data = make_dataset(sizes=(32, 32))
    a, b = (
        train_rounds(method, data, engine, rounds=1).everything
        for engine in ("vectorized", "sequential")
    )
    assert distance(a, b) < 1e-5
    plain = train_rounds(replace(method, refresh=0), data, rounds=1)
    assert distance(a[: len(plain.server)], plain.server) > 1e-3


def test_a_model_that_cannot_be_parted_is_refused_before_training(
    data: FederatedDataset, train_rounds: Callable[..., Any]
) -> None:
    with pytest.raises(ModelError, match="latent"):
        train(PraFFL(), data, model="linear")
    result = train(PraFFL(local=SHORT, latent=3), data, rounds=1, model="linear")
    assert result.server["params"]["latent.weight"].shape == (3, 3)


@pytest.mark.parametrize("method", [PraFFL, HetPFL])
def test_a_client_that_never_took_part_keeps_the_mean_hypernetwork(
    method: Callable[..., ef.Method], data: FederatedDataset
) -> None:
    options = {k: v for k, v in FUSED.items() if method is HetPFL or k != "fusion_steps"}
    result = train(method(**options), data, rounds=2, participation=ef.Participation(number=1))
    states = [result._state(client) for client in range(len(data))]
    took_part = [float(state["rounds"]) > 0 for state in states]
    assert not all(took_part), "two rounds of one client each leave one of three out"
    mean = torch.stack([s["beta"] for s, t in zip(states, took_part, strict=True) if t]).mean(0)
    for state, trained in zip(states, took_part, strict=True):
        assert trained or torch.allclose(state["beta"], mean, atol=1e-6)
