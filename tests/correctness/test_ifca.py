"""IFCA: rounds by hand, and one cluster is FedAvg."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from evenfed.core.errors import ConfigError
from evenfed.core.local import LocalTraining
from evenfed.engines.participation import Participation
from evenfed.methods.fedavg import FedAvg
from evenfed.methods.ifca import IFCA


def rounds_from(problem: Any, method: IFCA, models: Any, engine: str) -> Any:
    """A runner whose rounds began at the given models (M, 2)."""
    runner = problem.run(method, engine, rounds=0).runner
    line = problem.kind == "line"
    weight = torch.tensor(models, dtype=torch.float32)
    params = {"weight": weight[:, :1, None], "bias": weight[:, 1:]} if line else {
        "weight": weight.unsqueeze(-1)
    }  # fmt: skip
    runner.server = {**runner.server, "params": params}
    return runner


@pytest.mark.proves("ifca", "three rounds by hand, with a client that changes its cluster")
@pytest.mark.parametrize("weighting", ["uniform", "size"])
def test_ifca(line: Any, engine: str, weighting: Any) -> None:
    """`s_i = argmin_m F_i(w_m)`; client i trains `w_{s_i}`;

    `w_m` becomes the (weighted) mean of the models of its clients, or stays without any.
    """
    models = np.array([[0.6, -0.3], [-0.4, 0.4], [9.0, 9.0]])
    method = IFCA(local=line.local, m=3, init="common_noise", weighting=weighting)
    runner = rounds_from(line, method, models, engine)
    weights = line.sizes if weighting == "size" else np.ones(3)
    chosen = []
    for t in range(3):
        losses = np.array([[line.loss(i, w) for w in models] for i in line.clients])
        chosen.append(losses.argmin(1))
        new = np.stack([line.trained(i, models[s]) for i, s in enumerate(chosen[-1])])
        models = np.stack(
            [
                np.average(new[chosen[-1] == m], axis=0, weights=weights[chosen[-1] == m])
                if (chosen[-1] == m).any()
                else models[m]
                for m in range(3)
            ]
        )
        runner.federation.begin(t)
        runner.server = runner.method.round(runner.federation, runner.server)
        runner.federation.commit()
        for m in range(3):
            one = {k: v[m] for k, v in runner.server["params"].items()}
            np.testing.assert_allclose(line.theta(one), models[m], rtol=1e-4, err_msg=f"{t} {m}")
        assert runner.server["cluster"].tolist() == chosen[-1].tolist()
    assert len({tuple(c) for c in chosen}) > 1, "somebody should change the cluster"
    assert all(set(c) == {0, 1} for c in chosen), "two clusters in use, the third dead"


@pytest.mark.proves("ifca", "one cluster is FedAvg, bit for bit")
def test_ifca_with_one_cluster_is_fedavg(
    binary: Any, engine: str, train_rounds: Any, flat: Any
) -> None:
    local = LocalTraining(lr=0.1, batch=8, epochs=2)
    some = Participation(fraction=0.6)
    for weighting in ("uniform", "size"):
        options: Any = {"local": local, "weighting": weighting}
        a = train_rounds(IFCA(m=1, **options), binary, engine, participation=some)
        b = train_rounds(FedAvg(**options), binary, engine, participation=some)
        assert torch.equal(flat(a.runner.server["params"]), b.server)


@pytest.mark.proves("ifca", "clients take the best of the last models, by their training data")
def test_ifca_chooses_again_after_the_last_round(line: Any) -> None:
    runner = line.run(IFCA(local=line.local), rounds=2).runner
    models = [{k: v[m] for k, v in runner.server["params"].items()} for m in range(2)]
    for i in line.clients:
        losses = [line.loss(i, line.theta(model)) for model in models]
        assert int(runner.federation.states.kept[i]["cluster"]) == int(np.argmin(losses))
    # a client that takes no part chooses as one that does
    state = runner.method.adapted(runner.server["params"], runner.data.client(0).train)
    assert int(state["cluster"]) == int(runner.federation.states.kept[0]["cluster"])


def test_ifca_counts_what_the_first_models_cost(line: Any) -> None:
    """`farthest_first` with two models asks twice before the first round."""
    history = line.run(IFCA(local=line.local), rounds=2).runner.history
    assert [record["exchanges"] for record in history] == [3, 1]


@pytest.mark.parametrize(
    ("options", "named"),
    [({"m": 0}, "m must"), ({"init": "zeros"}, "init"), ({"noise": 0.0}, "noise")],
)
def test_options_that_cannot_be_are_refused(options: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        IFCA(**options)
