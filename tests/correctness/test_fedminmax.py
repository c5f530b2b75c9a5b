"""FedMinMax and FedAvg with group-weighted losses: rounds by hand, and limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evenfed.methods.fedavg import FedAvg
from evenfed.methods.fedminmax import FedMinMax
from evenfed.methods.group_weighted import GroupWeighted

Vector = np.ndarray


def group_losses(problem: Any, w: Vector) -> Vector:
    """`R_a` over all clients."""
    losses = np.concatenate([problem.losses(i, w) for i in problem.clients])
    group = np.concatenate(problem.group)
    return np.array([losses[group == a].mean() for a in (0, 1)])


@pytest.mark.proves("fedminmax", "two rounds by hand")
@pytest.mark.parametrize("eta_mu", [0.02, 1.0])
def test_fedminmax(line: Any, engine: str, eta_mu: float) -> None:
    """From `(w, mu)`: `w_i` descends `(1/n_i) sum_j (mu_a / rho_a) l_j`, `w+ = sum (n_i/n) w_i`,

    `mu+ = P(mu + eta_mu R(w))`. With two groups the nearest point of the simplex to `v` has
    `mu_0 = (1 + v_0 - v_1) / 2`, cut to [0, 1]. The rate 1 takes it to a corner.
    """
    rho = np.bincount(np.concatenate(line.group)) / line.sizes.sum()
    w, mu, seen = line.start, rho, []
    for _ in range(line.rounds):
        importance = mu / rho
        models = [line.trained(i, w, weights=importance[line.group[i]]) for i in line.clients]
        v = mu + eta_mu * group_losses(line, w)
        first = np.clip((1 + v[0] - v[1]) / 2, 0, 1)
        w, mu = (
            np.average(np.stack(models), axis=0, weights=line.sizes),
            np.array([first, 1 - first]),
        )
        seen.append(w)
    assert (mu.max() == 1.0) == (eta_mu == 1.0)
    run = line.run(FedMinMax(local=line.local, eta_mu=eta_mu), engine)
    server = run.runner.server
    np.testing.assert_allclose(line.theta(server["params"]), w, rtol=1e-5)
    np.testing.assert_allclose(line.theta(server["average"]), np.mean(seen, axis=0), rtol=1e-5)
    np.testing.assert_allclose(server["mu"].numpy(), mu, rtol=1e-5, atol=1e-7)


@pytest.mark.proves("fedminmax", "with weights that do not move it is FedAvg")
def test_fedminmax_without_steps_is_fedavg(logit: Any) -> None:
    """`mu = rho` gives every example the weight 1."""
    still = FedMinMax(local=logit.local, eta_mu=0.0, iterate="last")
    a = logit.run(still).runner
    b = logit.run(FedAvg(local=logit.local)).runner.server["params"]
    np.testing.assert_allclose(logit.theta(a.method.deployed(a.server)), logit.theta(b), rtol=1e-6)


@pytest.mark.proves("fedminmax", "evens out the groups, down to the minimax value")
def test_fedminmax_comes_to_the_minimax_value(line: Any) -> None:
    """On the line both groups' losses are equal there; the value is SciPy's."""
    from scipy.optimize import minimize

    bound = {"type": "ineq", "fun": lambda v: v[2] - group_losses(line, v[:2])}
    value = minimize(lambda v: v[2], [0.0, 0.0, 20.0], constraints=bound, method="SLSQP").fun
    x, y = np.concatenate(line.x), np.concatenate(line.y)
    assert group_losses(line, np.polyfit(x, y, 1)).max() > 1.01 * value, "plain training is worse"
    one = replace(line, steps=1)
    method = FedMinMax(local=one.local, eta_mu=0.01, iterate="last")
    run = one.run(method, "sequential", rounds=200).runner
    losses = group_losses(line, line.theta(run.server["params"]))
    assert losses.max() == pytest.approx(value, rel=1e-3)


@pytest.mark.proves("group_weighted", "two rounds by hand")
def test_group_weighted(line: Any, engine: str) -> None:
    """Example j of group a counts `N / (|A| m_a)` in the client's mean; clients by size."""
    counts = np.bincount(np.concatenate(line.group))
    factors = line.sizes.sum() / (2 * counts)
    w = line.start
    for _ in range(line.rounds):
        models = [line.trained(i, w, weights=factors[line.group[i]]) for i in line.clients]
        w = np.average(np.stack(models), axis=0, weights=line.sizes)
    run = line.run(GroupWeighted(local=line.local), engine)
    np.testing.assert_allclose(line.theta(run.runner.server["params"]), w, rtol=1e-5)


@pytest.mark.proves("group_weighted", "one step a round is gradient descent on the mean group loss")
def test_group_weighted_descends_the_mean_of_the_group_losses(line: Any) -> None:
    """`w+ = w - eta grad (1/2) (R_0 + R_1)`, whatever the clients' sizes."""
    one = replace(line, steps=1, rounds=1)
    gradients = np.concatenate([line.gradients(i, line.start) for i in line.clients])
    group = np.concatenate(line.group)
    mean = np.mean([gradients[group == a].mean(0) for a in (0, 1)], axis=0)
    run = one.run(GroupWeighted(local=one.local))
    expected = line.start - line.eta * mean
    np.testing.assert_allclose(line.theta(run.runner.server["params"]), expected, rtol=1e-5)


@pytest.mark.proves("group_weighted", "with groups of one size it is FedAvg")
def test_group_weighted_with_equal_groups_is_fedavg(
    logit: Any, train_rounds: Callable[..., Any]
) -> None:
    even = replace(logit, group=tuple(np.arange(len(y)) % 2 for y in logit.y[:1]),
                   x=logit.x[:1], y=logit.y[:1])  # fmt: skip
    a = even.run(GroupWeighted(local=even.local)).runner.server["params"]
    b = even.run(FedAvg(local=even.local)).runner.server["params"]
    np.testing.assert_allclose(logit.theta(a), logit.theta(b), rtol=1e-6)
