"""PFFL: rounds by hand, the optimum of the constrained problem, Fairlearn, limits, certificates.

Formulas: Hu, Wu, Smith (2024), Section 3 and 4.1, with `F = sum_k p_k f_k`:
`G = beta F + sum_z lambda_z (R_z - zeta_z)`, `lambda_z = B e^theta_z / (1 + sum e^theta)`,
client k descends `beta f_k + (1/p_k) sum_z lambda_z (1/m_z) sum_{i in k, i in z} l_i`,
`theta += eta_theta (R_z - zeta_z)`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from evenfed.core.errors import ConfigError
from evenfed.core.examples import Examples
from evenfed.core.local import LocalTraining
from evenfed.data.dataset import ClientData, FederatedDataset, Groups, Schema
from evenfed.methods.certificate import Certify, generalisation
from evenfed.methods.fedminmax import FedMinMax
from evenfed.methods.multipliers import Multipliers, climbed, first_climb
from evenfed.methods.pffl import PFFL
from evenfed.methods.saddle import Saddle

Vector = np.ndarray


def cells(problem: Any, by_label: bool) -> list[Vector]:
    """Cell of every example, client by client."""
    pairs = zip(problem.group, problem.y, strict=True)
    return [g * 2 + y if by_label else g for g, y in pairs]


def descended(problem: Any, i: int, w: Vector, weights: Vector, rate: float) -> Vector:
    """Steps along `sum_j weights_j grad l_j` of client i."""
    at = w.copy()
    for _ in range(problem.steps):
        at = at - rate * (weights[:, None] * problem.gradients(i, at)).sum(0)
    return at


def mean_losses(problem: Any, cell: list[Vector], w: Vector) -> Vector:
    """`R_z` over all clients."""
    losses = np.concatenate([problem.losses(i, w) for i in problem.clients])
    where = np.concatenate(cell)
    return np.array([losses[where == z].mean() for z in range(where.max() + 1)])


def share(problem: Any, weighting: str) -> Vector:
    sizes = problem.sizes
    return sizes / sizes.sum() if weighting == "size" else np.full(len(sizes), 1 / len(sizes))


def exponentiated(theta: Vector, bound: float) -> Vector:
    return bound * np.exp(theta) / (1 + np.exp(theta).sum())


BETA, BOUND, RATE = 0.7, 3.0, 1.5
OPTIONS = {"beta": BETA, "lambda_bound": BOUND, "dual_lr": RATE}


def by_hand(
    problem: Any, zeta: Vector, by_label: bool, weighting: str, lagged: bool
) -> tuple[list[Vector], Vector, list[Vector]]:
    """Models after each round, the last theta, and the multipliers of each round."""
    cell = cells(problem, by_label)
    m_z = np.bincount(np.concatenate(cell)).astype(float)
    p, w, theta = share(problem, weighting), problem.start, np.zeros(len(m_z))
    models, used = [], []
    for _ in range(problem.rounds):
        lam = exponentiated(theta, BOUND)
        new = np.zeros(2)
        for i in problem.clients:
            weights = BETA / problem.sizes[i] + (lam / m_z)[cell[i]] / p[i]
            new += p[i] * descended(problem, i, w, weights, problem.eta / (BETA + lam.sum()))
        theta = theta + RATE * (mean_losses(problem, cell, w if lagged else new) - zeta)
        w = new
        models.append(w)
        used.append(lam)
    return models, theta, used


def compare(problem: Any, run: Any, expected: tuple[list[Vector], Vector, list[Vector]]) -> None:
    models, theta, used = expected
    server = run.runner.server
    close = {"rtol": 2e-5, "atol": 1e-6}
    np.testing.assert_allclose(problem.theta(server["params"]), models[-1], **close)
    np.testing.assert_allclose(problem.theta(server["average"]), np.mean(models, axis=0), **close)
    np.testing.assert_allclose(server["theta"].numpy(), theta, **close)
    np.testing.assert_allclose(server["multipliers"].numpy(), used[-1], **close)
    np.testing.assert_allclose(
        server["average_multipliers"].numpy(), np.mean(used, axis=0), **close
    )


@pytest.mark.proves("pffl", "two rounds by hand, bounded group loss")
@pytest.mark.parametrize("weighting", ["uniform", "size"])
@pytest.mark.parametrize("sums", ["exchange", "piggyback"])
def test_rounds_with_bounded_group_loss(line: Any, engine: str, weighting: Any, sums: Any) -> None:
    """A bound for each group; regression. `piggyback`: theta moves along losses of the old model.

    The factor `1/p_k` of the multipliers' part is what makes the mean over clients G.
    """
    zeta = np.array([2.0, 6.0])
    method = PFFL(local=line.local, zeta=(2.0, 6.0), weighting=weighting, sums=sums, **OPTIONS)
    run = line.run(method, engine)
    compare(line, run, by_hand(line, zeta, False, weighting, sums == "piggyback"))
    exchanges = [entry["exchanges"] for entry in run.runner.history]
    assert exchanges == ([3, 2] if sums == "exchange" else [2, 1]), "groups are counted once"


@pytest.mark.proves("pffl", "two rounds by hand, conditional bounded group loss")
def test_rounds_with_conditional_bounded_group_loss(logit: Any, engine: str) -> None:
    """A bound for each label, `[zeta_y]`, of both groups: four cells."""
    method = PFFL(
        constraint="conditional_bounded_group_loss", zeta=(0.3, 0.9), local=logit.local, **OPTIONS
    )
    expected = by_hand(logit, np.array([0.3, 0.9, 0.3, 0.9]), True, "uniform", False)
    compare(logit, logit.run(method, engine), expected)


@pytest.mark.proves("pffl", "a label that is not bounded gets no multiplier")
def test_one_label_alone(logit: Any) -> None:
    method = PFFL(
        constraint="conditional_bounded_group_loss", labels=(1,), zeta=0.3, local=logit.local,
        **OPTIONS,
    )  # fmt: skip
    first = logit.run(method, rounds=1).runner.server["multipliers"].tolist()
    # two cells and the slack share B in the first round
    assert first == pytest.approx([0.0, BOUND / 3, 0.0, BOUND / 3])
    later = logit.run(method).runner.server["multipliers"].tolist()
    assert later[::2] == [0.0, 0.0]
    assert later[1] != later[3]


@pytest.mark.proves("pffl", "two rounds by hand with multipliers of each client (local bounds)")
def test_rounds_with_local_bounds(line: Any, engine: str) -> None:
    """Client k descends `beta f_k + sum_a lambda_a^k R_a^k` over the groups that it has.

    From its second round on, its theta first moves along its losses of the received model.
    """
    zeta, w, thetas = 4.0, line.start, [np.zeros(2) for _ in line.clients]
    for t in range(line.rounds):
        models = []
        for i in line.clients:
            group, n = line.group[i], line.sizes[i]
            has = np.array([(group == a).any() for a in (0, 1)])
            if t:
                losses = line.losses(i, w)
                means = [losses[group == a].mean() if has[a] else zeta for a in (0, 1)]
                thetas[i] = thetas[i] + RATE * (np.array(means) - zeta)
            powers = np.exp(thetas[i]) * has
            lam = BOUND * powers / (1 + powers.sum())
            count = np.array([max(1, (group == a).sum()) for a in (0, 1)])
            weights = BETA / n + (lam / count)[group]
            models.append(descended(line, i, w, weights, line.eta / (BETA + lam.sum())))
        w = np.mean(models, axis=0)
    run = line.run(PFFL(local=line.local, zeta=zeta, scope="local", **OPTIONS), engine)
    np.testing.assert_allclose(line.theta(run.runner.server["params"]), w, rtol=2e-5)
    kept = run.runner.federation.states.kept
    for i in line.clients:
        np.testing.assert_allclose(kept[i]["theta"].numpy(), thetas[i], rtol=2e-5, atol=1e-6)


@pytest.mark.proves("pffl", "beta = 0, B = 1, zeta = 0 is FedMinMax, step by step")
@pytest.mark.parametrize("rounds", [1, 3])
def test_with_minmax_it_is_fedminmax(logit: Any, rounds: int) -> None:
    """With the projected rule, sums at the received model, and clients by size.

    FedMinMax weighs example i by `mu_a / rho_a = mu_a N / m_a` under the client's mean and averages
    by size; PFFL by `lambda_a / (p_k m_a)` under the client's sum: with `p_k = m_k / N` the same.
    """
    special = PFFL(
        constraint="minmax", beta=0.0, lambda_bound=1.0, zeta=0.0, dual="projected", dual_lr=0.3,
        shrink=1.0, sums="piggyback", weighting="size", local=logit.local,
    )  # fmt: skip
    a = logit.run(special, rounds=rounds).runner.server
    b = logit.run(FedMinMax(eta_mu=0.3, local=logit.local), rounds=rounds).runner.server
    np.testing.assert_allclose(logit.theta(a["params"]), logit.theta(b["params"]), rtol=1e-5)
    np.testing.assert_allclose(logit.theta(a["average"]), logit.theta(b["average"]), rtol=1e-5)
    np.testing.assert_allclose(a["theta"].numpy(), b["mu"].numpy(), rtol=1e-6)
    other = logit.run(replace(special, dual="exponentiated"), rounds=rounds).runner.server
    assert (rounds == 1) == np.allclose(logit.theta(other["params"]), logit.theta(b["params"]))


@pytest.mark.proves("pffl", "bounds that nobody violates leave FedAvg")
def test_with_loose_bounds_it_becomes_fedavg(logit: Any) -> None:
    """`r < 0` drives theta down: by `e^(-eta_theta t)` the multipliers vanish."""
    from evenfed.methods.fedavg import FedAvg

    loose = PFFL(zeta=50.0, dual_lr=10.0, iterate="last", local=logit.local)
    run = logit.run(loose, rounds=2)
    assert float(run.runner.server["multipliers"].max()) < 1e-100
    plain = FedAvg(weighting="uniform", local=logit.local)
    start = logit.run(loose, rounds=1).runner.server["params"]
    again = replace(logit, start=logit.theta(start)).run(plain, rounds=1).runner.server
    np.testing.assert_allclose(
        logit.theta(run.runner.server["params"]), logit.theta(again["params"]), rtol=1e-5
    )


@pytest.mark.proves("pffl", "the step shrinks when the regret stalls, as Fairlearn's rule says")
def test_the_step_shrinks_when_the_regret_stalls() -> None:
    """Looks at rounds 8, 13, 21, 34 (each 1.6 times later than the last, first after 5).

    With one cell, `lambda = B/2` and `r = 1` the regret is `B - B/2` in every round: never better,
    so each look but the first, which has nothing to compare with, multiplies the step by 0.8.
    """
    kind = Multipliers("exponentiated", 4.0, slack=True)
    one, active = torch.ones(1, dtype=torch.float64), torch.ones(1, dtype=torch.bool)
    climb, steps = first_climb(1, 1.0), []
    for _ in range(36):
        climb, regret = climbed(climb, 2.0 * one, one, active, kind, 0.8)
        assert regret == pytest.approx(2.0)
        steps.append(float(climb["step"]))
    changes = [t for t in range(1, 36) if steps[t] != steps[t - 1]]
    assert changes == [13, 21, 34]
    assert steps[-1] == pytest.approx(0.8**3)


def silos(seed: int, clients: int = 4, n: int = 40, share: float = 0.25) -> FederatedDataset:
    """Equal clients; a small group whose labels follow another rule."""
    rng = np.random.default_rng(seed)
    made = []
    for k in range(clients):
        group = (rng.random(n) < share).astype(np.int64)
        x = rng.normal(size=(n, 2)) + 0.3 * rng.normal(size=2)
        score = np.where(group == 0, x @ [1.5, -1.0], x @ [-0.5, 1.0])
        y = (score + 0.5 * rng.logistic(size=n) > 0).astype(np.int64)
        made.append(client(k, x, y, group))
    return federated("binary", made)


def skewed(seed: int, width: int = 8) -> FederatedDataset:
    """Features that differ by a hundred in scale, so that plain L-BFGS needs many steps."""
    rng = np.random.default_rng(seed)
    scales = np.geomspace(0.03, 3.0, width)
    made = []
    for k, n in enumerate((30, 50, 70)):
        x = rng.normal(size=(n, width))
        group = (rng.random(n) < 0.3).astype(np.int64)
        score = np.where(group == 0, x[:, 0] + x[:, -1], x[:, 1] - x[:, -1])
        y = (score + rng.logistic(size=n) > 0).astype(np.int64)
        made.append(client(k, x * scales, y, group))
    return federated("binary", made)


def client(k: int, x: Vector, y: Vector, group: Vector) -> ClientData:
    labels = torch.tensor(y) if y.dtype.kind == "i" else torch.tensor(y, dtype=torch.float32)
    data = Examples.of(torch.tensor(x, dtype=torch.float32), labels, torch.tensor(group))
    return ClientData(f"c{k}", data, data, data)


def federated(kind: Any, clients: list[ClientData]) -> FederatedDataset:
    groups = Groups(("group",), (("large", "small"),))
    shape = tuple(clients[0].train.x.shape[1:])
    return FederatedDataset(
        Schema("silos", kind, 2 if kind == "binary" else 1, shape, groups=groups), clients
    )


class Central:
    """The pooled problem in NumPy, for SciPy: a 2-class linear model as a vector (W, b)."""

    def __init__(self, data: FederatedDataset, by_label: bool = False) -> None:
        self.parts = [(c.train.x.double().numpy(), c.train.y.numpy()) for c in data]
        group = np.concatenate([c.train.group.numpy() for c in data])
        label = np.concatenate([y for _, y in self.parts])
        self.cell = group * 2 + label if by_label else group

    def losses(self, w: Vector, x: Vector, y: Vector) -> Vector:
        logits = x @ w[: 2 * x.shape[1]].reshape(2, -1).T + w[2 * x.shape[1] :]
        return np.logaddexp(logits[:, 0], logits[:, 1]) - logits[np.arange(len(y)), y]

    def objective(self, w: Vector) -> float:
        return float(np.mean([self.losses(w, x, y).mean() for x, y in self.parts]))

    def groups(self, w: Vector) -> Vector:
        losses = np.concatenate([self.losses(w, x, y) for x, y in self.parts])
        return np.array([losses[self.cell == z].mean() for z in range(self.cell.max() + 1)])

    def solve(self, zeta: Vector | float) -> Any:
        bound = {"type": "ineq", "fun": lambda w: zeta - self.groups(w)}
        return _slsqp(self.objective, np.zeros(6), bound)

    def minimax(self) -> float:
        bound = {"type": "ineq", "fun": lambda v: v[-1] - self.groups(v[:-1])}
        return float(_slsqp(lambda v: v[-1], np.append(np.zeros(6), 2.0), bound).fun)


def _slsqp(function: Any, start: Vector, bound: Any) -> Any:
    options = {"maxiter": 500, "ftol": 1e-12}
    return minimize(function, start, constraints=bound, method="SLSQP", options=options)


def vector(params: dict[str, torch.Tensor]) -> Vector:
    parts = sorted(params, reverse=True)  # weight before bias
    return np.concatenate([params[k].detach().double().numpy().ravel() for k in parts])


STEP = LocalTraining(lr=2.0, batch=0, epochs=1)
"""One step a round: several let clients drift, which moves the point that a run settles at."""


@pytest.mark.proves("pffl", "reaches the constrained optimum that SLSQP finds on pooled data")
@pytest.mark.parametrize("by_label", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_reaches_the_constrained_optimum(
    train_rounds: Callable[..., Any], seed: int, by_label: bool
) -> None:
    """Bounds half-way between the minimax value and the worst loss of plain training."""
    data = silos(seed)
    central = Central(data, by_label)
    plain = minimize(central.objective, np.zeros(6))
    zeta = 0.5 * (central.minimax() + float(central.groups(plain.x).max()))
    best = central.solve(zeta)
    assert best.fun > plain.fun + 3e-3, "the bound must cost something"
    kind = "conditional_bounded_group_loss" if by_label else "bounded_group_loss"
    method = PFFL(
        constraint=kind, zeta=float(zeta), lambda_bound=5.0, iterate="last", local=STEP,
    )  # fmt: skip
    run = train_rounds(method, data, rounds=80, model="linear", evaluate=False)
    found = vector(run.runner.server["params"])
    assert central.objective(found) == pytest.approx(best.fun, abs=1e-3)
    assert central.groups(found).max() <= zeta + 1e-3


@pytest.mark.proves("pffl", "agrees with Fairlearn's ExponentiatedGradient on pooled data")
def test_agrees_with_fairlearn(train_rounds: Callable[..., Any]) -> None:
    """Linear regression under a bound on each group's squared error; B = 1 / eps.

    Fairlearn draws one of its predictors for each prediction, and so bounds expected losses; the
    mean of linear predictors is one too and, the loss being convex, is no worse for any group.
    Agreement: the mean of Fairlearn's coefficients is ours, and its expected losses are ours up to
    twice its own duality gap. Its objective counts examples, so ours does (`weighting="size"`).
    """
    from fairlearn.reductions import BoundedGroupLoss, ExponentiatedGradient, SquareLoss
    from sklearn.linear_model import LinearRegression

    rng = np.random.default_rng(0)
    made = []
    for k, n in enumerate((20, 40)):
        group = (rng.random(n) < 0.3).astype(np.int64)
        x = rng.normal(size=(n, 2))
        rule = np.where(group == 0, x @ [1.0, -0.5] + 0.2, x @ [0.2, 0.6] - 0.3)
        made.append(client(k, x, rule + 0.3 * rng.normal(size=n), group))
    x = np.concatenate([c.train.x.numpy() for c in made]).astype(float)
    y = np.concatenate([c.train.y.numpy() for c in made]).astype(float)
    group = np.concatenate([c.train.group.numpy() for c in made])
    plain = (LinearRegression().fit(x, y).predict(x) - y) ** 2
    zeta, bound = 0.9 * float(plain[group == 1].mean()), 4.0
    assert zeta > plain[group == 0].mean()
    fair = ExponentiatedGradient(
        LinearRegression(), BoundedGroupLoss(SquareLoss(-100.0, 100.0), upper_bound=zeta),
        eps=1 / bound, nu=1e-4, max_iter=25,
    )  # fmt: skip
    with warnings.catch_warnings():  # Fairlearn uses what the newest pandas calls deprecated
        warnings.simplefilter("ignore")
        fair.fit(x, y, sensitive_features=group)
    used = [(fair.weights_[i], h) for i, h in fair.predictors_.items() if fair.weights_[i] > 0]
    theirs = sum(q * np.append(h.coef_, h.intercept_) for q, h in used)
    expected = [
        sum(q * np.mean((h.predict(x[group == a]) - y[group == a]) ** 2) for q, h in used)
        for a in (0, 1)
    ]
    method = PFFL(
        zeta=zeta, lambda_bound=bound, weighting="size", iterate="last", dual_lr=1.0,
        local=LocalTraining(lr=0.3, batch=0, epochs=1),
    )  # fmt: skip
    run = train_rounds(
        method, federated("regression", made), "sequential", rounds=100, model="linear"
    )
    ours = vector(run.runner.server["params"])
    errors = (x @ ours[:2] + ours[2] - y) ** 2
    losses = [errors[group == a].mean() for a in (0, 1)]
    np.testing.assert_allclose(ours, theirs, atol=5e-3)
    np.testing.assert_allclose(losses, expected, atol=2 * fair.best_gap_ + 2e-3)
    assert max(losses) <= zeta + 1e-3


@pytest.mark.proves("pffl", "infeasible bounds are found and proved, feasible ones too")
@pytest.mark.parametrize("by_label", [False, True])
def test_a_certificate_tells_feasible_from_infeasible(
    train_rounds: Callable[..., Any], by_label: bool
) -> None:
    """Bounds 2 % above, at and 2 % below the minimax value, which SLSQP gives.

    At the value itself neither can be shown. Three rounds on purpose: they meet no bound.
    """
    data = silos(3)
    central = Central(data, by_label)
    value = central.minimax()
    kind = "conditional_bounded_group_loss" if by_label else "bounded_group_loss"
    for factor, status in ((1.02, "feasible"), (1.0, "undetermined"), (0.98, "infeasible")):
        method = PFFL(constraint=kind, zeta=factor * value, local=STEP)
        run = train_rounds(method, data, rounds=3, model="linear", evaluate=False).runner
        made = run.method.certificate(run.federation, run.server, data.schema)
        assert made.status == status
        low, high = made.minimax
        assert value - 1e-3 < low <= value + 1e-6
        assert value - 1e-6 <= high < value + 1e-3
        assert made.violation > 1e-3, "three rounds cannot meet the bounds"
        assert "does not meet" in " ".join(made.sentences())
    assert made.proof.distance > 100
    weights = np.array(list(made.proof.multipliers.values()))
    assert weights.sum() == pytest.approx(1)
    lowest = minimize(lambda w: weights @ (central.groups(w) - 0.98 * value), np.zeros(6)).fun
    assert lowest == pytest.approx(made.proof.value, abs=1e-4)
    assert lowest > 0


@pytest.mark.proves("pffl", "certified gaps and excesses bound the true ones, for each iterate")
@pytest.mark.parametrize(
    ("iterate", "decay", "curved"),
    [("average", 0.0, False), ("tail", 0.01, False), ("last", 0.0, True), ("tail", 0.01, True)],
)
def test_a_certificate_bounds_the_truth(
    train_rounds: Callable[..., Any], iterate: Any, decay: float, curved: bool
) -> None:
    """The true optimum of the problem (with the ridge of weight decay) is SLSQP's."""
    data = silos(0)
    central = Central(data)
    zeta = 0.8

    def objective(w: Vector) -> float:
        return central.objective(w) + 0.5 * decay * float(w @ w)

    best = _slsqp(
        objective, np.zeros(6), {"type": "ineq", "fun": lambda w: zeta - central.groups(w)}
    )
    method = PFFL(
        zeta=zeta, lambda_bound=5.0, iterate=iterate, local=replace(STEP, weight_decay=decay),
        certify=Certify(curved=curved),
    )  # fmt: skip
    run = train_rounds(method, data, rounds=30, model="linear", evaluate=False).runner
    made = run.method.certificate(run.federation, run.server, data.schema)
    w = vector(run.method.deployed(run.server))
    assert made.iterate == iterate
    assert made.violation == pytest.approx(central.groups(w).max() - zeta, abs=1e-6)
    assert [c.loss for c in made.cells] == pytest.approx(central.groups(w).tolist(), abs=1e-6)
    assert made.objective == pytest.approx(central.objective(w), abs=1e-6)
    true = objective(w) - best.fun
    assert true - 1e-6 <= made.objective_excess <= true + 2 * made.gap
    assert made.violation <= made.violation_limit
    lam = run.method.returned(run.server)[1].numpy()
    low = minimize(lambda v: objective(v) + lam @ (central.groups(v) - zeta), np.zeros(6)).fun
    g = objective(w) + lam @ (central.groups(w) - zeta)
    high = objective(w) + 5.0 * max(0.0, central.groups(w).max() - zeta)
    assert made.gap == pytest.approx(max(g - low, high - g), abs=2e-4)
    assert ("rigorous" in made.gap_holds) == bool(decay)


@pytest.mark.proves("pffl", "second derivatives change the way to a certificate, not what it says")
@pytest.mark.parametrize("weighting", ["uniform", "size"])
@pytest.mark.parametrize("engine", ["vectorized", "sequential"])
def test_a_certificate_by_curvature_says_the_same_sooner(
    train_rounds: Callable[..., Any], engine: str, weighting: Any
) -> None:
    data = skewed(1)
    found = []
    for curved in (False, True):
        method = PFFL(zeta=0.8, local=STEP, weighting=weighting, certify=Certify(curved=curved))
        run = train_rounds(method, data, engine, rounds=10, model="linear", evaluate=False).runner
        found.append(run.method.certificate(run.federation, run.server, data.schema))
    plain, rounded = found
    assert rounded.exchanges < plain.exchanges
    assert rounded.status == plain.status
    assert rounded.violation == pytest.approx(plain.violation, abs=1e-9)
    assert rounded.gap == pytest.approx(plain.gap, abs=1e-4)
    assert rounded.least_excess == pytest.approx(plain.least_excess, abs=1e-3)
    assert rounded.least_excess[1] - rounded.least_excess[0] < 1e-3


@pytest.mark.proves("pffl", "the least excess of one bound is that of another, less their distance")
def test_a_least_excess_that_is_known_serves_all_bounds(train_rounds: Callable[..., Any]) -> None:
    data = silos(2)

    def run_of(zeta: float) -> Any:
        method = PFFL(zeta=zeta, local=STEP, certify=Certify(curved=True))
        return train_rounds(method, data, rounds=10, model="linear", evaluate=False).runner

    first = run_of(0.0)
    saddle = Saddle(first.method, first.federation, first.server, curved=True)
    known = saddle.least_excess(saddle.vector(first.server["params"]))
    run = run_of(0.8)
    ask = run.method.certificate
    fresh = ask(run.federation, run.server, data.schema)
    given = ask(run.federation, run.server, data.schema, known.lowered(0.8))
    assert given.exchanges < fresh.exchanges
    assert given.minimax == pytest.approx(fresh.minimax, abs=1e-6)
    assert given.least_excess == pytest.approx(fresh.least_excess, abs=1e-6)
    assert (given.status, given.gap) == (fresh.status, pytest.approx(fresh.gap, abs=1e-9))


def test_curvature_of_a_large_model_is_refused(train_rounds: Callable[..., Any]) -> None:
    data = skewed(0, width=2500)
    with pytest.raises(ConfigError, match=r"certify\.curved asks clients for 5002 x 5002 numbers"):
        train_rounds(PFFL(certify=Certify(curved=True)), data, model="linear")


@pytest.mark.proves("pffl", "generalisation terms have the corrected form")
def test_generalisation_terms(train_rounds: Callable[..., Any]) -> None:
    """`M sqrt(log(2 Z / delta) / (2 m))`, `2 sqrt(2) W X / sqrt(m)` for two logits.

    One of m examples moves a mean of losses in `[0, M]` by `M / m` (McDiarmid).
    """
    task = train_rounds(PFFL(), silos(0), model="linear", evaluate=False).runner.task
    options = Certify(loss_bound=3.0, delta=0.1)
    assert generalisation(options, task, 100, 4) == (
        pytest.approx(3 * np.sqrt(np.log(80) / 200)), None,
    )  # fmt: skip
    both = Certify(weight_norm=2.0, feature_norm=1.5, delta=0.1)
    concentration, complexity = generalisation(both, task, 100, 4)
    largest = np.log(2) + np.sqrt(2) * 3.0
    assert concentration == pytest.approx(largest * np.sqrt(np.log(80) / 200))
    assert complexity == pytest.approx(2 * np.sqrt(2) * 3.0 / 10)
    assert generalisation(Certify(), task, 100, 4) == (None, None)


@pytest.mark.proves("pffl", "a deep model gets no certificate, and says so")
def test_no_certificate_for_a_deep_model(train_rounds: Callable[..., Any]) -> None:
    data = silos(0)
    run = train_rounds(PFFL(zeta=0.1), data, model="mlp", evaluate=False).runner
    made = run.method.certificate(run.federation, run.server, data.schema)
    assert made.status == "undetermined"
    assert made.gap is made.minimax is made.proof is None
    assert made.sentences()[0].startswith("No certificate: the model is not one affine layer")
    assert "only a convex problem" in run.method.advice(run.federation)[0]


@pytest.mark.proves("pffl", "bounds on all clients' groups beat bounds on each client's own")
def test_global_bounds_beat_local_ones(train_rounds: Callable[..., Any]) -> None:
    """The small group follows the common rule where it is large, and another where it is rare.

    There a client that bounds its own few examples pulls the common model far, and still the
    group of all clients is over the bound: worse in objective and in the largest group loss.
    """
    rng = np.random.default_rng(0)
    made = []
    for k in range(4):
        rare = k % 2 == 1
        group = (rng.random(60) < (0.1 if rare else 0.5)).astype(np.int64)
        x = rng.normal(size=(60, 2))
        rule = [-0.5, 1.0] if rare else [1.5, -0.2]
        score = np.where(group == 0, x @ [1.5, -1.0], x @ rule)
        y = (score + 0.5 * rng.logistic(size=60) > 0).astype(np.int64)
        made.append(client(k, x, y, group))
    data = federated("binary", made)
    central = Central(data)
    plain = minimize(central.objective, np.zeros(6)).x
    zeta = float(0.75 * central.minimax() + 0.25 * central.groups(plain).max())
    found = {}
    for scope in ("global", "local"):
        method = PFFL(zeta=zeta, scope=scope, lambda_bound=5.0, iterate="last", local=STEP)  # type: ignore[arg-type]
        run = train_rounds(method, data, rounds=80, model="linear", evaluate=False).runner
        w = vector(run.server["params"])
        found[scope] = (central.objective(w), central.groups(w).max())
    assert found["global"][1] <= zeta + 1e-3 < found["local"][1]
    assert found["global"][0] < found["local"][0] - 0.05


@pytest.mark.proves("pffl", "excess over the lowest loss of each group alone")
def test_reference_best_is_the_lowest_loss_of_each_group(train_rounds: Callable[..., Any]) -> None:
    data = silos(1)
    central = Central(data)
    method = PFFL(zeta=0.1, reference="best", local=STEP)
    run = train_rounds(method, data, rounds=1, model="linear", evaluate=False).runner
    lowest = [minimize(lambda w, a=a: central.groups(w)[a], np.zeros(6)).fun for a in (0, 1)]
    np.testing.assert_allclose(run.server["reference"].numpy(), lowest, atol=1e-4)
    np.testing.assert_allclose(
        run.method.limits(run.server).numpy(), np.array(lowest) + 0.1, atol=1e-4
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"zeta": (0.1, 0.2, 0.3)}, "zeta has 3 numbers; it may have 1 .one number., 2"),
        ({"labels": (1,)}, "labels belong to constraint"),
        ({"reference": (0.1,)}, "reference has 1 numbers"),
        (
            {"constraint": "conditional_bounded_group_loss", "labels": (2,)},
            r"labels must be in 0..1",
        ),
        ({"zeta": float("inf")}, "no group with examples has a finite bound"),
        ({"scope": "local", "dual": "projected"}, "scope='local'"),
        ({"lambda_bound": 0.0}, "lambda_bound must be above 0"),
    ],
)
def test_wrong_options_are_refused(
    train_rounds: Callable[..., Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train_rounds(PFFL(**options), silos(0), model="linear")
