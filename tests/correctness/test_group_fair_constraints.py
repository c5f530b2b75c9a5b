"""Baselines with constraints or terms, by hand: FedFair, EquiFL, AgnosticFair, FCFL."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from evenfed.core.local import LocalTraining
from evenfed.methods.agnosticfair import AgnosticFair
from evenfed.methods.equifl import EquiFL
from evenfed.methods.fcfl import FCFL, stage_one, stage_two
from evenfed.methods.fedavg import FedAvg
from evenfed.methods.fedfair import FedFair

Vector = np.ndarray


def probability(x: Vector, theta: Vector) -> Vector:
    """Of class 1: the logits are `theta_0 x` and `theta_1 x`."""
    return 1 / (1 + np.exp(-(theta[1] - theta[0]) * x))


def pooled(problem: Any) -> list[Vector]:
    """x, y and group of all clients."""
    return [np.concatenate(part) for part in (problem.x, problem.y, problem.group)]


@pytest.mark.proves("fedfair", "three rounds by hand")
@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("dual_max", [10.0, 0.003])
def test_fedfair(logit: Any, engine: str, label: int, dual_max: float) -> None:
    """`L = sum_k (n_k / n) f_k + (lam_+ - lam_-) g`, `g` the mean loss of group 1 less group 0.

    The gradient of `g` puts `1 / m_1` on each loss of group 1 and `-1 / m_0` on each of group 0,
    among the examples with the label. Client k's share of L is `(n_k / n)` times
    `(1 / n_k) sum_i (1 + n nu dg/dl_i) l_i`. `w` moves first, then lam at the new w.
    """
    eps, eta, w = 0.01, 0.5, logit.start
    _, y, z = pooled(logit)
    n, size = len(y), [np.sum((y == label) & (z == g)) for g in (0, 1)]
    plus, minus, reached = 0.0, 0.0, False
    for t in range(3):
        nu = plus - minus
        models = []
        for i in logit.clients:
            slope = np.where(logit.group[i] == 1, 1 / size[1], -1 / size[0])
            models.append(logit.trained(i, w, weights=1 + n * nu * slope * (logit.y[i] == label)))
        w = np.average(np.stack(models), axis=0, weights=logit.sizes)
        losses = np.concatenate([logit.losses(i, w) for i in logit.clients])
        each = [losses[(y == label) & (z == g)].mean() for g in (0, 1)]
        if t < 2:
            plus = np.clip(plus + eta * (each[1] - each[0] - eps), 0, dual_max)
            minus = np.clip(minus + eta * (each[0] - each[1] - eps), 0, dual_max)
            reached |= dual_max in (plus, minus)
    method = FedFair(local=logit.local, eps=eps, dual_lr=eta, dual_max=dual_max, label=label)
    run = logit.run(method, engine, rounds=3)
    np.testing.assert_allclose(logit.theta(run.runner.server["params"]), w, rtol=1e-5)
    found = run.runner.server["multipliers"].numpy().ravel()
    np.testing.assert_allclose(found, [plus, minus], rtol=1e-5)
    assert max(found) > 0
    assert reached == (dual_max == 0.003), "the smaller box is to be reached"


@pytest.mark.proves("equifl", "two rounds by hand")
def test_equifl(logit: Any, engine: str) -> None:
    """A local step follows `grad F + mu grad |c|`, `c = mean (z - z_mean) p`, the covariance.

    `dp/d theta_1 = p (1 - p) x = -dp/d theta_0`. All of the one weight matrix is averaged.
    """
    mu, w = 3.0, logit.start

    def term(i: int, theta: Vector) -> Vector:
        x, away = logit.x[i], logit.group[i] - logit.group[i].mean()
        p = probability(x, theta)
        slope = np.mean(away * p * (1 - p) * x)
        return mu * np.sign(np.mean(away * p)) * slope * np.array([-1.0, 1.0])

    for _ in range(logit.rounds):
        models = [logit.trained(i, w, lambda at, i=i: term(i, at)) for i in logit.clients]
        w = np.average(np.stack(models), axis=0, weights=logit.sizes)
    run = logit.run(EquiFL(local=logit.local, mu=mu, shared="weights"), engine)
    np.testing.assert_allclose(logit.theta(run.runner.server["params"]), w, rtol=1e-5)


@pytest.mark.proves("equifl", "what is averaged and what stays, two rounds by hand")
def test_equifl_keeps_biases_and_predictor(logit: Any, engine: str) -> None:
    """Two layers, no fairness term: only the hidden weight matrix is averaged, by size.

    The rounds are redone with PyTorch's own gradients in float64.
    """
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 2))
    start = {k: v.detach().double() for k, v in module.named_parameters()}
    shared, own = start["0.weight"], [dict(start) for _ in logit.clients]
    for _ in range(logit.rounds):
        news = []
        for i in logit.clients:
            at = {**own[i], "0.weight": shared}
            x, y = torch.tensor(logit.x[i]).unsqueeze(-1), torch.tensor(logit.y[i])
            for _ in range(logit.steps):
                leaves = {k: v.clone().requires_grad_() for k, v in at.items()}
                hidden = torch.tanh(x @ leaves["0.weight"].T + leaves["0.bias"])
                out = hidden @ leaves["2.weight"].T + leaves["2.bias"]
                nn.functional.cross_entropy(out, y).backward()
                at = {k: v.detach() - logit.eta * v.grad for k, v in leaves.items()}
            own[i] = at
            news.append(at["0.weight"])
        share = torch.tensor(logit.sizes / logit.sizes.sum())
        shared = torch.einsum("k,kij->ij", share, torch.stack(news))
    run = logit.run(EquiFL(local=logit.local, mu=0.0), engine, model=module).runner
    assert list(run.server["params"]) == ["0.weight"]
    torch.testing.assert_close(
        run.server["params"]["0.weight"].double(), shared, rtol=1e-5, atol=1e-6
    )
    for i in logit.clients:
        used = run.method.parameters(run.server["params"], run.federation.states.kept[i])
        for name in ("0.bias", "2.weight", "2.bias"):
            torch.testing.assert_close(used[name].double(), own[i][name], rtol=1e-5, atol=1e-6)


@pytest.mark.proves("agnosticfair", "two rounds by hand")
@pytest.mark.parametrize("score", ["logit", "probability"])
def test_agnosticfair(logit: Any, engine: str, score: Any) -> None:
    """Centres are random, so taken from the run; all that follows is worked out here.

    `theta_i = sum_m a_m K_im / mean_i K_im`. The adversary's programme (weights at most 0.6, sum
    one) gives 0.6 to the kernel with the largest weighted loss and 0.4 to the next. Then the
    multipliers move, then clients train on `theta l + nu theta (z - z_mean) s`; `ds/d theta_1` is
    `x` for the logit, `p (1 - p) x` for the probability.
    """
    tau, eta, width, w = 0.01, 0.5, 0.8, logit.start
    method = AgnosticFair(
        local=logit.local, tau=tau, kernels=3, width=width, a_max=0.6, dual_lr=eta, score=score
    )
    run = logit.run(method, engine)
    centres = run.runner.server["kernels"].centres.double().numpy()
    assert centres.shape == (3, 1)
    x, _, z = pooled(logit)
    standard = (x - x.mean()) / x.std()
    kernel = np.exp(-((standard[:, None] - centres[:, 0]) ** 2) / (2 * width**2))
    kernel = kernel / kernel.mean(0)
    first = np.concatenate([[0], np.cumsum(logit.sizes)]).astype(int)
    away, plus, minus = z - z.mean(), 0.0, 0.0

    def scores(at: Vector, x: Vector) -> tuple[Vector, Vector]:
        """Scores and their derivatives by the logit of class 1."""
        p = probability(x, at)
        return ((at[1] - at[0]) * x, x) if score == "logit" else (p, p * (1 - p) * x)

    for _ in range(logit.rounds):
        losses = np.concatenate([logit.losses(i, w) for i in logit.clients])
        order = np.argsort(-(kernel * losses[:, None]).mean(0))
        theta = 0.6 * kernel[:, order[0]] + 0.4 * kernel[:, order[1]]
        c = np.mean(theta * away * scores(w, x)[0])
        plus, minus = max(0, plus + eta * (c - tau)), max(0, minus + eta * (-c - tau))
        models = []
        for i in logit.clients:
            rows = slice(first[i], first[i + 1])

            pull = (plus - minus) * theta[rows] * away[rows]

            def term(at: Vector, pull: Vector = pull, x: Vector = logit.x[i]) -> Vector:
                return np.mean(pull * scores(at, x)[1]) * np.array([-1.0, 1.0])

            models.append(logit.trained(i, w, term, weights=theta[rows]))
        w = np.average(np.stack(models), axis=0, weights=logit.sizes)
    np.testing.assert_allclose(logit.theta(run.runner.server["params"]), w, rtol=1e-5)
    found = run.runner.server["multipliers"].numpy().ravel()
    np.testing.assert_allclose(found, [plus, minus], rtol=1e-4, atol=1e-7)
    assert max(found) > 0


def disparity(problem: Any, i: int, theta: Vector, metric: str) -> tuple[float, Vector]:
    """`g_k` and its gradient; the logit of class 1 against class 0 is `(theta_1 - theta_0) x`."""
    x, z = problem.x[i], problem.group[i]
    soft = 1 / (1 + np.exp(-10 * (theta[1] - theta[0]) * x))
    slope = 10 * soft * (1 - soft) * x
    among = problem.y[i] == 1 if metric == "eo" else np.ones(len(x), bool)
    one, zero = among & (z == 1), among & (z == 0)
    if not one.any() or not zero.any():
        return np.nan, np.zeros(2)
    gap = soft[one].mean() - soft[zero].mean()
    by_logit = slope[one].mean() - slope[zero].mean()
    return abs(gap), np.sign(gap) * by_logit * np.array([-1.0, 1.0])


def best_in_simplex(gain: Vector, keep: Vector) -> Vector:
    """Maximise `a . gain` over the simplex with `keep @ a >= 0`: the best of all vertices."""
    r = len(gain)
    walls = np.concatenate([np.eye(r), keep])
    best, value = None, -np.inf
    for active in combinations(range(len(walls)), r - 1):
        system = np.concatenate([np.ones((1, r)), walls[list(active)]])
        if np.linalg.matrix_rank(system) < r:
            continue
        a = np.linalg.solve(system, np.eye(r)[0])
        if (walls @ a > -1e-9).all() and a @ gain > value:
            best, value = a, a @ gain
    assert best is not None
    return best


@pytest.mark.proves("fcfl", "both stages by hand")
@pytest.mark.parametrize("metric", ["dp", "eo"])
@pytest.mark.parametrize("eps", [0.05, 1.0])
def test_fcfl(logit: Any, engine: str, metric: Any, eps: float) -> None:
    """Two rounds of each stage with gradient steps of 0.2; no disparity is above `eps = 1`.

    Client 2 has no positive in group 1, hence no disparity for `eo`. The smoothing shrinks when a
    tenth of a gradient's norm is below it, as it is from the first round on.
    """
    eta, w, delta = 0.2, logit.start, np.array([0.5, 0.5])
    for t in range(4):
        losses = np.array([logit.loss(i, w) for i in logit.clients])
        g = np.stack([logit.gradient(i, w) for i in logit.clients])
        gaps, slopes = zip(*(disparity(logit, i, w, metric) for i in logit.clients), strict=True)
        there = ~np.isnan(gaps)
        worst = np.nanmax(gaps)
        q = np.where(there, np.exp((np.nan_to_num(gaps) - worst) / delta[1]), 0)
        fair = q / q.sum() @ np.stack(slopes)
        if t < 2:
            p = np.exp((losses - losses.max()) / delta[0])
            rows = np.stack([p / p.sum() @ g, fair])
            gram = rows @ rows.T
            a = best_in_simplex(gram[int(worst > eps)], gram[:1] if worst > eps else gram[:0])
            norms = np.linalg.norm(rows, axis=1)
            delta = np.where((delta > 1e-4) & (0.1 * norms <= delta), 0.01 * delta, delta)
        else:
            rows = np.concatenate([g, fair[None] * (worst >= eps)])
            gram = rows @ rows.T
            a = best_in_simplex(gram @ np.append(np.full(3, 1 / 3), 0), gram)
        w = w - eta * a @ rows
    local = LocalTraining(lr=eta, batch=0)
    run = logit.run(FCFL(local=local, eps=eps, metric=metric), engine, rounds=4).runner
    np.testing.assert_allclose(run.server["delta"], delta, rtol=1e-6)
    np.testing.assert_allclose(logit.theta(run.server["params"]), w, rtol=1e-4)


@pytest.mark.proves("fcfl", "the linear programmes of both stages against all their vertices")
def test_fcfl_programmes() -> None:
    """Steps from 50 draws of directions in five dimensions, where, unlike above, they differ.

    The constraint of stage 1 is to bind in some draws, else it would not be tested.
    """
    rng, bound = np.random.default_rng(0), 0
    for _ in range(50):
        rows = rng.normal(size=(2, 5))
        gram = rows @ rows.T
        a = best_in_simplex(gram[1], gram[:1])
        bound += bool(a[0] > 1e-6 and a[1] > 1e-6)
        found = stage_one(torch.tensor(rows), unfair=True).numpy()
        np.testing.assert_allclose(found @ rows, a @ rows, atol=1e-6)
        fair = stage_one(torch.tensor(rows), unfair=False).numpy()
        assert fair @ gram[0] == pytest.approx(gram[0].max())
        many = rng.normal(size=(4, 5))
        gram = many @ many.T
        mean = gram[:3].mean(0)
        best = best_in_simplex(mean, gram) @ mean
        a = stage_two(torch.tensor(many)).numpy()
        assert a @ mean == pytest.approx(best, abs=1e-6)
        assert (gram @ a > -1e-6).all()
    assert bound > 10


@pytest.mark.proves(
    "fcfl", "a disparity whose gradient is tiny beside the losses' binds all the same"
)
def test_fcfl_keeps_a_tiny_disparity_from_growing() -> None:
    """Five losses, and a disparity a million times less steep that their mean would raise."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rows = rng.random((5, 8))
        tiny = -3e-6 * rows.mean(0) + 1e-7 * rng.normal(size=8)
        rows = np.vstack([rows, tiny])
        a = stage_two(torch.tensor(rows)).numpy()
        assert a.sum() == pytest.approx(1)
        lengths = np.linalg.norm(rows, axis=1)
        assert (rows @ (a @ rows) >= -1e-6 * lengths * lengths.max()).all()


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(
            FedFair(dual_lr=0.0), id="fedfair-0",
            marks=pytest.mark.proves("fedfair", "without multipliers it is FedAvg"),
        ),
        pytest.param(
            FedFair(eps=1e6), id="fedfair-inf",
            marks=pytest.mark.proves("fedfair", "with a bound that always holds it is FedAvg"),
        ),
        pytest.param(
            EquiFL(mu=0.0, shared="all"), id="equifl",
            marks=pytest.mark.proves("equifl", "mu = 0 with all shared is FedAvg"),
        ),
        pytest.param(
            AgnosticFair(width=float("inf"), dual_lr=0.0), id="agnosticfair",
            marks=pytest.mark.proves("agnosticfair", "wide kernels, no constraint: FedAvg"),
        ),
        pytest.param(
            AgnosticFair(width=float("inf"), tau=1e6), id="agnosticfair-tau",
            marks=pytest.mark.proves("agnosticfair", "a bound that always holds: FedAvg"),
        ),
    ],
)  # fmt: skip
def test_limits(method: Any, binary: Any, train_rounds: Any, distance: Any) -> None:
    """On batches, with clients of one example and several epochs."""
    local = LocalTraining(lr=0.05, batch=8, epochs=2)
    a, b = (
        train_rounds(replace(m, local=local), binary, rounds=3).runner.server["params"]
        for m in (method, FedAvg())
    )
    assert distance(*(torch.cat([p.flatten() for p in s.values()]) for s in (a, b))) < 1e-6


@pytest.mark.proves("fcfl", "copies of a client of one group: gradient descent")
def test_fcfl_without_any_disparity(logit: Any, engine: str) -> None:
    """No disparity is defined and all gradients are equal: both stages take that gradient."""
    copies = replace(
        logit, x=logit.x[:1] * 3, y=logit.y[:1] * 3, group=(np.zeros_like(logit.group[0]),) * 3
    )
    local = LocalTraining(lr=0.2, batch=0)
    a, b = (copies.run(m, engine, rounds=4) for m in (FCFL(local=local), FedAvg(local=local)))
    theta = [logit.theta(run.runner.server["params"]) for run in (a, b)]
    np.testing.assert_allclose(*theta, rtol=1e-6)


@pytest.mark.proves("fcfl", "no step of stage 2 goes against any client, to first order")
def test_fcfl_second_stage_harms_nobody(binary: Any, train_rounds: Any, flat: Any) -> None:
    """The step has no negative inner product with any client's descent direction."""
    method = FCFL(local=LocalTraining(lr=0.1, batch=0), stage1=0.0)
    run = train_rounds(method, binary, rounds=1)
    step = flat(run.runner.server["params"]) - flat(run.runner.task.init())
    own = [flat(u["update"]) for (_, e, _), u in run.uploads.items() if e.startswith("train/")]
    assert len(own) == len(binary)
    cosines = [float(step @ u / step.norm() / u.norm()) for u in own]
    assert min(cosines) > -1e-5
    assert max(cosines) > 0.1
