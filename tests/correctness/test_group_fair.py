"""FairBatch and the baselines that share it, by hand: FedFB, FairFed, LFT+FedAvg, LFT+Ensemble.

Notation of the papers, not of the code: `m[y, z]` examples with label y in group z, `S[y, z]` their
losses summed, `lam[y, z]` the weight of a cell, an example's weight is `lam[y, z] / m_z`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from evenfed.core.fairbatch import adjusted
from evenfed.methods.fairfed import FairFed
from evenfed.methods.fedavg import FedAvg
from evenfed.methods.fedfb import FedFB
from evenfed.methods.lft_ensemble import LFTEnsemble
from evenfed.methods.lft_fedavg import LFTFedAvg
from evenfed.methods.local import Local

Vector = np.ndarray
CELLS = [(y, z) for y in (0, 1) for z in (0, 1)]


def sums(problem: Any, clients: Any, theta: Vector) -> tuple[Vector, Vector]:
    """`m` and `S` of some clients together."""
    m, s = np.zeros((2, 2)), np.zeros((2, 2))
    for i in clients:
        losses = problem.losses(i, theta)
        for y, z in CELLS:
            here = (problem.y[i] == y) & (problem.group[i] == z)
            m[y, z] += here.sum()
            s[y, z] += losses[here].sum()
    return m, s


def moved(lam: Vector, m: Vector, s: Vector, step: float) -> Vector:
    """FedFB's rule for two groups: F_1 is P(1 | z=1) - P(1 | z=0), losses in the place of errors.

    An error on a positive is a prediction 0, one on a negative a prediction 1, so
    `P(1 | z) = (errors on negatives + positives - errors on positives) / m_z`.
    """
    size, n = m.sum(0), m.sum()
    p = (s[0] + m[1] - s[1]) / size
    f = p[1] - p[0]
    new = lam.copy()
    new[0, 1] = np.clip(lam[0, 1] + step * f, 0, 2 * size[1] / n)
    new[0, 0] = np.clip(lam[0, 0] - step * f, 0, 2 * size[0] / n)
    new[1] = 2 * size / n - new[0]
    return new


def example_weights(problem: Any, i: int, lam: Vector, m: Vector) -> Vector:
    return lam[problem.y[i], problem.group[i]] / m.sum(0)[problem.group[i]]


def first_weights(m: Vector) -> Vector:
    """`m_z / n` for both labels."""
    return np.tile(m.sum(0) / m.sum(), (2, 1))


@pytest.mark.proves("fedfb", "three rounds by hand")
@pytest.mark.parametrize("alpha", [0.3, 5.0])
def test_fedfb(logit: Any, engine: str, alpha: float) -> None:
    """A client minimises `sum v l / sum v`; models are averaged with weights `sum v`.

    After round t the weights of the cells move by `alpha / sqrt(t)`. A step of 5 reaches a bound.
    """
    w, reached = logit.start, False
    m, _ = sums(logit, logit.clients, w)
    lam, n = first_weights(m), m.sum()
    for t in (1, 2, 3):
        models, nc = [], []
        for i in logit.clients:
            v = example_weights(logit, i, lam, m)
            models.append(logit.trained(i, w, weights=v * len(v) / v.sum()))
            nc.append(v.sum())
        w = np.average(np.stack(models), axis=0, weights=nc)
        if t < 3:
            lam = moved(lam, m, sums(logit, logit.clients, w)[1], alpha / np.sqrt(t))
            reached |= bool((lam == 0).any())
    run = logit.run(FedFB(local=logit.local, alpha=alpha), engine, rounds=3)
    np.testing.assert_allclose(logit.theta(run.runner.server["params"]), w, rtol=1e-5)
    size = m.sum(0)
    factors = run.runner.server["factors"].numpy()
    np.testing.assert_allclose(factors * size / n, lam[0], rtol=1e-5)
    assert reached == (alpha == 5.0), "the larger step is to reach a bound"


def fair_training(
    problem: Any, i: int, theta: Vector, lam: Vector, count: int, alpha: float
) -> tuple[Vector, Vector, int]:
    """Local FairBatch: before every epoch (here one full batch) the weights move."""
    at = theta.copy()
    for _ in range(problem.steps):
        m, s = sums(problem, [i], at)
        count += 1
        lam = moved(lam, m, s, alpha / np.sqrt(count))
        v = example_weights(problem, i, lam, m) * m.sum()
        at = at - problem.eta * problem.gradient(i, at, v)
    return at, lam, count


@pytest.mark.proves("lft_fedavg", "two rounds by hand")
def test_lft_fedavg(logit: Any, engine: str) -> None:
    """Counts, losses and weights are the client's; the weights and their step go on over rounds."""
    alpha, w = 0.4, logit.start
    lams = [first_weights(sums(logit, [i], w)[0]) for i in logit.clients]
    counts = [0] * 3
    for _ in range(logit.rounds):
        models = []
        for i in logit.clients:
            model, lams[i], counts[i] = fair_training(logit, i, w, lams[i], counts[i], alpha)
            models.append(model)
        w = np.average(np.stack(models), axis=0, weights=logit.sizes)
    run = logit.run(LFTFedAvg(local=logit.local, alpha=alpha), engine)
    np.testing.assert_allclose(logit.theta(run.runner.server["params"]), w, rtol=1e-5)


@pytest.mark.proves("lft_ensemble", "two rounds and the ensemble by hand")
def test_lft_ensemble(logit: Any, engine: str) -> None:
    """Clients go on with their own models; then `p(x) = sum_k (n_k / n) p_k(x)`."""
    alpha, x = 0.4, np.array([-1.0, 0.3, 2.0])
    p = np.zeros((3, 2))
    for i in logit.clients:
        w, lam, count = logit.start, first_weights(sums(logit, [i], logit.start)[0]), 0
        for _ in range(logit.rounds):
            w, lam, count = fair_training(logit, i, w, lam, count, alpha)
        logits = x[:, None] * w
        p += logit.sizes[i] * np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    run = logit.run(LFTEnsemble(local=logit.local, alpha=alpha), engine).runner
    features = torch.tensor(x, dtype=torch.float32).unsqueeze(-1)
    state = run.method.client_state(torch.Generator(), 1)
    outputs = run.method.outputs(run.method.deployed(run.server), state, features)
    np.testing.assert_allclose(outputs.softmax(-1).numpy(), p / logit.sizes.sum(), rtol=1e-5)


def gaps_by_hand(problem: Any, theta: Vector, metric: str) -> Vector:
    """`|F_k - F|`; the gap of accuracies where a client lacks a group (among positives for eo)."""
    x, y, z = (np.concatenate(part) for part in (problem.x, problem.y, problem.group))

    def fairness(x: Vector, y: Vector, z: Vector) -> float:
        yes = theta[1] * x > theta[0] * x
        counted = y == 1 if metric == "eo" else np.ones(len(y), bool)
        rates = [yes[counted & (z == g)] for g in (0, 1)]
        return np.nan if min(map(len, rates)) == 0 else rates[0].mean() - rates[1].mean()

    def accuracy(x: Vector, y: Vector) -> float:
        return float(((theta[1] * x > theta[0] * x) == y).mean())

    gaps = []
    for i in problem.clients:
        own = fairness(problem.x[i], problem.y[i], problem.group[i])
        gap = abs(own - fairness(x, y, z))
        far = abs(accuracy(problem.x[i], problem.y[i]) - accuracy(x, y))
        gaps.append(far if np.isnan(own) else gap)
    return np.array(gaps)


@pytest.mark.proves("fairfed", "two rounds by hand")
@pytest.mark.parametrize("form", ["published", "exponential"])
@pytest.mark.parametrize("metric", ["dp", "eo"])
@pytest.mark.parametrize(("beta", "floor"), [(0.3, 0.0), (1.0, 0.0), (1.0, -np.inf)])
def test_fairfed(logit: Any, form: Any, metric: Any, beta: float, floor: float) -> None:
    """`w_k <- w_k - beta (D_k - mean D)` from `n_k / n`, or `(n_k / n) exp(-beta D_k)` anew.

    Counts are those of the received model. Client 2 has no positive in group 1: its `D` is a gap of
    accuracies for `eo`. With `beta = 1` a weight falls below 0, where the floor stops it.
    """
    w, weights = logit.start, logit.sizes / logit.sizes.sum()
    share, lowest = weights, 1.0
    for _ in range(logit.rounds):
        gaps = gaps_by_hand(logit, w, metric)
        models = np.stack([logit.trained(i, w) for i in logit.clients])
        if form == "published":
            share = weights = np.maximum(weights - beta * (gaps - gaps.mean()), floor)
        else:
            share = weights * np.exp(-beta * gaps)
        lowest = min(lowest, share.min())
        w = np.average(models, axis=0, weights=share)
    method = FairFed(local=logit.local, beta=beta, form=form, metric=metric, floor=floor)
    run = logit.run(method)
    np.testing.assert_allclose(logit.theta(run.runner.server["params"]), w, rtol=1e-5)
    if form == "published" and beta == 1.0 and metric == "dp":
        assert lowest == 0 if floor == 0 else lowest < 0, "the case is to reach the floor"


@pytest.mark.proves("fairfed", "local FairBatch by hand")
def test_fairfed_with_fairbatch(logit: Any, engine: str) -> None:
    """As above with the local training of LFT+FedAvg."""
    alpha, beta, w = 0.4, 0.3, logit.start
    weights = logit.sizes / logit.sizes.sum()
    lams = [first_weights(sums(logit, [i], w)[0]) for i in logit.clients]
    counts = [0] * 3
    for _ in range(logit.rounds):
        gaps = gaps_by_hand(logit, w, "dp")
        models = []
        for i in logit.clients:
            model, lams[i], counts[i] = fair_training(logit, i, w, lams[i], counts[i], alpha)
            models.append(model)
        weights = np.maximum(weights - beta * (gaps - gaps.mean()), 0)
        w = np.average(np.stack(models), axis=0, weights=weights)
    method = FairFed(local=logit.local, beta=beta, debiasing="fairbatch", alpha=alpha)
    run = logit.run(method, engine)
    np.testing.assert_allclose(logit.theta(run.runner.server["params"]), w, rtol=1e-5)


@pytest.mark.parametrize(
    ("method", "plain"),
    [
        pytest.param(
            FedFB(alpha=0.0), FedAvg(), id="fedfb",
            marks=pytest.mark.proves("fedfb", "without steps of the weights it is FedAvg"),
        ),
        pytest.param(
            LFTFedAvg(alpha=0.0), FedAvg(), id="lft_fedavg",
            marks=pytest.mark.proves("lft_fedavg", "without steps of the weights it is FedAvg"),
        ),
        pytest.param(
            FairFed(beta=0.0), FedAvg(), id="fairfed",
            marks=pytest.mark.proves("fairfed", "beta = 0 is FedAvg"),
        ),
        pytest.param(
            FairFed(beta=0.0, form="exponential"), FedAvg(), id="fairfed-exponential",
            marks=pytest.mark.proves("fairfed", "beta = 0 is FedAvg, exponential form"),
        ),
        pytest.param(
            FairFed(beta=0.0, debiasing="fairbatch", alpha=0.2), LFTFedAvg(alpha=0.2),
            id="fairfed-lft",
            marks=pytest.mark.proves("fairfed", "beta = 0 with FairBatch is LFT+FedAvg"),
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_limits(
    method: Any, plain: Any, optimizer: Any, binary: Any, train_rounds: Any, distance: Any
) -> None:
    """On batches, with clients of one example and several epochs."""
    local = replace(plain.local, batch=8, epochs=2, lr=0.05, optimizer=optimizer)
    a, b = (train_rounds(replace(m, local=local), binary, rounds=3) for m in (method, plain))
    params = [torch.cat([p.flatten() for p in r.runner.server["params"].values()]) for r in (a, b)]
    assert distance(*params) < 1e-6


@pytest.mark.proves("fedfb", "copies of one client are that client alone")
def test_fedfb_on_copies(logit: Any) -> None:
    """Counts and losses are sums, so three copies give the gaps and the model of one."""
    method = FedFB(local=logit.local, alpha=0.5)
    one = replace(logit, x=logit.x[:1], y=logit.y[:1], group=logit.group[:1])
    three = replace(logit, x=logit.x[:1] * 3, y=logit.y[:1] * 3, group=logit.group[:1] * 3)
    a, b = (problem.run(method, rounds=3).runner.server for problem in (one, three))
    np.testing.assert_allclose(logit.theta(a["params"]), logit.theta(b["params"]), rtol=1e-6)
    assert float((a["factors"] - 1).abs().max()) > 0.01


@pytest.mark.proves("fairfed", "copies of one client are FedAvg")
def test_fairfed_on_copies(logit: Any) -> None:
    """All gaps are equal, so that weights stay."""
    copies = replace(logit, x=logit.x[:1] * 3, y=logit.y[:1] * 3, group=logit.group[:1] * 3)
    a, b = (
        copies.run(m) for m in (FairFed(local=logit.local, beta=2.0), FedAvg(local=logit.local))
    )
    theta = [logit.theta(run.runner.server["params"]) for run in (a, b)]
    np.testing.assert_allclose(*theta, rtol=1e-6)


@pytest.mark.proves("lft_ensemble", "one client without FairBatch is Local")
def test_lft_ensemble_of_one(logit: Any) -> None:
    one = replace(logit, x=logit.x[:1], y=logit.y[:1], group=logit.group[:1])
    alone = one.run(Local(local=logit.local)).runner
    run = one.run(LFTEnsemble(local=logit.local, alpha=0.0)).runner
    theta = logit.theta(run.method.parameters(run.method.deployed(run.server), ()))
    own = logit.theta(alone.federation.states.kept[0]["params"])
    np.testing.assert_allclose(theta, own, rtol=1e-6)


@pytest.mark.proves("lft_fedavg", "a client of one group trains plainly")
def test_fairbatch_of_one_group(logit: Any) -> None:
    alike = replace(logit, group=tuple(np.zeros_like(g) + i % 2 for i, g in enumerate(logit.group)))
    methods = (LFTFedAvg(local=logit.local, alpha=1.0), FedAvg(local=logit.local))
    a, b = (alike.run(m).runner.server["params"] for m in methods)
    np.testing.assert_allclose(logit.theta(a), logit.theta(b), rtol=1e-6)


@pytest.mark.proves("fedfb", "the step of the weights, four groups by hand")
def test_weights_of_four_groups() -> None:
    """Group 0 has no example: group 1 is the reference and takes the negative sum of all F."""
    m = np.array([[0.0, 4.0, 2.0, 6.0], [0.0, 6.0, 8.0, 4.0]])
    s = np.array([[0.0, 1.0, 0.5, 4.0], [0.0, 2.0, 1.0, 1.0]])
    size, n = m.sum(0), m.sum()
    p = (s[0, 1:] + m[1, 1:] - s[1, 1:]) / size[1:]
    f = p - p[0]
    lam = size / n
    lam[1] -= 0.1 * f.sum()
    lam[2:] += 0.1 * f[1:]
    moved = adjusted(torch.ones(4).double(), torch.tensor(s.T), torch.tensor(m.T), 0.1).numpy()
    assert moved[0] == 1
    np.testing.assert_allclose(moved[1:] * size[1:] / n, lam[1:], rtol=1e-12)
